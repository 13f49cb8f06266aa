"""The machine: which device is meant, what NVML says of it, its clocks and its state."""
