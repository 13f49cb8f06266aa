"""The parts of gate.py."""
