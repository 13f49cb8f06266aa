#pragma once

#include <cupti.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace convtime {

// What CUPTI's callbacks for buffers do, whichever scope they are registered with.

/// Takes the records of a scope, on threads of CUPTI's own and until the process ends.
class RecordSink {
 public:
  virtual void take(const CUpti_Activity& record) = 0;
  /// Some records were lost.
  virtual void lose() = 0;

 protected:
  ~RecordSink() = default;
};

/// That of the open scope: CUPTI's buffer callbacks have no argument of ours, and may run once more
/// while the process ends.
inline std::atomic<RecordSink*> record_sink = nullptr;

/// How many buffers of 1 MiB CUPTI may have at a time: a bound on memory.
inline std::atomic<std::size_t> max_buffers = 512;

/// Gives CUPTI a buffer to write records to.
void request_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records);

/// Takes a buffer back; false for one that request_buffer() did not give, which CUPTI hands over
/// where another tool has registered its callbacks in between.
bool return_buffer(std::uint8_t* buffer);

/// Whether CUPTI has some.
bool lends_buffers();

/// While it lives, CUPTI is forced to hand over buffers in which some work or API call still runs.
/// What such a call writes on its return must find its memory there: these buffers are kept for a
/// minute.
class ForcedFlush {
 public:
  ForcedFlush();
  ~ForcedFlush();
  ForcedFlush(const ForcedFlush&) = delete;
  ForcedFlush& operator=(const ForcedFlush&) = delete;
};

/// Buffers that are kept for the time being.
std::size_t kept_buffers();

void free_buffer(std::uint8_t* buffer) noexcept;

/// Hands on the records that `next` finds in a buffer, and frees it.
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
  } catch (...) {  // out of memory; CUPTI's own code cannot be thrown through
    sink.lose();
  }
  free_buffer(buffer);
}

}  // namespace convtime
