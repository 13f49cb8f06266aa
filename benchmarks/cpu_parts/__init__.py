"""Parts of the benchmark of work on the CPU."""
