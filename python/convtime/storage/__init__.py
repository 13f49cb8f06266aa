"""Read any result from a file."""
