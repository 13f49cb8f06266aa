"""Parts of forum_thread.py."""
