"""The parts of diagnose.py."""
