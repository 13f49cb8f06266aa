#pragma once

#include <cstddef>
#include <span>

#include "core/export.h"
#include "timing/callable.h"

namespace convtime {

/// The lines with which a flush replaces the contents of the L2 cache.
enum class L2Lines {
  kDirty,  ///< written by the flush, and written back to memory as others replace them
  kClean,  ///< read by the flush: replacing them causes no write-back
};

/// Memory that evicts all other data from its device's L2 cache when the whole buffer is accessed.
/// The caller owns it.
struct FlushBuffer {
  void* data = nullptr;
  std::size_t bytes = 0;
  int device = 0;
  void* stream = nullptr;  ///< cudaStream_t of the device, to which work is issued
  L2Lines leaves = L2Lines::kDirty;
};

/// Return the size that a FlushBuffer needs on a device: twice the L2 cache to evict its contents
/// (times on an H200 are the same with one to eight times the size), and four times to also write
/// back dirty lines.
CONVTIME_API std::size_t flush_buffer_bytes(int device, L2Lines leaves = L2Lines::kDirty);

/// Write the buffer or read it on `stream`, depending on the lines that it must leave.
CONVTIME_API void flush(const FlushBuffer& buffer, void* stream);

/// A Callable whose data is never in the L2 caches: before each call, and outside the timed region,
/// it flushes each buffer on its stream.
class CONVTIME_API ColdCallable final : public ForwardingCallable {
 public:
  ColdCallable(Callable& callable, std::span<const FlushBuffer> buffers)
      : ForwardingCallable(callable), buffers_(buffers) {}

  void prepare() override;

 private:
  std::span<const FlushBuffer> buffers_;
};

}  // namespace convtime
