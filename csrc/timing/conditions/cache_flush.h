#pragma once

#include <cstddef>
#include <span>
#include <string>

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

/// During its lifetime, no part of a device's L2 cache is set aside for persisting accesses
/// (cudaLimitPersistingL2CacheSize), whose lines would outlast a flush. The destructor restores the
/// previous limit. The default is nonzero: 11 MiB on an H200.
class CONVTIME_API WithoutPersistingL2 {
 public:
  /// Throws CudaError if the device does not exist.
  explicit WithoutPersistingL2(int device);
  ~WithoutPersistingL2();
  WithoutPersistingL2(const WithoutPersistingL2&) = delete;
  WithoutPersistingL2& operator=(const WithoutPersistingL2&) = delete;

  /// Return why lines may still outlast a flush; empty if they do not.
  const std::string& reason() const { return reason_; }

 private:
  int device_;
  std::size_t restored_bytes_ = 0;  ///< by the destructor
  std::string reason_;
};

}  // namespace convtime
