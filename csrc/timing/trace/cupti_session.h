#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "timing/trace/attribution.h"

namespace convtime {

class ActivityScope;

/// Collects what the device does and which API calls issued it, from construction to destruction,
/// through CUPTI's activity API. There can be one session at a time. Beside another tool there can
/// be one where that tool subscribes to CUPTI and shares it (see shared()), and none where it uses
/// the buffer callbacks that belong to the whole process (torch.profiler).
class CuptiSession {
 public:
  /// Throws std::runtime_error where CUPTI cannot be used.
  CuptiSession();
  ~CuptiSession();
  CuptiSession(const CuptiSession&) = delete;
  CuptiSession& operator=(const CuptiSession&) = delete;

  /// Now, in ticks of the clock of API calls.
  static std::uint64_t now();

  /// What was recorded since the last call, activities in nanoseconds since the session began. The
  /// device must be idle.
  TraceRecords take();

  /// Why CUPTI cannot be used in this process, whatever else it runs; nothing where it can.
  static std::optional<std::string> unavailable();

  /// Whether another tool has made CUPTI serve several in this process, each with records of its
  /// own. Where it has, a session does not disturb the others, whoever they are.
  static bool shared();

 private:
  std::unique_ptr<ActivityScope> scope_;
  std::uint64_t origin_ = 0;
  double ticks_per_ns_ = 1;
};

}  // namespace convtime
