"""Check whether timings on this machine are trustworthy, and explain why they differ."""
