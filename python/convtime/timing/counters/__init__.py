"""Hardware counters: their names, and reading them."""
