#include <torch/library.h>

#include <optional>

#include "ops/conv/autocast.h"
#include "ops/conv/convolutions.h"

namespace convtime::ops {
namespace {

/// Run under torch.autocast in its dtype for convolutions, like PyTorch's own convolutions.
template <c10::DeviceType kDevice>
at::Tensor autocast(const ConvCall& call) {
  const AutocastCast cast(kDevice);
  const at::Tensor input = cast(call.input);
  const at::Tensor weight = cast(call.weight);
  const std::optional<at::Tensor> bias = cast(call.bias);
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
