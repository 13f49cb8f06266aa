"""The parts of race.py."""
