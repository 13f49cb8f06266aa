#pragma once

#include <span>

struct PyMethodDef;

namespace convtime::ops {

/// The six convolutions for Python, and the three with what follows them, with the arguments of
/// convtime.ops' functions, all by position: straight onto the dispatcher, which torch.ops reaches
/// by a slower way. They return NotImplemented for arguments that are not plain (subclasses,
/// symbolic numbers, wrong types), and under a torch function mode other than
/// torch.set_default_device's; torch.ops is for those.
std::span<PyMethodDef> convolution_methods();

/// call_op(op, *args, **kwargs): what the op of torch.ops returns. Its warnings are Python's,
/// whatever torch this is: where torch.ops is called in torch 2.11, C++ writes them on stderr.
PyMethodDef& call_op_method();

#ifdef CONVTIME_WITH_CUDA
/// execute_floor(input, weight, bias, stride, padding, dilation, groups): a function without
/// arguments that does nothing but have cuDNN execute the convolution's plan, and add the bias
/// where there is one (see cudnn_execute_only).
PyMethodDef& execute_floor_method();
#endif

}  // namespace convtime::ops
