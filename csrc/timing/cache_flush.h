#pragma once

#include <cstddef>

#include "core/export.h"
#include "timing/callable.h"

namespace convtime {

/// Memory that evicts everything else from a device's L2 cache when it is written. The caller owns
/// it, and it must lie on the current device.
struct FlushBuffer {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// Bytes that a FlushBuffer needs on the current device: four times its L2 cache, which is enough
/// for any replacement policy to have dropped what was there.
CONVTIME_API std::size_t flush_buffer_bytes();

/// A Callable that finds nothing of its data in the L2 cache: before each call, and outside of what
/// is timed, the flush buffer is written on the stream.
class CONVTIME_API ColdCallable final : public Callable {
 public:
  /// `stream` is a cudaStream_t, the one that the callable issues its work to.
  ColdCallable(Callable& callable, FlushBuffer buffer, void* stream)
      : callable_(callable), buffer_(buffer), stream_(stream) {}

  void prepare() override;
  void call() override { callable_.call(); }
  void discard_result() override { callable_.discard_result(); }

 private:
  Callable& callable_;
  FlushBuffer buffer_;
  void* stream_;
};

}  // namespace convtime
