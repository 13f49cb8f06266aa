#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "timing/options.h"
#include "timing/samples.h"
#include "timing/time_op.h"
#include "timing/timers/timer.h"

namespace convtime {

/// Create the timer of the options' method, which is not Method::kAuto. Throws TraceLost if kernel
/// times are unavailable, otherwise like make_timer().
std::unique_ptr<Timer> make_method_timer(const TimingOptions& options, std::size_t candidates);

/// Samples with the options' method, which is not Method::kAuto. `earlier` is as in
/// sample_rounds(); throws TraceLost if kernel times are unavailable.
using SampleByMethod = std::function<Timing(const TimingOptions& options, EarlierCalls& earlier)>;

/// Sample with the requested method or, for Method::kAuto, with the first that can time the calls:
/// kCpu for work on the CPU. For work on a GPU kKernel, which is followed by kEvent (kSync for
/// several GPUs) if kernel times are unavailable, and by kCpu if the calls issue no work to the
/// GPU. Each method receives the calls of the one before it. Throws std::invalid_argument if the
/// requested method does not fit the work, std::runtime_error if it cannot be used, and
/// DeadlineError if no time is left for another method.
Timing sample_by_methods(const TimingOptions& asked, const SampleByMethod& sample);

/// Return whether no candidate issued work to a device, according to a timer that sees it: kernel
/// times are then meaningless. If some did, their times are kept, and the times of the others are
/// 0.
CONVTIME_API bool none_issued_work(std::span<const CandidateSamples> candidates);

}  // namespace convtime
