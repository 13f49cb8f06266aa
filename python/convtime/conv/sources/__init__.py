"""Where convolution layers come from."""
