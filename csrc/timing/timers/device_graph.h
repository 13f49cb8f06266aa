#pragma once

#include <functional>
#include <memory>

namespace convtime {

/// Device work that was recorded once and can be replayed as a whole.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  /// Issue the work to the caller's stream.
  virtual void replay() = 0;
};

/// Records the work that a function issues to the given cudaStream_t instead of running it. The
/// recorder's owner provides the allocator, because memory that the recorded work uses must stay
/// allocated. Throws if the function does something that cannot be recorded, and any exception of
/// the function.
using GraphRecorder =
    std::function<std::unique_ptr<DeviceGraph>(const std::function<void(void* stream)>&)>;

}  // namespace convtime
