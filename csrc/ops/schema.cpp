#include <torch/library.h>

// Every op's schema. Argument order and defaults are those of the native op of the same name, where
// there is one.
TORCH_LIBRARY(convtime, library) {
  library.set_python_module("convtime.ops.fakes");  // where the fake kernels are
  library.def(
      "conv1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=1, "
      "SymInt[1] padding=0, SymInt[1] dilation=1, SymInt groups=1, *, str? policy=None) -> Tensor");
  library.def(
      "conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, "
      "SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1, *, str? policy=None) -> Tensor");
  library.def(
      "conv3d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=1, "
      "SymInt[3] padding=0, SymInt[3] dilation=1, SymInt groups=1, *, str? policy=None) -> Tensor");
  library.def(
      "conv_transpose1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=1, "
      "SymInt[1] padding=0, SymInt[1] output_padding=0, SymInt groups=1, SymInt[1] dilation=1, *, "
      "str? policy=None) -> Tensor");
  library.def(
      "conv_transpose2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, "
      "SymInt[2] padding=0, SymInt[2] output_padding=0, SymInt groups=1, SymInt[2] dilation=1, *, "
      "str? policy=None) -> Tensor");
  library.def(
      "conv_transpose3d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=1, "
      "SymInt[3] padding=0, SymInt[3] output_padding=0, SymInt groups=1, SymInt[3] dilation=1, *, "
      "str? policy=None) -> Tensor");
  // As aten::convolution_backward, whose bias_sizes follow from the weight.
  library.def(
      "convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[] stride, "
      "SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, "
      "SymInt groups, bool[3] output_mask, *, str? policy=None) -> (Tensor, Tensor, Tensor)");

  // The building blocks of timing, on the current CUDA device and stream. Stamps are of int64.
  library.def("spin_ns(int nanoseconds, int blocks=1, int threads=1) -> Tensor");
  library.def("sleep_cycles(int cycles) -> ()");
  library.def("flush_l2() -> ()");
  library.def("read_clocks() -> Tensor");
  library.def("copy_stamped(Tensor input) -> (Tensor, Tensor)");
}
