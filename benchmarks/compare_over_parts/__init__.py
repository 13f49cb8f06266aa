"""The parts of compare_over.py."""
