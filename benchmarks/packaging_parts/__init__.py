"""The parts of packaging_benchmark.py: installing, and the first use of kernels."""
