"""Sources of convolution layers."""
