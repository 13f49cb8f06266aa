#pragma once

#include <pybind11/pybind11.h>

/// Adds to the module what records a process's work on a GPU, where it is built with CUDA.
void bind_trace(pybind11::module_& module);
