"""Human-readable results: text, HTML and plots."""
