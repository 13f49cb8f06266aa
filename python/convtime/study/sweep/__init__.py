"""Measures applications over axes: what is asked for, and its running."""
