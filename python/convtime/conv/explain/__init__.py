"""Explain which kernels PyTorch and convtime run for a convolution, and why."""
