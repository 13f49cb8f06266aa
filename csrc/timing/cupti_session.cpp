#include "timing/cupti_session.h"

#include <cupti.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/cupti_check.h"

namespace convtime {
namespace {

#if CUPTI_API_VERSION >= 130200
using KernelRecord = CUpti_ActivityKernel11;
#else
using KernelRecord = CUpti_ActivityKernel10;
#endif
using MemcpyRecord = CUpti_ActivityMemcpy6;
using MemsetRecord = CUpti_ActivityMemset4;

constexpr std::array kKinds = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                               CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_RUNTIME,
                               CUPTI_ACTIVITY_KIND_DRIVER};
constexpr std::size_t kBufferBytes = 1 << 20;

/// What CUPTI's callbacks, which have no argument of ours, write to. They run on threads of CUPTI's
/// own and touch nothing else.
struct Collector {
  std::mutex mutex;
  CuptiSession::Records records;
  bool in_session = false;
  bool dropped = false;
};

Collector& collector() {
  // Never destroyed: CUPTI may still complete a buffer while the process ends.
  static auto* const instance = new Collector;
  return *instance;
}

DeviceActivity read_kernel(const KernelRecord& record) {
  DeviceActivity activity;
  activity.info.kind = ActivityKind::kKernel;
  activity.info.name = record.name == nullptr ? "" : record.name;
  activity.info.grid = {record.gridX, record.gridY, record.gridZ};
  activity.info.block = {record.blockX, record.blockY, record.blockZ};
  activity.info.registers_per_thread = record.registersPerThread;
  activity.info.shared_memory_bytes = record.staticSharedMemory + record.dynamicSharedMemory;
  activity.start_ns = record.start;
  activity.end_ns = record.end;
  activity.correlation = record.correlationId;
  return activity;
}

template <typename Record>
DeviceActivity read_memory(const Record& record, ActivityKind kind) {
  DeviceActivity activity;
  activity.info.kind = kind;
  activity.info.bytes = record.bytes;
  activity.start_ns = record.start;
  activity.end_ns = record.end;
  activity.correlation = record.correlationId;
  return activity;
}

void read(const CUpti_Activity* record, CuptiSession::Records& records) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      records.activities.push_back(read_kernel(*reinterpret_cast<const KernelRecord*>(record)));
      break;
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      records.activities.push_back(
          read_memory(*reinterpret_cast<const MemcpyRecord*>(record), ActivityKind::kMemcpy));
      break;
    case CUPTI_ACTIVITY_KIND_MEMSET:
      records.activities.push_back(
          read_memory(*reinterpret_cast<const MemsetRecord*>(record), ActivityKind::kMemset));
      break;
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: {
      const auto& call = *reinterpret_cast<const CUpti_ActivityAPI*>(record);
      records.api_calls.push_back({call.start, call.correlationId});
      break;
    }
    default:
      break;
  }
}

void CUPTIAPI on_buffer_requested(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;  // as many as fit
}

void CUPTIAPI on_buffer_completed(CUcontext context, uint32_t stream, uint8_t* buffer, size_t,
                                  size_t valid_bytes) {
  Collector& into = collector();
  {
    const std::lock_guard lock(into.mutex);
    CUpti_Activity* record = nullptr;
    while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
      if (into.in_session) {
        read(record, into.records);
      }
    }
    size_t dropped = 0;
    if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS) {
      into.dropped = into.dropped || dropped > 0;
    }
  }
  std::free(buffer);
}

void begin_session() {
  Collector& into = collector();
  const std::lock_guard lock(into.mutex);
  if (into.in_session) {
    throw std::runtime_error(
        "method 'kernel' is already timing in this process, and CUPTI serves one at a time; wait "
        "for the other thread, or use method 'event'");
  }
  into.records = {};
  into.dropped = false;
  into.in_session = true;
}

void end_session() {
  Collector& into = collector();
  const std::lock_guard lock(into.mutex);
  into.in_session = false;
  into.records = {};
}

void disable(std::span<const CUpti_ActivityKind> kinds) noexcept {
  for (const CUpti_ActivityKind kind : kinds) {
    CONVTIME_CUPTI_WARN(cuptiActivityDisable(kind));
  }
}

/// Ticks of CUPTI's timestamps a nanosecond. They are nanoseconds, unless another client of this
/// process has registered a clock of its own, which cannot be asked for: kineto leaves the
/// processor's time stamp counter behind.
double measure_ticks_per_ns() {
  using std::chrono::steady_clock;
  const auto start = steady_clock::now();
  const std::uint64_t first = CuptiSession::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const std::chrono::duration<double, std::nano> elapsed = steady_clock::now() - start;
  const double measured = static_cast<double>(CuptiSession::now() - first) / elapsed.count();
  constexpr double kTolerance = 0.01;  // of this measurement; no such counter runs at 1 GHz
  return std::abs(measured - 1) < kTolerance ? 1 : measured;
}

}  // namespace

CuptiSession::CuptiSession() {
  begin_session();
  std::size_t enabled = 0;
  try {
    // Each time anew: another tool may have registered its own since.
    CONVTIME_CUPTI_CHECK(cuptiActivityRegisterCallbacks(on_buffer_requested, on_buffer_completed));
    for (; enabled < kKinds.size(); ++enabled) {
      CONVTIME_CUPTI_CHECK(cuptiActivityEnable(kKinds[enabled]));
    }
    ticks_per_ns_ = measure_ticks_per_ns();
    origin_ = now();
  } catch (...) {
    disable(std::span(kKinds).first(enabled));
    end_session();
    throw;
  }
}

CuptiSession::~CuptiSession() {
  disable(kKinds);
  // Buffers of ours that are still out must not reach the next tool's callback.
  CONVTIME_CUPTI_WARN(cuptiActivityFlushAll(0));
  end_session();
}

std::uint64_t CuptiSession::now() {
  std::uint64_t now = 0;
  CONVTIME_CUPTI_CHECK(cuptiGetTimestamp(&now));
  return now;
}

CuptiSession::Records CuptiSession::take() {
  CONVTIME_CUPTI_CHECK(cuptiActivityFlushAll(0));
  Collector& into = collector();
  const std::lock_guard lock(into.mutex);
  if (into.dropped) {
    throw std::runtime_error(
        "CUPTI dropped activity records, so that kernel times would be incomplete; time fewer "
        "launches a call, or use method 'event'");
  }
  Records records = std::exchange(into.records, {});
  const auto nanoseconds = [this](std::uint64_t tick) {
    const std::uint64_t since = tick > origin_ ? tick - origin_ : 0;
    return ticks_per_ns_ == 1
               ? since
               : static_cast<std::uint64_t>(static_cast<double>(since) / ticks_per_ns_ + 0.5);
  };
  for (DeviceActivity& activity : records.activities) {
    activity.start_ns = nanoseconds(activity.start_ns);
    activity.end_ns = nanoseconds(activity.end_ns);
  }
  return records;
}

std::optional<std::string> CuptiSession::unavailable() {
  std::uint32_t version = 0;
  if (cuptiGetVersion(&version) != CUPTI_SUCCESS) {
    return "CUPTI does not answer";
  }
  if (version != CUPTI_API_VERSION) {
    return "the CUPTI that is loaded has version " + std::to_string(version) +
           " and convtime was built for " + std::to_string(CUPTI_API_VERSION);
  }
  return std::nullopt;
}

}  // namespace convtime
