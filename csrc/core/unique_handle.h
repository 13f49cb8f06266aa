#pragma once

#include <utility>

namespace convtime {

/// Owns one handle of a C library (an event, a descriptor) and releases it exactly once. `Traits`
/// provides `Handle` and `static void release(Handle) noexcept`; a null handle is empty.
template <typename Traits>
class UniqueHandle {
 public:
  using Handle = typename Traits::Handle;

  UniqueHandle() = default;
  explicit UniqueHandle(Handle handle) : handle_(handle) {}
  ~UniqueHandle() { reset(); }

  UniqueHandle(UniqueHandle&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, Handle{});
    }
    return *this;
  }
  UniqueHandle(const UniqueHandle&) = delete;
  UniqueHandle& operator=(const UniqueHandle&) = delete;

  Handle get() const { return handle_; }

 private:
  void reset() noexcept {
    if (handle_ != Handle{}) {
      Traits::release(std::exchange(handle_, Handle{}));
    }
  }

  Handle handle_{};
};

}  // namespace convtime
