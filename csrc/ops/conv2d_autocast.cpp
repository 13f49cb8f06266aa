#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <optional>

#include "ops/conv2d.h"

namespace convtime::ops {
namespace {

/// Under torch.autocast, in the dtype that it sets for convolutions: PyTorch's own conv2d does so.
template <c10::DeviceType kDevice>
at::Tensor conv2d_autocast(const at::Tensor& input, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                           c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                           c10::SymInt groups, std::optional<std::string_view> policy) {
  const c10::impl::ExcludeDispatchKeyGuard guard(
      at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(kDevice);
  const auto cast = [&](const at::Tensor& tensor) {
    return at::autocast::cached_cast(dtype, tensor, kDevice);
  };
  return conv2d_op().call(cast(input), cast(weight),
                          bias.has_value() ? std::optional(cast(*bias)) : std::nullopt, stride,
                          padding, dilation, groups, policy);
}

}  // namespace

TORCH_LIBRARY_IMPL(convtime, AutocastCPU, library) {
  library.impl("conv2d", conv2d_autocast<c10::DeviceType::CPU>);
}
TORCH_LIBRARY_IMPL(convtime, AutocastCUDA, library) {
  library.impl("conv2d", conv2d_autocast<c10::DeviceType::CUDA>);
}

}  // namespace convtime::ops
