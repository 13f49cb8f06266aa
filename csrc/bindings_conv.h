#pragma once

#include <pybind11/pybind11.h>

/// Adds to the module what it has for convolutions.
void bind_conv(pybind11::module_& module);
