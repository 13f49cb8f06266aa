"""Check whether timings on this machine are trustworthy."""
