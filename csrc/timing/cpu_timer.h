#pragma once

#include <vector>

#include "core/export.h"
#include "timing/timer.h"

namespace convtime {

/// Host time from before a call to its return. For work on the CPU this is its duration; for work
/// on a GPU it is what issuing the call costs the host.
class CONVTIME_API CpuTimer final : public Timer {
 public:
  void run(std::span<Callable* const> calls) override;
  void collect(std::span<double> seconds) override;
  bool queues_calls() const override { return false; }

 private:
  std::vector<double> seconds_;
};

}  // namespace convtime
