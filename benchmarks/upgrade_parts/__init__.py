"""The parts of upgrade.py."""
