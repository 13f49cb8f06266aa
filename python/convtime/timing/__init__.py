"""The stopwatch: prepares candidates and devices for the sampler in C++."""
