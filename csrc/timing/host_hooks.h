#pragma once

#include <functional>

namespace convtime {

/// What the sampler owes to the program around it.
struct HostHooks {
  /// Runs something that blocks; a place to let go of locks that other host threads need. What it
  /// runs does not wait through it again.
  std::function<void(const std::function<void()>&)> wait = [](const auto& blocking) { blocking(); };
  /// Called within wait(), before what waits for the device without end; throws DeadlineError where
  /// the device is not idle in time. Waits for nothing where there is no limit.
  std::function<void()> await_device = [] {};
  /// Called between batches; may throw to end the sampling.
  std::function<void()> poll = [] {};
};

}  // namespace convtime
