"""Measure applications over axes."""
