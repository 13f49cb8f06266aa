"""Shared foundations: the compiled core, errors, files, JSON and provenance."""
