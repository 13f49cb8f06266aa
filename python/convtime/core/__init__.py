"""Shared foundations: the compiled core, errors, files, provenance, and drawing primitives."""
