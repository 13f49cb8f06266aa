"""Hardware counters, energy and memory: what a call costs other than time."""
