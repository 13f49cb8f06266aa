"""Time PyTorch's convolution layers, and models with them, against convtime's."""
