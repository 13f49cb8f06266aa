#include <torch/library.h>

// Every op's schema. Argument order and defaults are those of the native op of the same name, where
// there is one.
TORCH_LIBRARY(convtime, library) {
  library.set_python_module("convtime.ops");  // where the fake kernels are
  library.def(
      "conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, "
      "SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1, *, str? policy=None) -> Tensor");
  library.def(
      "conv2d_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[2] stride=1, "
      "SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1, "
      "bool[3] output_mask=[True, True, True], *, str? policy=None) -> (Tensor, Tensor, Tensor)");

  // The building blocks of timing, on the current CUDA device and stream. Stamps are of int64.
  library.def("spin_ns(int nanoseconds, int blocks=1, int threads=1) -> Tensor");
  library.def("sleep_cycles(int cycles) -> ()");
  library.def("flush_l2() -> ()");
  library.def("read_clocks() -> Tensor");
  library.def("copy_stamped(Tensor input) -> (Tensor, Tensor)");
}
