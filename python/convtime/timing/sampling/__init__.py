"""Prepare calls for the sampler in C++: tensors, cache, placement, pages, device and clocks."""
