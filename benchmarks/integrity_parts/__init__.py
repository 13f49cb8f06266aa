"""The parts of integrity.py."""
