"""What PyTorch runs for a convolution and why, next to what convtime runs for it."""
