"""Compare two stored runs, for a gate."""
