#pragma once

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <tuple>

#include "core/export.h"
#include "ops/conv/activation.h"
#include "ops/conv/policy_request.h"

namespace convtime::ops {

/// One of the six convolutions.
struct ConvOp {
  const char* name;
  std::size_t spatial;  ///< how many spatial dimensions
  bool transposed;
};

inline constexpr std::array<ConvOp, 3> kConv = {
    {{"conv1d", 1, false}, {"conv2d", 2, false}, {"conv3d", 3, false}}};
inline constexpr std::array<ConvOp, 3> kConvTranspose = {
    {{"conv_transpose1d", 1, true}, {"conv_transpose2d", 2, true}, {"conv_transpose3d", 3, true}}};

/// The arguments of a call. It borrows them all.
struct ConvCall {
  const ConvOp& op;
  const at::Tensor& input;
  const at::Tensor& weight;
  const std::optional<at::Tensor>& bias;
  c10::SymIntArrayRef stride;
  c10::SymIntArrayRef padding;
  c10::SymIntArrayRef output_padding;  ///< empty where the op is not transposed
  c10::SymIntArrayRef dilation;
  const c10::SymInt& groups;
  std::optional<std::string_view> policy;
};

using ConvSignature = at::Tensor(const at::Tensor&, const at::Tensor&,
                                 const std::optional<at::Tensor>&, c10::SymIntArrayRef,
                                 c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt,
                                 std::optional<std::string_view>);
using ConvTransposeSignature = at::Tensor(const at::Tensor&, const at::Tensor&,
                                          const std::optional<at::Tensor>&, c10::SymIntArrayRef,
                                          c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt,
                                          c10::SymIntArrayRef, std::optional<std::string_view>);
using ConvBackwardSignature = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef,
    c10::SymIntArrayRef, c10::SymIntArrayRef, bool, c10::SymIntArrayRef, c10::SymInt,
    std::array<bool, 3>, std::optional<std::string_view>);

inline bool is_defined(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && tensor->defined();
}

/// Calls the op through the dispatcher.
CONVTIME_API at::Tensor dispatch(const ConvCall& call);

/// The dispatcher's handle of convtime::convolution_backward, the gradients of all six.
const c10::TypedOperatorHandle<ConvBackwardSignature>& convolution_backward_op();

/// A call's implementation, for one of the dispatcher's keys.
using ConvImpl = at::Tensor(const ConvCall&);

template <ConvImpl* kImpl, const ConvOp& kOp>
at::Tensor conv_kernel(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                       c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       c10::SymInt groups, std::optional<std::string_view> policy) {
  return kImpl(
      {kOp, input, weight, bias, stride, padding, /*output_padding=*/{}, dilation, groups, policy});
}

template <ConvImpl* kImpl, const ConvOp& kOp>
at::Tensor conv_transpose_kernel(const at::Tensor& input, const at::Tensor& weight,
                                 const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                                 c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                                 c10::SymInt groups, c10::SymIntArrayRef dilation,
                                 std::optional<std::string_view> policy) {
  return kImpl(
      {kOp, input, weight, bias, stride, padding, output_padding, dilation, groups, policy});
}

/// Registers it for all six.
template <ConvImpl* kImpl>
void implement(torch::Library& library) {
  library.impl(kConv[0].name, conv_kernel<kImpl, kConv[0]>);
  library.impl(kConv[1].name, conv_kernel<kImpl, kConv[1]>);
  library.impl(kConv[2].name, conv_kernel<kImpl, kConv[2]>);
  library.impl(kConvTranspose[0].name, conv_transpose_kernel<kImpl, kConvTranspose[0]>);
  library.impl(kConvTranspose[1].name, conv_transpose_kernel<kImpl, kConvTranspose[1]>);
  library.impl(kConvTranspose[2].name, conv_transpose_kernel<kImpl, kConvTranspose[2]>);
}

/// A convolution's numbers, one for each spatial dimension.
struct ConvParams {
  using Numbers = c10::SmallVector<std::int64_t, 3>;

  Numbers stride;
  Numbers padding;
  Numbers dilation;
  Numbers output_padding;  ///< zeros where it is not transposed
  std::int64_t groups = 1;
  bool transposed = false;
};

/// A call that is checked, as it is computed: with a batch, and two spatial dimensions or more.
struct PreparedConv {
  const ConvOp& op;
  at::Tensor input;
  at::Tensor weight;
  ConvParams params;
  at::DimVector output_size;  ///< of the op's own spatial dimensions
  bool batched;               ///< whether the caller's tensors are

  bool has_output() const;

  /// Whether it is for our own plans of cuDNN.
  bool has_plans(const std::optional<at::Tensor>& bias) const;

  /// Of the caller's tensors.
  at::IntArrayRef callers_output_size() const;

  /// A tensor of the output's shape as the caller has it, as it is computed with.
  at::Tensor as_output(const at::Tensor& tensor) const;

  /// Reverses as_output.
  at::Tensor as_caller_has_it(const at::Tensor& y) const;
};

/// Throws for arguments that do not fit together. The policy is the caller's to read.
PreparedConv prepare(const ConvCall& call);

/// The convolution, with what PyTorch computes it with.
at::Tensor compute(const PreparedConv& conv, const std::optional<at::Tensor>& bias,
                   const PolicyRequest& policy);

#ifdef CONVTIME_WITH_CUDA
// By our own cuDNN plans, for what PyTorch would give to cuDNN: two or three spatial dimensions.
// The layouts of operands and results are PyTorch's, and so are the plans under the policies
// "heuristic" and "benchmark". `op` is what errors begin with.

/// The convolution of input and weight, less the bias.
at::Tensor cudnn_forward(const char* op, const at::Tensor& input, const at::Tensor& weight,
                         const ConvParams& params, const PolicyRequest& policy);

/// What follows a convolution in one graph of cuDNN's.
struct EpilogueOperands {
  const std::optional<at::Tensor>& bias;
  const std::optional<at::Tensor>& other;
  double alpha;  ///< that other is multiplied by
  ActivationCall activation;
};

/// The convolution and what follows it: by one graph of cuDNN's or, with a warning the first time,
/// by cuda_apply_epilogue where none of its engines runs that.
at::Tensor cudnn_epilogue(const char* op, const at::Tensor& input, const at::Tensor& weight,
                          const ConvParams& params, const EpilogueOperands& epilogue,
                          const PolicyRequest& policy);

/// All that follows a convolution, by one kernel and in place.
void cuda_apply_epilogue(const at::Tensor& y, const EpilogueOperands& epilogue);

/// Adds one number for each channel to y, as PyTorch does after its plans.
void cuda_add_bias(at::Tensor& y, const at::Tensor& bias);

/// The gradients of input and weight; those that are not wanted are undefined.
std::tuple<at::Tensor, at::Tensor> cudnn_backward(const char* op, const at::Tensor& grad_output,
                                                  const at::Tensor& input, const at::Tensor& weight,
                                                  const ConvParams& params,
                                                  std::array<bool, 2> wanted,
                                                  const PolicyRequest& policy);

/// A call that only has cuDNN execute the ready plan of y = conv(x, w), and adds the bias where
/// there is one, on the stream that is current now and for this thread: no convolution costs the
/// host less. Throws c10::Error where input and weight would have to be copied first.
CONVTIME_API std::function<void()> cudnn_execute_only(const at::Tensor& x, const at::Tensor& w,
                                                      const std::optional<at::Tensor>& bias,
                                                      const ConvParams& params);
#endif

}  // namespace convtime::ops
