#pragma once

#include <pybind11/pybind11.h>

#include <span>

#ifdef CONVTIME_WITH_CUDA
#include "conv/problem.h"
#endif

namespace convtime::ops {

/// The six convolutions and the three with an epilogue, for Python. They have the arguments of
/// convtime.ops' functions, all positional, and call the dispatcher directly, which is faster than
/// torch.ops. They return NotImplemented for arguments that are not plain (subclasses, symbolic
/// numbers, wrong types), and under a torch function mode other than torch.set_default_device's.
/// Use torch.ops in these cases.
std::span<PyMethodDef> convolution_methods();

/// Give the autograd nodes of convolutions the Python classes of torch's nodes that they derive
/// from. Their attributes, such as _saved_input, are thereby torch's.
void register_node_types();

/// call_op(op, *args, **kwargs): call the torch.ops op and return its result. Warnings become
/// Python warnings in every torch version; in torch 2.11, torch.ops writes them to stderr.
PyMethodDef& call_op_method();

#ifdef CONVTIME_WITH_CUDA
/// execute_floor(input, weight, bias, stride, padding, dilation, groups): return a function without
/// arguments that only executes the convolution's cuDNN plan, and adds the bias if given (see
/// cudnn_execute_only).
PyMethodDef& execute_floor_method();

/// Define EnginePass, whose methods are documented in _C.pyi.
void bind_engine_pass(pybind11::module_& module);

/// Return a problem with the names of convtime.conv.PlanChoice.
pybind11::dict to_dict(const conv::Problem& problem);

/// Inverse of to_dict(). Throws std::invalid_argument for a value that no problem has, and
/// pybind11's errors for a missing name or another type.
conv::Problem problem_of(const pybind11::dict& dict);
#endif

}  // namespace convtime::ops
