#pragma once

struct PyMethodDef;

namespace convtime::ops {

/// conv2d(input, weight, bias, stride, padding, dilation, groups, policy) for Python, all by
/// position: straight onto the dispatcher, which torch.ops reaches by a slower way. It returns
/// NotImplemented for arguments that are not plain (subclasses, symbolic numbers, wrong types),
/// and under a torch function mode; torch.ops is for those.
PyMethodDef& conv2d_method();

}  // namespace convtime::ops
