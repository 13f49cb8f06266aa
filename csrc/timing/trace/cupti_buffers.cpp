#include "timing/trace/cupti_buffers.h"

#include <cstdlib>
#include <deque>
#include <mutex>
#include <new>
#include <unordered_set>

#include "timing/clock.h"

namespace convtime {
namespace {

constexpr std::size_t kBytes = 1 << 20;

constexpr double kKeptSeconds = 60;

/// A buffer that CUPTI was forced to return.
struct ReturnedBuffer {
  double since_seconds;
  std::uint8_t* buffer;
};

/// The buffers that CUPTI has, and those that it may still write to.
struct Lent {
  std::mutex mutex;
  std::unordered_set<std::uint8_t*> buffers;
  std::deque<ReturnedBuffer> kept;
  int forced = 0;  ///< flushes in progress

  void free_old() {
    while (!kept.empty() && kept.front().since_seconds < now_seconds() - kKeptSeconds) {
      std::free(kept.front().buffer);
      kept.pop_front();
    }
  }
};

Lent& lent() {
  static auto* const instance = new Lent;  // never destroyed: CUPTI may return a buffer at the very
                                           // end
  return *instance;
}

/// Return null if memory is short or CUPTI already has too many buffers; exceptions must not pass
/// through CUPTI's code.
std::uint8_t* lend_buffer() noexcept {
  auto* const buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBytes));
  if (buffer == nullptr) {
    return nullptr;
  }
  try {
    const std::lock_guard lock(lent().mutex);
    if (lent().buffers.size() < max_buffers) {
      lent().buffers.insert(buffer);
      return buffer;
    }
  } catch (const std::bad_alloc&) {
  }
  std::free(buffer);
  return nullptr;
}

}  // namespace

void request_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  *buffer = lend_buffer();
  *size = *buffer == nullptr ? 0 : kBytes;
  *max_records = 0;  // unlimited
  if (*buffer == nullptr) {
    record_sink.load()->lose();  // not every version of CUPTI counts them for subscribers
  }
}

bool return_buffer(std::uint8_t* buffer) {
  const std::lock_guard lock(lent().mutex);
  return lent().buffers.erase(buffer) == 1;
}

bool lends_buffers() {
  const std::lock_guard lock(lent().mutex);
  return !lent().buffers.empty();
}

ForcedFlush::ForcedFlush() {
  const std::lock_guard lock(lent().mutex);
  ++lent().forced;
}

ForcedFlush::~ForcedFlush() {
  const std::lock_guard lock(lent().mutex);
  --lent().forced;
}

std::size_t kept_buffers() {
  const std::lock_guard lock(lent().mutex);
  return lent().kept.size();
}

void free_buffer(std::uint8_t* buffer) noexcept {
  const std::lock_guard lock(lent().mutex);
  lent().free_old();
  if (lent().forced == 0) {
    std::free(buffer);
    return;
  }
  try {
    lent().kept.push_back({now_seconds(), buffer});
  } catch (const std::bad_alloc&) {  // leaked rather than written to after its reuse
  }
}

}  // namespace convtime
