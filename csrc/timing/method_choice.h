#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "timing/options.h"
#include "timing/samples.h"
#include "timing/timers/timer.h"

namespace convtime {

/// The selected timer, and why its method differs from the requested one; empty if it does not.
struct ChosenTimer {
  std::unique_ptr<Timer> timer;
  Method method = Method::kAuto;
  std::string reason;
};

/// Return the timer of the requested method, or for Method::kAuto the best available one. Throws
/// std::invalid_argument if the method does not fit the work, std::runtime_error if it cannot be
/// used.
ChosenTimer choose_timer(const TimingOptions& options, std::size_t candidates);

/// Return why kernel times are unavailable; empty if they are available. If CUPTI is shared,
/// another tool's session is not a reason, because its buffers are not affected.
std::string kernel_problem();

/// Return the error message for an explicit request of unavailable kernel times.
std::string kernel_refusal(const std::string& problem);

/// Return the method that Method::kAuto selects if kernel times are unavailable, and the reason.
/// Events see one stream of one device.
Method fallback_method(const TimingOptions& options);
std::string fallback_reason(const std::string& problem);

/// Return whether no candidate issued work to a device, according to a timer that sees it: kernel
/// times are then meaningless. If some did, their times are kept, and the times of the others are
/// 0.
CONVTIME_API bool none_issued_work(std::span<const CandidateSamples> candidates);

}  // namespace convtime
