"""Choosing plans: the problems of a call, the search, and the check of what was chosen."""
