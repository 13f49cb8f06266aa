"""The parts of accuracy.py: what is timed, what its rows say, and how that is shown."""
