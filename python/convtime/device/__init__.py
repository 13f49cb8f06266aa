"""The machine: device selection, NVML queries, clocks and system state."""
