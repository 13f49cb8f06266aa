#pragma once

#include <pybind11/pybind11.h>

/// Register the hardware-counter bindings; registers nothing in a build without CUDA.
void bind_counters(pybind11::module_& module);
