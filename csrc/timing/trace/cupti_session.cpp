#include "timing/trace/cupti_session.h"

#include <cuda_runtime_api.h>
#include <cupti.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/cuda.h"
#include "core/cupti_check.h"
#include "core/synchronize.h"
#include "timing/trace/clock_ratio.h"
#include "timing/trace/cupti_records.h"
#include "timing/trace/cupti_scope.h"

namespace convtime {
namespace {

constexpr char kInUse[] =
    "another timing or recording of this process uses it, and CUPTI serves one at a time";
constexpr char kCounting[] =
    "hardware counters are being read in this process, and CUPTI serves one at a time";
constexpr char kProfilerActive[] =
    "a torch.profiler session is active in this process, and CUPTI serves one at a time";
constexpr char kProfilerStarted[] =
    "a torch.profiler session began in this process during the run, and CUPTI serves one at a time";

/// The data that CUPTI's threads write; they access nothing else.
class Collector final : public RecordSink {
 public:
  void take(const CUpti_Activity& record) override {
    const std::lock_guard lock(mutex_);
    read_record(record, records_);
  }
  void lose() override { ++lost_; }

  TraceRecords hand_over() {
    const std::lock_guard lock(mutex_);
    TraceRecords records = std::exchange(records_, {});
    records.lost = lost_.exchange(0);
    return records;
  }

 private:
  std::mutex mutex_;
  TraceRecords records_;
  std::atomic<std::size_t> lost_ = 0;
};

Collector& collector() {
  // Never destroyed: CUPTI may still complete a buffer while the process ends.
  static auto* const instance = new Collector;
  return *instance;
}

/// The present user of CUPTI.
struct Turn {
  std::mutex mutex;
  CuptiSession* session = nullptr;
  std::size_t making_way = 0;
  bool counting = false;   ///< hardware counters are being read
  bool disturbed = false;  ///< a profiler has started since

  /// Return why nobody else can use CUPTI now; empty if somebody can. An active profiler is no
  /// reason if `may_share` and CUPTI is shared.
  std::string taken(bool may_share) const;
};

Turn& turn() {
  static auto* const instance = new Turn;  // never destroyed, like the collector
  return *instance;
}

std::atomic<bool (*)()> profiler_check = nullptr;

bool profiler_is_active() {
  const auto is_active = profiler_check.load();
  return is_active != nullptr && is_active();
}

/// Return the ticks of CUPTI's timestamps per nanosecond. Timestamps are in nanoseconds, unless
/// another client of this process has registered a clock, which CUPTI does not report: kineto
/// leaves the processor's time stamp counter registered. Not thread-safe.
double measure_ticks_per_ns() {
  const auto nanoseconds = [] {
    using std::chrono::steady_clock;
    return std::chrono::duration<double, std::nano>(steady_clock::now().time_since_epoch()).count();
  };
  const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  static auto* const ratio = new ClockRatio({activity_clock, nanoseconds, wait});
  const double measured = ratio->ticks_per_nanosecond();
  constexpr double kTolerance = 0.01;  // of this measurement; no such counter runs at 1 GHz
  return std::abs(measured - 1) < kTolerance ? 1 : measured;
}

std::string Turn::taken(bool may_share) const {
  if (session != nullptr) {
    return kInUse;
  }
  if (counting) {
    return kCounting;
  }
  const bool profiled =
      making_way > 0 || (profiler_is_active() && !(may_share && CuptiSession::shared()));
  return profiled ? kProfilerActive : "";
}

[[noreturn]] void refuse_counting(const std::string& reason) {
  throw std::runtime_error("hardware counters cannot be read: " + reason);
}

void append(TraceRecords&& more, TraceRecords& records) {
  records.activities.insert(records.activities.end(), more.activities.begin(),
                            more.activities.end());
  records.api_calls.insert(records.api_calls.end(), more.api_calls.begin(), more.api_calls.end());
  records.lost += more.lost;
}

}  // namespace

CuptiSession::CuptiSession(TracedThreads threads) {
  if (const std::string problem = unavailable(); !problem.empty()) {
    throw std::runtime_error(problem);
  }
  const std::lock_guard lock(turn().mutex);
  if (const std::string reason = turn().taken(/*may_share=*/true); !reason.empty()) {
    throw std::runtime_error(reason);
  }
  open(threads);
  turn().session = this;
}

void CuptiSession::open(TracedThreads threads) {
  collector().hand_over();  // drops records of an earlier session
  scope_ = open_activity_scope(kActivityKinds, collector());
  try {
    context_.clock = {.origin = now(), .ticks_per_ns = measure_ticks_per_ns()};
    context_.own_thread = activity_thread();
    context_.every_thread = threads == TracedThreads::kEvery;
    check_records_arrive();
  } catch (...) {
    scope_.reset();
    throw;
  }
}

/// If another tool uses CUPTI exclusively, missing records may be the only sign.
void CuptiSession::check_records_arrive() {
  CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
  CONVTIME_CUDA_CHECK(cudaMemsetAsync(nullptr, 0, 0, nullptr));  // issues nothing
  // CUPTI keeps a buffer with another thread's running work until all buffers are requested.
  using std::chrono::milliseconds;
  TraceRecords records;
  for (const milliseconds wait : {milliseconds(0), milliseconds(1), milliseconds(20)}) {
    std::this_thread::sleep_for(wait);
    scope_->flush(wait < milliseconds(20) ? ActivityScope::Flush::kFinished
                                          : ActivityScope::Flush::kAll);
    append(collector().hand_over(), records);
    if (!records.api_calls.empty()) {
      break;
    }
  }
  remember({}, records, context_, memory_);
  memory_.other_threads.clear();
  if (records.api_calls.empty()) {
    scope_.reset();
    refuse_for_another_tool(kActivityKinds);
  }
}

std::string CuptiSession::api_name(std::uint32_t function) {
  // The numbering of read_record().
  const bool of_driver = function % 2 == 1;
  const char* name = nullptr;
  const auto domain = of_driver ? CUPTI_CB_DOMAIN_DRIVER_API : CUPTI_CB_DOMAIN_RUNTIME_API;
  if (cuptiGetCallbackName(domain, function / 2, &name) != CUPTI_SUCCESS || name == nullptr) {
    return of_driver ? "a function of the driver" : "a function of the runtime";
  }
  const std::string text = name;
  return text.substr(0, text.find('_'));  // without its version
}

CuptiSession::~CuptiSession() {
  const std::lock_guard lock(turn().mutex);
  turn().session = nullptr;
  if (scope_ != nullptr && profiler_is_active() && !shared()) {
    scope_->abandon();
  }
  scope_.reset();
}

std::uint64_t CuptiSession::now() { return activity_clock(); }

/// Use the scope, and treat CUPTI's errors as lost records: another tool may have taken over.
template <typename Use>
auto CuptiSession::with_scope(Use use) {
  const std::lock_guard lock(mutex_);
  require_open();
  try {
    return use();
  } catch (const CuptiError& error) {
    throw TraceLost(error.what());
  }
}

Attribution CuptiSession::take(std::span<const Window> windows) {
  return with_scope([&] {
    Attribution result = take_complete(windows);
    require_open();
    remember(windows, records_, context_, memory_);
    return result;
  });
}

/// CUPTI may lag slightly behind the device, and keeps a buffer as long as any work in it runs,
/// even another thread's.
Attribution CuptiSession::take_complete(std::span<const Window> windows) {
  using std::chrono::microseconds;
  records_ = {};
  // For a call after the windows: once its record has arrived, all earlier records have arrived.
  const std::uint64_t behind = now();
  CONVTIME_CUDA_CHECK(cudaMemsetAsync(nullptr, 0, 0, nullptr));  // issues nothing
  scope_->flush(ActivityScope::Flush::kFinished);
  Attribution result = read(windows);
  constexpr std::array kWaits = {microseconds(200), microseconds(200), microseconds(2'000),
                                 microseconds(20'000)};
  auto flush = ActivityScope::Flush::kFinished;
  for (const microseconds wait : kWaits) {
    if (has_api_call_since(behind) && result.faults.missing == 0 && result.faults.unissued == 0) {
      break;
    }
    std::this_thread::sleep_for(wait);
    // Request all buffers only after late records had time to arrive: unfinished records are not
    // delivered again.
    scope_->flush(std::exchange(flush, ActivityScope::Flush::kAll));
    result = read(windows);
  }
  if (!has_api_call_since(behind)) {
    ++result.faults.missing;
  }
  return result;
}

bool CuptiSession::has_api_call_since(std::uint64_t tick) const {
  return std::ranges::any_of(records_.api_calls, [&](const ApiCall& call) {
    return call.thread == context_.own_thread && call.start >= tick;
  });
}

Attribution CuptiSession::read(std::span<const Window> windows) {
  append(collector().hand_over(), records_);
  context_.read_at = now();
  return attribute(windows, records_, context_, memory_);
}

void CuptiSession::pause() {
  with_scope([this] { scope_->pause(); });
}

void CuptiSession::resume() {
  with_scope([this] { scope_->resume(); });
}

/// A profiler that could not be prevented may have taken CUPTI since.
void CuptiSession::require_open() {
  if (scope_ != nullptr && profiler_is_active() && !shared()) {
    scope_->abandon();
    scope_.reset();
    lost_ = kProfilerStarted;
  }
  if (scope_ == nullptr) {
    throw TraceLost(lost_);
  }
}

void CuptiSession::give_way(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  lost_ = reason;
  if (scope_ == nullptr) {
    return;
  }
  try {
    scope_->pause();
  } catch (const CuptiError&) {  // reported at the end of the scope
  }
  // The calls continue during the drain, and a held queue opens by itself within a tenth of a
  // second.
  scope_->drain(std::chrono::milliseconds(200));
  scope_.reset();
}

std::string CuptiSession::unavailable() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return "there is no CUDA driver";  // without a driver, some versions of CUPTI crash
  }
  std::uint32_t version = 0;
  if (cuptiGetVersion(&version) != CUPTI_SUCCESS) {
    return "CUPTI does not respond";
  }
  if (version != CUPTI_API_VERSION) {
    return "the loaded CUPTI has version " + std::to_string(version) +
           ", but convtime was built for " + std::to_string(CUPTI_API_VERSION);
  }
  return "";
}

bool CuptiSession::shared() { return unavailable().empty() && subscribers_are_shared(); }

std::string CuptiSession::taken() {
  const std::lock_guard lock(turn().mutex);
  const bool profiled = turn().making_way > 0 || profiler_is_active();
  return profiled && !shared() ? kProfilerActive : "";
}

CountingTurn::CountingTurn() {
  const std::lock_guard lock(turn().mutex);
  if (const std::string reason = turn().taken(/*may_share=*/false); !reason.empty()) {
    refuse_counting(reason);
  }
  turn().counting = true;
  turn().disturbed = false;
}

CountingTurn::~CountingTurn() {
  const std::lock_guard lock(turn().mutex);
  turn().counting = false;
}

void CountingTurn::require() const {
  const std::lock_guard lock(turn().mutex);
  if (turn().disturbed || profiler_is_active()) {
    refuse_counting(kProfilerStarted);
  }
}

MakeWay::MakeWay() {
  const std::lock_guard lock(turn().mutex);
  ++turn().making_way;
  turn().disturbed = true;
  if (turn().session != nullptr && !CuptiSession::shared()) {
    turn().session->give_way(kProfilerStarted);
  }
}

MakeWay::~MakeWay() {
  const std::lock_guard lock(turn().mutex);
  --turn().making_way;
}

void set_profiler_check(bool (*is_active)()) { profiler_check = is_active; }

ProcessTrace::ProcessTrace() : session_(TracedThreads::kEvery), began_(CuptiSession::now()) {}

std::uint32_t ProcessTrace::thread() { return activity_thread(); }

ProcessWork ProcessTrace::take(std::span<const int> other_devices) {
  // Work that other threads issue from here on may still be running, and is not in this trace.
  const Window window{.prepare = 0, .begin = began_, .end = CuptiSession::now()};
  synchronize(other_devices);
  Attribution attribution = session_.take({&window, 1});
  return {std::move(attribution.calls.front()), attribution.faults.describe()};
}

}  // namespace convtime
