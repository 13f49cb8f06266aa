#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace convtime {

/// The part of a batch on which later decisions depend.
struct SharedBatch {
  std::vector<std::vector<double>> seconds;  ///< samples of each candidate
  std::string fault;                         ///< CollectionNotes::fault
  bool held = false;
  bool hold_given_up = false;
  bool unordered = false;
  double elapsed_seconds = 0;  ///< since the run began
  bool time_is_up = false;     ///< whether the deadline passed
};

/// Agreement between processes that sample the same calls at the same time, because the calls
/// communicate. Every process calls these functions in the same order, and each returns the same
/// values in all processes: the decisions of the samplers, and so the numbers of their calls, are
/// then equal. Each function may throw to end the run.
class Accord {
 public:
  virtual ~Accord() = default;

  /// Called once, after the first calls. Returns the longest tick of the processes' timers.
  virtual double begin(double tick_seconds) = 0;

  /// Return the number of rounds in the next batch: the smallest proposal.
  virtual std::size_t rounds(std::size_t proposed) = 0;

  /// Called when all calls of a batch are issued and the queue is held. Returns when the queue is
  /// to be released, at the same time in all processes.
  virtual void release() = 0;

  /// Replace a batch by what all processes observed: the largest samples, any fault, the longest
  /// time.
  virtual void share(SharedBatch& batch) = 0;
};

}  // namespace convtime
