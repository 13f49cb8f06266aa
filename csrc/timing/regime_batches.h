#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "timing/batch.h"
#include "timing/sampler.h"
#include "timing/samples.h"

namespace convtime {

/// Runs batches while the device is in its regime, and adds their samples to a series. With an
/// agreement, it decides like the other processes.
class RegimeBatches {
 public:
  /// Counts go into `result`. All arguments must outlive this object.
  RegimeBatches(std::span<Callable* const> candidates, const SamplerSetup& setup,
                SamplerResult& result);

  BatchRunner& runner() { return runner_; }
  RegimeControl& regime() { return regime_; }
  bool controls_regime() const { return &regime_ != &as_is_; }

  /// What a batch means for the following ones.
  struct Outcome {
    bool hold_given_up = false;  ///< the queue is no longer held
    bool begins_anew = false;    ///< the regime differs from here on: its warm-up follows
  };

  /// Run a batch of that many rounds, or of fewer as agreed with other processes. Its samples are
  /// appended to the series, discarded or, if they are faulty, dropped; a batch may also show that
  /// the earlier samples must be discarded. Throws TraceLost after too many faulty batches.
  Outcome run(std::size_t rounds, bool warming_up, Series& series);

  /// Return the rounds of the last run().
  std::size_t last_rounds() const { return last_rounds_; }

  /// Return the calls in batches so far.
  std::size_t calls() const { return calls_; }

  /// Return the seconds of a clock that stops while the device idles for the regime. With an
  /// agreement, it shows the same time in all processes: that of the last batch.
  double working_seconds() const;

  /// Return whether the deadline has passed; with an agreement, that of any process.
  bool time_is_up() const;

 private:
  double idle();
  void load(double seconds);
  Batch run_shared(std::size_t rounds);
  BatchFate judge(const Batch& batch, double idle_clock_hz) const;
  void throw_away(std::string fault);

  std::span<Callable* const> candidates_;
  const SamplerSetup& setup_;
  SamplerResult& result_;
  RegimeControl as_is_;
  RegimeControl& regime_;
  BatchAgreement* agreement_;
  BatchRunner runner_;
  double start_;
  std::size_t batches_run_ = 0;
  std::size_t faulty_in_a_row_ = 0;
  std::size_t last_rounds_ = 0;
  std::size_t calls_ = 0;
  double shared_clock_ = 0;  ///< SharedBatch::elapsed_seconds of the last batch
  bool shared_time_is_up_ = false;
};

}  // namespace convtime
