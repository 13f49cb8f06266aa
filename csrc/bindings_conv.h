#pragma once

#include <pybind11/pybind11.h>

/// Add the convolution bindings to the module.
void bind_conv(pybind11::module_& module);
