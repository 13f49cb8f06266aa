#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "timing/judge/host_reading.h"
#include "timing/judge/stop_rule.h"
#include "timing/trace/device_activity.h"

namespace convtime {

/// What was sampled of one candidate. Index i of each list that is not empty, `discarded` aside, is
/// the same call; the i-th calls of all candidates were made right after each other, in one round.
struct CandidateSamples {
  std::vector<double> seconds;
  /// `seconds` before the method's own cost was taken off; empty where nothing was.
  std::vector<double> raw_seconds;
  /// The rate of the device's clock around each call, NaN where it is not known; empty without a
  /// clock probe.
  std::vector<double> sm_clocks_hz;
  /// Callable::place() of each call; empty where there is one place only, and where a sample is of
  /// several calls, as in a CUDA graph.
  std::vector<std::size_t> places;
  /// For each call, the index of what the operating system did, in SamplerResult::host; empty for
  /// methods that time a device.
  std::vector<std::size_t> readings;
  std::size_t repeats = 1;  ///< calls that a sample is the average of
  /// Why calls took longer than undisturbed ones, as far as is known; empty where nothing says so.
  std::string disturbance;
  /// share_between_runs() of these calls; 0 for methods that time a device.
  double between_runs = 0;
  /// What the device did for each call; empty where the timer cannot say.
  std::vector<std::vector<DeviceActivity>> activities;
  /// Samples that were taken while the queue could not be held, the device was not in the regime
  /// asked for, or something disturbed calls on the CPU, and that are not in `seconds`; less the
  /// method's own cost, as those are.
  std::vector<double> discarded;
  /// What the first call took, with all that is done only once (loading, compiling, choosing
  /// algorithms, allocating), until its work was done.
  double first_call_seconds = 0;
  /// Functions of CUDA that gave the device work in these calls of which there is no record, so
  /// that `activities` lack it.
  std::set<std::string> unrecorded;
};

/// Calls that were made of the same candidates by a method that was then given up.
struct EarlierCalls {
  std::vector<double> first_call_seconds;  ///< of each candidate that was called
  std::size_t count = 0;
  double seconds = 0;
};

/// Rounds in which all candidates were sampled.
struct SampledRounds {
  std::vector<CandidateSamples> candidates;
  /// For each round, the number of the batch that it was issued in. Those numbers rise, and leave
  /// out batches that gave no samples.
  std::vector<std::size_t> batches;
};

/// What a sampler did for all candidates together.
struct SamplerResult : SampledRounds {
  bool queue_held = false;
  std::string not_held_reason;   ///< empty where the queue was held, or nothing was to hold it
  std::size_t warmup_calls = 0;  ///< that gave no samples
  double warmup_seconds = 0;     ///< idling included
  bool steady = false;           ///< whether the warm-up was to become steady, and did
  double sampling_seconds = 0;   ///< after the warm-up, idling not included
  double idle_seconds = 0;       ///< that the device was left idle for the regime's sake, in all
  StopReason stop_reason = StopReason::kNotYet;
  double clock_tick_seconds = 0;  ///< Timer::tick_seconds()
  HostRecord host;                ///< of all samples, and of calls that are none
  /// Batches whose samples were wrong and were thrown away, and what was wrong with the last.
  std::size_t faulty_batches = 0;
  std::string fault;
  /// CollectionNotes::of_other_threads, of all batches.
  std::size_t of_other_threads = 0;
};

}  // namespace convtime
