#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "timing/options.h"
#include "timing/samples.h"
#include "timing/timers/timer.h"

namespace convtime {

/// The timer that is used, and why it is not of the method asked for; empty where it is.
struct ChosenTimer {
  std::unique_ptr<Timer> timer;
  Method method = Method::kAuto;
  std::string reason;
};

/// The timer of the method asked for, or for Method::kAuto the best one that is possible. Throws
/// std::invalid_argument where the method does not fit the work, std::runtime_error where it cannot
/// be used.
ChosenTimer choose_timer(const TimingOptions& options, std::size_t candidates);

/// Why kernel times cannot be had; empty where they can. Another tool's session is no reason where
/// CUPTI is shared, since then nobody's buffers are taken away.
std::string kernel_problem();

/// What is said where kernel times were asked for and cannot be had.
std::string kernel_refusal(const std::string& problem);

/// What Method::kAuto takes where kernel times cannot be had, and the reason it gives. Events see
/// one stream of one device.
Method fallback_method(const TimingOptions& options);
std::string fallback_reason(const std::string& problem);

/// Whether no candidate issued anything to a device, by the samples of a timer that sees it: kernel
/// times then say nothing. Where some did, theirs stay, and those of the others are 0.
CONVTIME_API bool none_issued_work(std::span<const CandidateSamples> candidates);

}  // namespace convtime
