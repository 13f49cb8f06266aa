"""The parts of conv_match.py and conv_match_nd.py: what is timed, and what the rows say."""
