#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/device_memory.h"
#include "core/export.h"

namespace convtime {

/// Times at which a device reached points in its work, by its own clock. A stamp is a tiny kernel
/// that appends to a list, so it can be captured in a graph and replayed.
class CONVTIME_API DeviceStamps {
 public:
  /// Supports at most `capacity` stamps between two take(), on `stream` or replayed there.
  DeviceStamps(cudaStream_t stream, std::size_t capacity, const DeviceAllocator& allocate);

  /// Enqueue an opening or a closing stamp. The opening stamp reads the clock at its end, the
  /// closing one at its start. An opening stamp ends at a random phase of the clock's tick, which
  /// makes the time to the closing stamp correct on average.
  void open(cudaStream_t stream);
  void close(cudaStream_t stream);

  /// Wait for the stream and return the stamps since the last take(), in nanoseconds.
  std::vector<std::uint64_t> take();

  double tick_seconds() const { return tick_seconds_; }

 private:
  void stamp(bool open, cudaStream_t stream);

  cudaStream_t stream_;
  std::size_t capacity_;
  double tick_seconds_;
  double open_cycles_;    ///< minimum duration of an opening stamp
  double random_cycles_;  ///< maximum random extension
  DeviceMemory<std::uint64_t> count_and_stamps_;
};

}  // namespace convtime
