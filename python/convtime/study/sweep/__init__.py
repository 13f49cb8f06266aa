"""Measure applications over axes: parsing of the request, and the run."""
