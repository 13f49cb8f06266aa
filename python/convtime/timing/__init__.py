"""Time one operation, or compare several: `time_op`, `compare` and their results."""
