#pragma once

#include <cstddef>
#include <span>

#include "core/export.h"
#include "timing/callable.h"

namespace convtime {

/// What a flush leaves in the L2 cache in place of what was there.
enum class L2Lines {
  kDirty,  ///< written by it, and to be written back to memory while others take their place
  kClean,  ///< read by it: whoever takes their place writes nothing back
};

/// Memory that evicts everything else from its device's L2 cache when all of it is touched. The
/// caller owns it.
struct FlushBuffer {
  void* data = nullptr;
  std::size_t bytes = 0;
  int device = 0;
  void* stream = nullptr;  ///< cudaStream_t of the device, the one that work is issued to
  L2Lines leaves = L2Lines::kDirty;
};

/// Bytes that a FlushBuffer needs on a device: twice its L2 cache to have dropped what was there
/// (times on an H200 are the same after one to eight times as much), four times to have written
/// back what of it was dirty.
CONVTIME_API std::size_t flush_buffer_bytes(int device, L2Lines leaves = L2Lines::kDirty);

/// Writes the buffer or reads it, by what it is to leave, on `stream`.
CONVTIME_API void flush(const FlushBuffer& buffer, void* stream);

/// A Callable that finds nothing of its data in the L2 caches: before each call, and outside of
/// what is timed, the flush buffers are touched, each on its stream.
class CONVTIME_API ColdCallable final : public Callable {
 public:
  ColdCallable(Callable& callable, std::span<const FlushBuffer> buffers)
      : callable_(callable), buffers_(buffers) {}

  void prepare() override;
  bool prepares_work() const override { return callable_.prepares_work(); }
  void call() override { callable_.call(); }
  void discard_result() override { callable_.discard_result(); }
  void settle() override { callable_.settle(); }
  std::size_t distinct_calls() const override { return callable_.distinct_calls(); }
  std::size_t place() const override { return callable_.place(); }

 private:
  Callable& callable_;
  std::span<const FlushBuffer> buffers_;
};

}  // namespace convtime
