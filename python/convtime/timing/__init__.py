"""The stopwatch: lays out what is timed, and where, for the sampler in C++."""
