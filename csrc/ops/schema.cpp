#include <torch/library.h>

#include <string>

#include "ops/conv/convolutions.h"

namespace convtime::ops {
namespace {

/// Argument order and defaults are those of the native op of the same name.
std::string schema_of(const ConvOp& op) {
  const std::string numbers = "SymInt[" + std::to_string(op.spatial) + "] ";
  std::string schema = std::string(op.name) + "(Tensor input, Tensor weight, Tensor? bias=None, " +
                       numbers + "stride=1, " + numbers + "padding=0, ";
  schema += op.transposed ? numbers + "output_padding=0, SymInt groups=1, " + numbers + "dilation=1"
                          : numbers + "dilation=1, SymInt groups=1";
  return schema + ", *, str? policy=None) -> Tensor";
}

}  // namespace

TORCH_LIBRARY(convtime, library) {
  library.set_python_module("convtime.ops.fakes");  // module with the fake kernels
  for (const auto& ops : {kConv, kConvTranspose}) {
    for (const ConvOp& op : ops) {
      library.def(schema_of(op).c_str());
    }
  }
  // Like aten::convolution_backward, except bias_sizes, which follows from the weight.
  library.def(
      "convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[] stride, "
      "SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, "
      "SymInt groups, bool[3] output_mask, *, str? policy=None) -> (Tensor, Tensor, Tensor)");

  // activation(conv(input, weight) + alpha * other + bias); other has the output's shape.
  library.def(
      "convolution_epilogue(Tensor input, Tensor weight, Tensor? bias, Tensor? other, "
      "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, str activation, "
      "float alpha=1, float negative_slope=0.01, *, str? policy=None) -> Tensor");

  // Like aten::max_pool2d of the input's ReLU. The gradient and the indices are computed from the
  // winners; kernels/relu_max_pool2d/relu_max_pool2d.h defines them.
  const std::string window =
      "int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, "
      "bool ceil_mode=False)";
  library.def(("relu_max_pool2d(Tensor input, " + window + " -> Tensor").c_str());
  library.def(
      ("relu_max_pool2d_with_winners(Tensor input, " + window + " -> (Tensor, Tensor)").c_str());
  library.def(
      ("relu_max_pool2d_backward(Tensor grad_output, Tensor winners, SymInt[] input_size, " +
       window + " -> Tensor")
          .c_str());
  library.def(
      ("relu_max_pool2d_indices(Tensor winners, SymInt[] input_size, " + window + " -> Tensor")
          .c_str());

  // Nets whose weights are one tensor (layers, width, width), or (layers, width + 1, width) with
  // biases in the last row. kernels/mlp/mlp.h defines which part is used, and the state of
  // training.
  library.def("mlp(Tensor input, Tensor weights, int outputs, str activation) -> Tensor");
  library.def(
      "mlp_backward(Tensor grad_output, Tensor input, Tensor weights, str activation) "
      "-> (Tensor, Tensor)");
  library.def(
      "mlp_steps(Tensor inputs, Tensor targets, Tensor(a!) weights, Tensor(b!)? master, "
      "Tensor(c!)? first, Tensor(d!)? second, Tensor(e!) counters, Tensor(f!) rates, "
      "Tensor(g!) losses, Tensor(h!) scratch, *, int batch, int outputs, str activation, "
      "str loss, str optimizer, float momentum, float beta2, float epsilon, float weight_decay, "
      "bool scaled, int growth_interval, bool tf32=False, bool tuned=False, "
      "int plan=0, int steps=1) -> ()");
  // Which kernels run training steps of a net, and why; the size of their scratch memory; and
  // descriptions of the ways to divide an on-chip step, into which `plan` is an index.
  library.def(
      "mlp_path(Tensor weights, int inputs, int outputs, int batch, str activation, bool tf32) "
      "-> (str path, str reason, int scratch_bytes, str[] plans)");

  // The building blocks of timing, on the current CUDA device and stream. Stamps have dtype int64.
  library.def("spin_ns(int nanoseconds, int blocks=1, int threads=1) -> Tensor");
  library.def("sleep_cycles(int cycles) -> ()");
  library.def("flush_l2(bool clean=False) -> ()");
  library.def("read_clocks() -> Tensor");
  library.def("copy_stamped(Tensor input) -> (Tensor, Tensor)");
}

}  // namespace convtime::ops
