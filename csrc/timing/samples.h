#pragma once

#include <cstddef>
#include <set>
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

/// The samples of one candidate. Except in `discarded`, index i of each non-empty list is the same
/// call. The i-th calls of all candidates were made right after each other, in one round.
struct CandidateSamples {
  std::vector<double> seconds;
  /// `seconds` before the method's overhead was subtracted; empty if nothing was subtracted.
  std::vector<double> raw_seconds;
  /// The rate of the device's clock around each call, NaN if unknown; empty without a clock probe.
  std::vector<double> sm_clocks_hz;
  /// Callable::place() of each call; empty if there is only one placement, and if a sample covers
  /// several calls, as in a CUDA graph.
  std::vector<std::size_t> places;
  /// For each call, the index of its reading of the operating system in SamplerResult::host; empty
  /// for methods that time a device.
  std::vector<std::size_t> readings;
  std::size_t repeats = 1;  ///< calls over which a sample is averaged
  /// Why calls took longer than undisturbed ones, if known; otherwise empty.
  std::string disturbance;
  /// share_between_runs() of these calls; 0 for methods that time a device.
  double between_runs = 0;
  /// The device's activities during each call; empty if the timer does not record them.
  std::vector<std::vector<DeviceActivity>> activities;
  /// Samples that are not in `seconds`: the queue could not be held, the device was not in the
  /// requested regime, or calls on the CPU were disturbed. The method's overhead is subtracted, as
  /// in `seconds`.
  std::vector<double> discarded;
  FirstCall first_call;
  /// CUDA functions that issued work in these calls without a record, so `activities` is
  /// incomplete.
  std::set<std::string> unrecorded;
};

/// Calls of the same candidates by a method that was then given up.
struct EarlierCalls {
  std::vector<FirstCall> first_calls;  ///< of each candidate that was called
  std::size_t count = 0;
  double seconds = 0;
};

/// Rounds in which all candidates were sampled.
struct SampledRounds {
  std::vector<CandidateSamples> candidates;
  /// For each round, the number of its batch. The numbers increase, and skip batches without
  /// samples.
  std::vector<std::size_t> batches;
};

/// The results of a sampler for all candidates together.
struct SamplerResult : SampledRounds {
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
  /// CollectionNotes::of_other_threads, for all batches.
  std::size_t of_other_threads = 0;
};

}  // namespace convtime
