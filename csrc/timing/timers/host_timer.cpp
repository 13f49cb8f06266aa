#include "timing/timers/host_timer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace convtime {
namespace {

constexpr int kClockReads = 200;
/// From which it is known how often a short call is made for each sample.
constexpr std::size_t kSizingCalls = 16;
/// Of a sample, that the clock's tick may be.
constexpr double kTickShare = 0.0025;
/// Of the time of a run, that readings of the operating system may take.
constexpr double kReadShare = 0.05;

double seconds_between(std::int64_t start, std::int64_t end) {
  return 1e-9 * static_cast<double>(end - start);
}

double measure_clock_tick() {
  std::int64_t step = std::numeric_limits<std::int64_t>::max();
  const std::int64_t start = now_nanoseconds();
  std::int64_t last = start;
  for (int i = 0; i < kClockReads; ++i) {
    const std::int64_t now = now_nanoseconds();
    if (now > last) {
      step = std::min(step, now - last);
    }
    last = now;
  }
  const double reading = seconds_between(start, last) / kClockReads;
  return last > start ? std::max(seconds_between(0, step), reading) : 1e-6;
}

}  // namespace

double host_clock_tick() {
  static const double tick = std::min(measure_clock_tick(), measure_clock_tick());
  return tick;
}

void HostTimer::run(std::span<Callable* const> calls) {
  collected_ = {};
  collected_.calls.reserve(calls.size());
  for (Callable* const callable : calls) {
    callable->prepare();
    // The queue of a busy device fills up, and a full queue would block the call.
    drain_();
    const std::int64_t start = now_nanoseconds();
    callable->call();
    const std::int64_t end = until_ == Until::kReturn ? now_nanoseconds() : drain_();
    collected_.calls.push_back({.seconds = seconds_between(start, end)});
    callable->discard_result();
  }
  drain_();
}

void CpuWorkTimer::run(std::span<Callable* const> calls) {
  collected_ = {};
  collected_.calls.reserve(calls.size());
  for (Callable* const call : calls) {
    call->prepare();
    run_one(*call);
  }
  end_reading();
}

/// Readings end when they took a small share of their time only.
void CpuWorkTimer::run_one(Callable& callable) {
  const double long_enough = probe_.read_seconds() / kReadShare;
  const auto known = known_.find(&callable);
  const double expected = known == known_.end() ? std::numeric_limits<double>::infinity()
                                                : known->second.fastest_seconds;
  const bool alone = expected >= long_enough;
  if (alone) {
    end_reading();
  }
  if (!reading_began_.has_value()) {
    reading_began_ = now_seconds();
    probe_.begin(alone ? expected : 0);
  }
  const std::size_t reading = record_.readings.size();
  ++samples_of_reading_;
  const double seconds = time_one(callable);
  if (alone || now_seconds() - *reading_began_ >= long_enough) {
    end_reading();
  }
  callable.discard_result();
  collected_.calls.push_back({.seconds = seconds, .reading = reading});
  const auto [found, inserted] = known_.try_emplace(&callable, Known{seconds});
  found->second.fastest_seconds = std::min(found->second.fastest_seconds, seconds);
}

void CpuWorkTimer::end_reading() {
  if (std::exchange(reading_began_, std::nullopt).has_value()) {
    record_.readings.push_back(probe_.end());
    record_.readings.back().samples = std::exchange(samples_of_reading_, 0);
  }
}

double CpuWorkTimer::time_one(Callable& callable) const {
  const std::size_t count = repeats(callable);
  const std::int64_t start = now_nanoseconds();
  for (std::size_t i = 0; i < count; ++i) {
    callable.call();
  }
  return seconds_between(start, now_nanoseconds()) / static_cast<double>(count);
}

/// What has to be prepared before each call cannot be called several times for one preparation.
std::size_t CpuWorkTimer::settle(std::span<Callable* const> candidates) {
  const double shortest = tick_ / kTickShare;
  double coarsest = 0;
  std::size_t calls = 0;
  for (Callable* const candidate : candidates) {
    Known& known = known_.at(candidate);
    if (known.fastest_seconds < shortest && !candidate->prepares_work() &&
        candidate->distinct_calls() == 1) {
      const double repeats = shortest / std::max(usual_seconds(*candidate) - tick_, tick_ / 4);
      known.repeats = static_cast<std::size_t>(std::max(1.0, std::ceil(repeats)));
      calls += kSizingCalls;
    }
    coarsest = std::max(coarsest, tick_ / static_cast<double>(known.repeats));
  }
  tick_ = coarsest;
  return calls;
}

/// Of most calls, so that a call that is short now and then is not averaged with long ones.
double CpuWorkTimer::usual_seconds(Callable& candidate) {
  std::array<double, kSizingCalls> seconds{};
  for (double& each : seconds) {
    candidate.prepare();
    each = time_one(candidate);
    candidate.discard_result();
  }
  const auto most = seconds.begin() + 9 * kSizingCalls / 10;
  std::nth_element(seconds.begin(), most, seconds.end());
  return *most;
}

std::size_t CpuWorkTimer::repeats(const Callable& candidate) const {
  const auto known = known_.find(&candidate);
  return known == known_.end() ? 1 : known->second.repeats;
}

const HostRecord* CpuWorkTimer::host_record() {
  record_.whole_run = probe_.since_made();
  record_.cores = probe_.cores();
  record_.missing = probe_.missing();
  record_.counters_reason = probe_.counters_reason();
  return &record_;
}

}  // namespace convtime
