#pragma once

#include <ATen/autocast_mode.h>

#include <optional>

namespace convtime::ops {

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

}  // namespace convtime::ops
