"""Choose the fastest of several candidates."""
