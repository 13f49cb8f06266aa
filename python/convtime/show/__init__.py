"""Results for people to read: text, HTML and plots."""
