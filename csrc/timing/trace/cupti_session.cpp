#include "timing/trace/cupti_session.h"

#include <cuda_runtime_api.h>
#include <cupti.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/cuda_check.h"
#include "core/cupti_check.h"
#include "timing/trace/cupti_records.h"
#include "timing/trace/cupti_scope.h"

namespace convtime {
namespace {

/// What is written on CUPTI's threads, which touch nothing else.
class Collector final : public RecordSink {
 public:
  void take(const CUpti_Activity& record) override {
    const std::lock_guard lock(mutex);
    if (in_session) {
      read_record(record, records);
    }
  }
  void lose() override { dropped = true; }

  std::mutex mutex;
  TraceRecords records;
  bool in_session = false;
  std::atomic<bool> dropped = false;
};

Collector& collector() {
  // Never destroyed: CUPTI may still complete a buffer while the process ends.
  static auto* const instance = new Collector;
  return *instance;
}

void begin_session() {
  Collector& into = collector();
  const std::lock_guard lock(into.mutex);
  if (into.in_session) {
    throw std::runtime_error(
        "another thread of this process is timing with it, and CUPTI serves one at a time");
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
  if (const auto problem = unavailable(); problem.has_value()) {
    throw std::runtime_error(*problem);
  }
  begin_session();
  try {
    scope_ = open_activity_scope(kActivityKinds, collector());
    ticks_per_ns_ = measure_ticks_per_ns();
    origin_ = now();
    // A tool that has CUPTI to itself may show in nothing else than that no records arrive.
    CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
    if (take().api_calls.empty()) {
      scope_.reset();
      refuse_for_another_tool(kActivityKinds);
    }
  } catch (...) {
    scope_.reset();
    end_session();
    throw;
  }
}

CuptiSession::~CuptiSession() {
  scope_.reset();
  end_session();
}

std::uint64_t CuptiSession::now() { return activity_clock(); }

TraceRecords CuptiSession::take() {
  CONVTIME_CUPTI_CHECK(cuptiActivityFlushAll(0));
  Collector& into = collector();
  const std::lock_guard lock(into.mutex);
  if (into.dropped) {
    throw std::runtime_error(
        "CUPTI dropped activity records, so that kernel times would be incomplete; time fewer "
        "launches a call, or use method 'event'");
  }
  TraceRecords records = std::exchange(into.records, {});
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
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return "there is no CUDA driver";  // without which some versions of CUPTI crash
  }
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

bool CuptiSession::shared() { return !unavailable().has_value() && subscribers_are_shared(); }

}  // namespace convtime
