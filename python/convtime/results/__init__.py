"""Measured results as data, and values computed from them; nothing here uses a device."""
