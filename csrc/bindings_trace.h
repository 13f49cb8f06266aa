#pragma once

#include <pybind11/pybind11.h>

/// Add the bindings that record a process's GPU work, in builds with CUDA.
void bind_trace(pybind11::module_& module);
