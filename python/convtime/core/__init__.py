"""What every subpackage stands on: the compiled core, errors, files, JSON and provenance."""
