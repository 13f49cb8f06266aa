#pragma once

#include <functional>
#include <memory>

namespace convtime {

/// Work of a device that was recorded once and can be issued again as a whole.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  /// Issues it to the caller's stream.
  virtual void replay() = 0;
};

/// Records what a function issues to the cudaStream_t that it is given, instead of running it. Who
/// allocates the memory that the recorded work uses supplies it, since it must stay theirs.
/// Throws where the function does something that cannot be recorded, and what the function throws.
using GraphRecorder =
    std::function<std::unique_ptr<DeviceGraph>(const std::function<void(void* stream)>&)>;

}  // namespace convtime
