#pragma once

#include <cstdint>
#include <functional>

namespace convtime {

/// The hooks by which the sampler cooperates with its host program.
struct HostHooks {
  /// Run a blocking function; a hook can release locks that other host threads need. The function
  /// does not call this hook again.
  std::function<void(const std::function<void()>&)> wait = [](const auto& blocking) { blocking(); };
  /// Called within wait(), before an unbounded wait for the device; throws DeadlineError if the
  /// device is not idle in time. Returns when it was idle, in now_nanoseconds(). Empty if there is
  /// no limit.
  std::function<std::int64_t()> await_device{};
  /// Call await_device(), and then a function that waits for the device, within one wait().
  void wait_for_device(const std::function<void()>& blocking) const {
    wait([&] {
      if (await_device) {
        await_device();
      }
      blocking();
    });
  }
  /// Called between batches; may throw to end the sampling.
  std::function<void()> poll = [] {};
};

}  // namespace convtime
