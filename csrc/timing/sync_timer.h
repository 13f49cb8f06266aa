#pragma once

#include <vector>

#include "core/export.h"
#include "timing/timer.h"

namespace convtime {

/// Host time from before a call, on an idle device, until the device is idle again: launch latency,
/// all streams and the final synchronisation included.
class CONVTIME_API SyncTimer final : public Timer {
 public:
  void run(std::span<Callable* const> calls) override;
  void collect(std::span<double> seconds) override;
  bool queues_calls() const override { return false; }

 private:
  std::vector<double> seconds_;
};

}  // namespace convtime
