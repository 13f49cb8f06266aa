"""Describe convolutions, report the kernels that PyTorch runs for them, and compare their times."""
