#include <torch/library.h>

// Every op's schema. Argument order and defaults are those of the native op of the same name.
TORCH_LIBRARY(convtime, library) {
  library.set_python_module("convtime.ops");  // where the fake kernels are
  library.def(
      "conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, "
      "SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1) -> Tensor");
}
