"""Whether timings can be trusted here, and why they differ."""
