"""Parts of the benchmark of calls on the CPU."""
