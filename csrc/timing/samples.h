#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "timing/judge/host_reading.h"
#include "timing/judge/stop_rule.h"
#include "timing/trace/device_activity.h"

namespace convtime {

/// The first call, until its work was done, with its one-time costs: loading, compiling, choosing
/// algorithms, allocating.
struct FirstCall {
  double seconds = 0;
  double compile_seconds = 0;  ///< in which convtime's own kernels were compiled or loaded
};

/// One sample. A field that is not recorded is empty in all samples of a candidate.
struct Sample {
  double seconds = 0;
  std::size_t batch = 0;                ///< increases, and skips batches without samples
  std::optional<double> raw_seconds{};  ///< `seconds` before the overhead was subtracted
  /// The rate of the device's clock around the call, NaN if unknown; recorded with a clock probe.
  std::optional<double> sm_clock_hz{};
  /// Callable::place() of the call; not recorded if there is only one placement, and if a sample
  /// covers several calls, as in a CUDA graph.
  std::optional<std::size_t> place{};
  /// The index in SamplerResult::host of the operating system's reading; recorded by methods that
  /// time the host.
  std::optional<std::size_t> reading{};
  /// The device's activities during the call; recorded if the timer does.
  std::optional<std::vector<DeviceActivity>> activities{};
};

/// Return a field of all samples.
template <typename Value>
std::vector<Value> column(std::span<const Sample> samples, Value Sample::* field) {
  std::vector<Value> values;
  values.reserve(samples.size());
  for (const Sample& sample : samples) {
    values.push_back(sample.*field);
  }
  return values;
}

/// Return a field of all samples; nothing if it is not recorded.
template <typename Value>
std::vector<Value> column(std::span<const Sample> samples, std::optional<Value> Sample::* field) {
  std::vector<Value> values;
  for (const Sample& sample : samples) {
    if ((sample.*field).has_value()) {
      values.push_back(*(sample.*field));
    }
  }
  return values;
}

/// The samples of one candidate.
struct CandidateSamples {
  /// The i-th samples of all candidates were taken right after each other, in one round.
  std::vector<Sample> samples;
  std::size_t repeats = 1;  ///< calls over which a sample is averaged
  /// Why calls took longer than undisturbed ones, if known; otherwise empty.
  std::string disturbance;
  /// share_between_runs() of these calls; 0 for methods that time a device.
  double between_runs = 0;
  /// The seconds of samples that do not count: the queue could not be held, the device was not in
  /// the requested regime, or calls on the CPU were disturbed.
  std::vector<double> discarded;
  FirstCall first_call;
  /// CUDA functions that issued work in these calls without a record, so activities are
  /// incomplete.
  std::set<std::string> unrecorded;

  std::vector<double> seconds() const { return column(samples, &Sample::seconds); }
  std::vector<double> sm_clocks_hz() const { return column(samples, &Sample::sm_clock_hz); }
  std::vector<std::size_t> places() const { return column(samples, &Sample::place); }
  std::vector<std::size_t> batches() const { return column(samples, &Sample::batch); }
};

/// Calls of the same candidates by a method that was then given up.
struct EarlierCalls {
  std::vector<FirstCall> first_calls;  ///< of each candidate that was called
  std::size_t count = 0;
  double seconds = 0;
};

/// The results of a sampler for all candidates together.
struct SamplerResult {
  std::vector<CandidateSamples> candidates;
  bool queue_held = false;
  std::string not_held_reason;   ///< empty if the queue was held, or was not supposed to be held
  std::size_t warmup_calls = 0;  ///< calls that gave no samples
  double warmup_seconds = 0;     ///< including idling
  bool steady = false;           ///< whether a steady warm-up was requested and reached
  double sampling_seconds = 0;   ///< after the warm-up, without idling
  double idle_seconds = 0;       ///< total idle time of the device for the regime
  StopReason stop_reason = StopReason::kNotYet;
  double clock_tick_seconds = 0;  ///< Timer::tick_seconds()
  HostRecord host;                ///< of all samples, and of calls without samples
  /// Batches whose samples were faulty and dropped, and the fault of the last.
  std::size_t faulty_batches = 0;
  std::string fault;
  /// Collection::of_other_threads, for all batches.
  std::size_t of_other_threads = 0;
};

/// The samples of all candidates, equally many of each: one per round.
using Series = std::vector<CandidateSamples>;

inline std::size_t rounds_of(const Series& series) { return series.front().samples.size(); }

/// Append later samples of the same candidates.
void append(Series&& more, Series& series);

/// Append the seconds of samples that do not count.
void append_discarded(const Series& more, Series& series);

/// Discard all samples: they were taken under a different condition than the next.
void set_aside(Series& series);

/// Remove the first rounds without a trace.
void forget_first(std::size_t rounds, Series& series);

/// Discard all rounds except these, which are in ascending order.
void keep_rounds(const std::vector<std::size_t>& rounds, Series& series);

}  // namespace convtime
