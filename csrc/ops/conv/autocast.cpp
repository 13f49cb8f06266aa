#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <optional>

#include "ops/conv/convolutions.h"
#include "ops/conv/epilogue.h"

namespace convtime::ops {
namespace {

/// Casts a call's tensors as torch.autocast casts those of PyTorch's convolutions. Autocast is
/// disabled during its lifetime.
class AutocastCast {
 public:
  explicit AutocastCast(c10::DeviceType device)
      : device_(device),
        dtype_(at::autocast::get_autocast_dtype(device)),
        guard_(at::autocast::get_autocast_dispatch_key_from_device_type(device)) {}

  at::Tensor operator()(const at::Tensor& tensor) const {
    return at::autocast::cached_cast(dtype_, tensor, device_);
  }

  std::optional<at::Tensor> operator()(const std::optional<at::Tensor>& tensor) const {
    return tensor.has_value() ? std::optional((*this)(*tensor)) : std::nullopt;
  }

 private:
  c10::DeviceType device_;
  at::ScalarType dtype_;
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

template <c10::DeviceType kDevice>
at::Tensor autocast(const ConvCall& call) {
  const AutocastCast cast(kDevice);
  const at::Tensor input = cast(call.input);
  const at::Tensor weight = cast(call.weight);
  const std::optional<at::Tensor> bias = cast(call.bias);
  return dispatch({call.op, input, weight, bias, call.stride, call.padding, call.output_padding,
                   call.dilation, call.groups, call.policy});
}

template <c10::DeviceType kDevice>
at::Tensor autocast_epilogue(const EpilogueCall& call) {
  const AutocastCast cast(kDevice);
  const at::Tensor input = cast(call.input);
  const at::Tensor weight = cast(call.weight);
  const std::optional<at::Tensor> bias = cast(call.bias);
  const std::optional<at::Tensor> other = cast(call.other);
  return dispatch({input, weight, bias, other, call.stride, call.padding, call.dilation,
                   call.groups, call.activation, call.alpha, call.negative_slope, call.policy});
}

template <c10::DeviceType kDevice>
void implement_autocast(torch::Library& library) {
  implement<autocast<kDevice>>(library);
  library.impl("convolution_epilogue", kernel<autocast_epilogue<kDevice>>);
}

}  // namespace

TORCH_LIBRARY_IMPL(convtime, AutocastCPU, library) {
  implement_autocast<c10::DeviceType::CPU>(library);
}
TORCH_LIBRARY_IMPL(convtime, AutocastCUDA, library) {
  implement_autocast<c10::DeviceType::CUDA>(library);
}

}  // namespace convtime::ops
