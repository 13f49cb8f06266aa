#pragma once

#include <memory>

namespace convtime {

/// Owns one handle of a C library (an event, a descriptor) and releases it exactly once. `Traits`
/// provides `Handle`, a pointer, and `static void release(Handle) noexcept`.
template <typename Traits>
struct ReleaseHandle {
  using pointer = typename Traits::Handle;
  void operator()(pointer handle) const noexcept { Traits::release(handle); }
};
template <typename Traits>
using UniqueHandle = std::unique_ptr<Traits, ReleaseHandle<Traits>>;

}  // namespace convtime
