"""Compare two interpreters, with two versions of torch or cuDNN, layer by layer."""
