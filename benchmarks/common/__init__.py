"""What several benchmarks share: running cases, the truth about a GPU, other tools, operations."""
