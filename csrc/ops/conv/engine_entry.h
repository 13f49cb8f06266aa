#pragma once

#include <pybind11/pybind11.h>

namespace convtime::ops {

/// Define EnginePass, whose methods are documented in _C.pyi.
void bind_engine_pass(pybind11::module_& module);

}  // namespace convtime::ops
