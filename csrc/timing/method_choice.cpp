#include "timing/method_choice.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "timing/factory.h"
#include "timing/trace/attribution.h"
#ifdef CONVTIME_WITH_CUDA
#include "timing/trace/cupti_session.h"
#endif

namespace convtime {
namespace {

Outcome<Method> first_method(const TimingOptions& asked) {
  const bool automatic = asked.method == Method::kAuto;
  if (asked.on_gpu) {
    return automatic
               ? Outcome<Method>{Method::kKernel, "the work is on a GPU and CUPTI can be used"}
               : Outcome<Method>{asked.method};
  }
  if (!automatic && asked.method != Method::kCpu) {
    throw std::invalid_argument(std::string("method '") + to_string(asked.method) +
                                "' times work on a GPU and this work is on the CPU; use 'cpu' "
                                "or 'auto', or name the device");
  }
  return {Method::kCpu, automatic ? "the work is on the CPU" : ""};
}

/// Return the method that replaces kKernel if its times are unavailable. Events see one stream of
/// one device.
Outcome<Method> without_kernel_times(const TimingOptions& asked, const std::string& problem) {
  if (asked.method != Method::kAuto) {
    throw std::runtime_error("method 'kernel' cannot be used: " + problem +
                             "; use 'event' or 'auto'");
  }
  return {asked.other_devices.empty() ? Method::kEvent : Method::kSync,
          "kernel times are unavailable: " + problem};
}

/// Return the method that replaces kKernel for calls that only the host works on.
Outcome<Method> without_device_work(const TimingOptions& asked) {
  if (asked.method != Method::kAuto) {
    throw std::invalid_argument(
        "method 'kernel' saw calls that issue no work to the GPU; use 'cpu' for them");
  }
  return {Method::kCpu, "the calls issue no work to the GPU"};
}

/// Return the names of functions whose work has no CUPTI record.
std::string unrecorded_work(std::span<const CandidateSamples> candidates) {
  std::set<std::string> functions;
  for (const CandidateSamples& samples : candidates) {
    functions.insert(samples.unrecorded.begin(), samples.unrecorded.end());
  }
  std::string names;
  for (const std::string& function : functions) {
    names += (names.empty() ? "" : ", ") + function;
  }
  return names;
}

/// Throw TraceLost if CUPTI cannot determine whether these calls, which have no records, issued
/// work.
void require_records(const SamplerResult& samples) {
  if (samples.of_other_threads > 0) {
    throw TraceLost(
        "all work of the GPU during the calls is from threads that also issue work while no call "
        "is made");
  }
  const std::string unrecorded = unrecorded_work(samples.candidates);
  if (!unrecorded.empty()) {
    throw TraceLost("CUPTI has no record of the calls' only work, which is issued by " +
                    unrecorded);
  }
}

/// Return all calls of a run whose samples are dropped.
EarlierCalls calls_of(const SamplerResult& run) {
  EarlierCalls calls{{}, run.warmup_calls, run.warmup_seconds + run.sampling_seconds};
  for (const CandidateSamples& samples : run.candidates) {
    calls.first_calls.push_back(samples.first_call);
    calls.count += samples.samples.size() + samples.discarded.size();
  }
  return calls;
}

}  // namespace

/// If CUPTI is shared, another tool's session is not a reason: its buffers are not affected.
std::string kernel_method_unavailable() {
#ifdef CONVTIME_WITH_CUDA
  const std::string problem = CuptiSession::unavailable();
  return problem.empty() ? CuptiSession::taken() : problem;
#else
  return "convtime was built without CUDA";
#endif
}

std::unique_ptr<Timer> make_method_timer(const TimingOptions& options, std::size_t candidates) {
  if (options.method != Method::kKernel) {
    return make_timer(options.method, options, candidates);
  }
  if (const std::string problem = kernel_method_unavailable(); !problem.empty()) {
    throw TraceLost(problem);
  }
  try {
    return make_timer(options.method, options, candidates);
  } catch (const std::runtime_error& error) {
    throw TraceLost(error.what());
  }
}

Timing sample_by_methods(const TimingOptions& asked, const SampleByMethod& sample) {
  TimingOptions options = asked;
  Outcome<Method> method = first_method(asked);
  EarlierCalls earlier;
  for (;;) {
    options.method = method.value;
    try {
      Timing timing = sample(options, earlier);
      if (method.value != Method::kKernel || !none_issued_work(timing.samples.candidates)) {
        if (options.regime != asked.regime) {
          timing.regime.reason = method.reason;
        }
        timing.method = std::move(method);
        return timing;
      }
      earlier = calls_of(timing.samples);
      require_records(timing.samples);
      method = without_device_work(asked);
      options.regime = Regime::kAsIs;  // a regime of the GPU is not a condition of these calls
    } catch (const TraceLost& lost) {
      if (method.value != Method::kKernel) {
        throw;
      }
      method = without_kernel_times(asked, lost.what());
    }
    if (asked.supervision.deadline.passed()) {
      throw DeadlineError(method.reason);
    }
  }
}

bool none_issued_work(std::span<const CandidateSamples> candidates) {
  return std::ranges::all_of(candidates, [](const CandidateSamples& samples) {
    return std::ranges::all_of(samples.samples, [](const Sample& sample) {
      return !sample.activities || sample.activities->empty();
    });
  });
}

}  // namespace convtime
