"""What was measured, as data, and what follows from it by reckoning: nothing here uses a device."""
