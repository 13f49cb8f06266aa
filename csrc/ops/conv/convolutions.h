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
  std::size_t spatial;  ///< number of spatial dimensions
  bool transposed;
};

inline constexpr std::array<ConvOp, 3> kConv = {
    {{"conv1d", 1, false}, {"conv2d", 2, false}, {"conv3d", 3, false}}};
inline constexpr std::array<ConvOp, 3> kConvTranspose = {
    {{"conv_transpose1d", 1, true}, {"conv_transpose2d", 2, true}, {"conv_transpose3d", 3, true}}};

/// The arguments of a call, as references.
struct ConvCall {
  const ConvOp& op;
  const at::Tensor& input;
  const at::Tensor& weight;
  const std::optional<at::Tensor>& bias;
  c10::SymIntArrayRef stride;
  c10::SymIntArrayRef padding;
  c10::SymIntArrayRef output_padding;  ///< empty if the op is not transposed
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

inline bool is_defined(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && tensor->defined();
}

/// Call the op through the dispatcher.
CONVTIME_API at::Tensor dispatch(const ConvCall& call);

/// The implementation of a call for one dispatch key.
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

/// Register the implementation for all six.
template <ConvImpl* kImpl>
void implement(torch::Library& library) {
  library.impl(kConv[0].name, conv_kernel<kImpl, kConv[0]>);
  library.impl(kConv[1].name, conv_kernel<kImpl, kConv[1]>);
  library.impl(kConv[2].name, conv_kernel<kImpl, kConv[2]>);
  library.impl(kConvTranspose[0].name, conv_transpose_kernel<kImpl, kConvTranspose[0]>);
  library.impl(kConvTranspose[1].name, conv_transpose_kernel<kImpl, kConvTranspose[1]>);
  library.impl(kConvTranspose[2].name, conv_transpose_kernel<kImpl, kConvTranspose[2]>);
}

/// Check that a tensor has the input's dtype and device.
void check_alike(const ConvOp& op, const char* name, const at::Tensor& tensor,
                 const at::Tensor& input);

/// A convolution's parameters, with one value per spatial dimension.
struct ConvParams {
  using Numbers = c10::SmallVector<std::int64_t, 3>;

  Numbers stride;
  Numbers padding;
  Numbers dilation;
  Numbers output_padding;  ///< zeros if the op is not transposed
  std::int64_t groups = 1;
  bool transposed = false;
};

/// A checked call in the form in which it is computed: batched, with two or more spatial
/// dimensions.
struct PreparedConv {
  const ConvOp& op;
  at::Tensor input;
  at::Tensor weight;
  ConvParams params;
  at::DimVector output_size;  ///< spatial dimensions of the op, before dimensions were added
  bool batched;               ///< whether the caller's tensors are batched

  bool has_output() const;

  /// Return whether the call uses our own cuDNN plans.
  bool has_plans(const std::optional<at::Tensor>& bias) const;

  /// Return the output size for the caller's tensors.
  at::IntArrayRef callers_output_size() const;

  /// Convert a tensor of the caller's output shape to the shape used for the computation.
  at::Tensor as_output(const at::Tensor& tensor) const;

  /// Inverse of as_output().
  at::Tensor as_caller_has_it(const at::Tensor& y) const;
};

/// Check the arguments; throws if they do not fit together. The caller parses the policy.
PreparedConv prepare(const ConvCall& call);

/// Compute the convolution with the backend that PyTorch would use.
at::Tensor compute(const PreparedConv& conv, const std::optional<at::Tensor>& bias,
                   const PolicyRequest& policy);

#ifdef CONVTIME_WITH_CUDA
// Convolutions with our own cuDNN plans, where PyTorch would use cuDNN: two or three spatial
// dimensions. Operands and results have PyTorch's layouts, and the policies "heuristic" and
// "benchmark" select PyTorch's plans. `op` is the prefix of error messages.

/// Compute the convolution of input and weight, without the bias.
at::Tensor cudnn_forward(const char* op, const at::Tensor& input, const at::Tensor& weight,
                         const ConvParams& params, const PolicyRequest& policy);

/// The operands of the epilogue in a cuDNN graph.
struct EpilogueOperands {
  const std::optional<at::Tensor>& bias;
  const std::optional<at::Tensor>& other;
  double alpha;  ///< factor of other
  ActivationCall activation;
};

/// Compute the convolution with its epilogue in one cuDNN graph. If no engine runs that, with a
/// warning the first time, or if plans are timed and this is faster, a kernel of ours computes the
/// epilogue after the convolution.
at::Tensor cudnn_epilogue(const char* op, const at::Tensor& input, const at::Tensor& weight,
                          const ConvParams& params, const EpilogueOperands& epilogue,
                          const PolicyRequest& policy);

/// Apply the whole epilogue in place, in one kernel.
void cuda_apply_epilogue(const at::Tensor& y, const EpilogueOperands& epilogue);

/// Add one value per channel to y, as PyTorch does after its plans.
void cuda_add_bias(at::Tensor& y, const at::Tensor& bias);

/// Compute the gradients of input and weight; gradients that are not requested are undefined.
std::tuple<at::Tensor, at::Tensor> cudnn_backward(const char* op, const at::Tensor& grad_output,
                                                  const at::Tensor& input, const at::Tensor& weight,
                                                  const ConvParams& params,
                                                  std::array<bool, 2> wanted,
                                                  const PolicyRequest& policy);

/// Return whether the process has stored plans.
bool cudnn_has_stored_plans();

// With stored plans, cuDNN computes what PyTorch's own kernels would: depthwise convolutions.

/// Return what cudnn_forward() does; undefined without a stored plan that can be used.
at::Tensor cudnn_stored_forward(const char* op, const at::Tensor& input, const at::Tensor& weight,
                                const ConvParams& params);

/// Return those of the requested gradients of cudnn_backward() that have a stored plan.
std::tuple<at::Tensor, at::Tensor> cudnn_stored_backward(
    const char* op, const at::Tensor& grad_output, const at::Tensor& input,
    const at::Tensor& weight, const ConvParams& params, std::array<bool, 2> wanted);

/// Return a function that only executes cuDNN's ready plan for y = conv(x, w), and adds the bias if
/// given. It uses the stream that is current now and is only for this thread; no convolution has a
/// lower host cost. Throws c10::Error if input and weight would have to be copied first.
CONVTIME_API std::function<void()> cudnn_execute_only(const at::Tensor& x, const at::Tensor& w,
                                                      const std::optional<at::Tensor>& bias,
                                                      const ConvParams& params);
#endif

}  // namespace convtime::ops
