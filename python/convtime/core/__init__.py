"""What every room stands on: the compiled core, errors, files, JSON and provenance."""
