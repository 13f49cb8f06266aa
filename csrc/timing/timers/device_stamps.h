#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/device_memory.h"
#include "core/export.h"

namespace convtime {

/// Times at which a device came to places in its work, by its own clock. A stamp is a tiny kernel
/// that appends to a list, so that it can be captured in a graph and replayed.
class CONVTIME_API DeviceStamps {
 public:
  /// Of at most `capacity` stamps between two take(), on `stream` or replayed there.
  DeviceStamps(cudaStream_t stream, std::size_t capacity, const DeviceAllocator& allocate);

  /// Stamps as the last thing, or as the first, that happens between what is enqueued around it. An
  /// opening stamp comes at a random phase of the clock's tick, so that the time to the closing one
  /// is right on average.
  void open(cudaStream_t stream);
  void close(cudaStream_t stream);

  /// Waits for the stream and gives its stamps since the last take(), in nanoseconds.
  std::vector<std::uint64_t> take();

  double tick_seconds() const { return tick_seconds_; }

 private:
  cudaStream_t stream_;
  std::size_t capacity_;
  double tick_seconds_;
  double open_cycles_;    ///< that an opening stamp takes at least
  double random_cycles_;  ///< up to which it takes longer
  DeviceMemory<std::uint64_t> count_and_stamps_;
};

}  // namespace convtime
