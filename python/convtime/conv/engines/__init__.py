"""All engines of cuDNN for a convolution."""
