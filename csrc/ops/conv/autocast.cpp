#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <optional>

#include "ops/conv/convolutions.h"

namespace convtime::ops {
namespace {

/// Under torch.autocast, in the dtype that it sets for convolutions: PyTorch's own do so.
template <c10::DeviceType kDevice>
at::Tensor autocast(const ConvCall& call) {
  const c10::impl::ExcludeDispatchKeyGuard guard(
      at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(kDevice);
  const auto cast = [&](const at::Tensor& tensor) {
    return at::autocast::cached_cast(dtype, tensor, kDevice);
  };
  const at::Tensor input = cast(call.input);
  const at::Tensor weight = cast(call.weight);
  const std::optional<at::Tensor> bias =
      call.bias.has_value() ? std::optional(cast(*call.bias)) : std::nullopt;
  return dispatch({call.op, input, weight, bias, call.stride, call.padding, call.output_padding,
                   call.dilation, call.groups, call.policy});
}

}  // namespace

TORCH_LIBRARY_IMPL(convtime, AutocastCPU, library) {
  implement<autocast<c10::DeviceType::CPU>>(library);
}
TORCH_LIBRARY_IMPL(convtime, AutocastCUDA, library) {
  implement<autocast<c10::DeviceType::CUDA>>(library);
}

}  // namespace convtime::ops
