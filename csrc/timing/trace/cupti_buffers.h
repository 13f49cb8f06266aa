#pragma once

#include <cupti.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace convtime {

// The implementation of CUPTI's buffer callbacks for both scopes.

/// Receives the records of a scope, on CUPTI's own threads and until the process ends.
class RecordSink {
 public:
  virtual void take(const CUpti_Activity& record) = 0;
  /// Report that some records were lost.
  virtual void lose() = 0;

 protected:
  ~RecordSink() = default;
};

/// The sink of the open scope. CUPTI's buffer callbacks have no user argument, and may run once
/// more while the process ends.
inline std::atomic<RecordSink*> record_sink = nullptr;

/// The maximum number of 1 MiB buffers that CUPTI may have at a time, which limits its memory.
inline std::atomic<std::size_t> max_buffers = 512;

/// Give CUPTI a buffer to write records to.
void request_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records);

/// Take a buffer back; returns false for a buffer that request_buffer() did not provide. CUPTI
/// passes such buffers if another tool has registered its callbacks in between.
bool return_buffer(std::uint8_t* buffer);

/// Return whether CUPTI has any buffers.
bool lends_buffers();

/// During its lifetime, CUPTI is forced to return buffers in which work or an API call is still
/// running. Such a call writes to its buffer when it returns, so these buffers are kept for a
/// minute.
class ForcedFlush {
 public:
  ForcedFlush();
  ~ForcedFlush();
  ForcedFlush(const ForcedFlush&) = delete;
  ForcedFlush& operator=(const ForcedFlush&) = delete;
};

/// Return the number of buffers that are still kept.
std::size_t kept_buffers();

void free_buffer(std::uint8_t* buffer) noexcept;

/// Pass the records that `next` finds in a buffer to the sink, and free the buffer.
template <typename Next>
void complete_buffer(std::uint8_t* buffer, Next next) noexcept {
  RecordSink& sink = *record_sink.load();
  if (!return_buffer(buffer)) {
    sink.lose();
    return;
  }
  try {
    CUpti_Activity* record = nullptr;
    while (next(&record) == CUPTI_SUCCESS) {
      sink.take(*record);
    }
  } catch (...) {  // out of memory; exceptions must not pass through CUPTI's code
    sink.lose();
  }
  free_buffer(buffer);
}

}  // namespace convtime
