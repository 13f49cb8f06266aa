#pragma once

#include <pybind11/pybind11.h>

/// Registers what reads hardware counters; nothing in a build without CUDA.
void bind_counters(pybind11::module_& module);
