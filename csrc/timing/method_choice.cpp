#include "timing/method_choice.h"

#include <algorithm>
#include <stdexcept>

#include "timing/factory.h"
#ifdef CONVTIME_WITH_CUDA
#include "timing/trace/cupti_session.h"
#endif

namespace convtime {
namespace {

ChosenTimer choose_on_cpu(const TimingOptions& options, std::size_t candidates) {
  if (options.method != Method::kAuto && options.method != Method::kCpu) {
    throw std::invalid_argument(std::string("method '") + to_string(options.method) +
                                "' times work on a GPU and this work is on the CPU; use 'cpu' "
                                "or 'auto', or name the device");
  }
  return {make_timer(Method::kCpu, options, candidates), Method::kCpu,
          options.method == Method::kAuto ? "the work is on the CPU" : ""};
}

/// Return the kernel timer, or for Method::kAuto another method's timer if kernel times are
/// unavailable.
ChosenTimer choose_kernel_or_other(const TimingOptions& options, std::size_t candidates) {
  const bool automatic = options.method == Method::kAuto;
  std::string problem = kernel_problem();
  if (problem.empty()) {
    try {
      return {make_timer(Method::kKernel, options, candidates), Method::kKernel,
              automatic ? "the work is on a GPU and CUPTI can be used" : ""};
    } catch (const std::runtime_error& error) {
      problem = error.what();
    }
  }
  if (!automatic) {
    throw std::runtime_error(kernel_refusal(problem));
  }
  const Method method = fallback_method(options);
  return {make_timer(method, options, candidates), method, fallback_reason(problem)};
}

}  // namespace

ChosenTimer choose_timer(const TimingOptions& options, std::size_t candidates) {
  if (!options.on_gpu) {
    return choose_on_cpu(options, candidates);
  }
  if (options.method == Method::kAuto || options.method == Method::kKernel) {
    return choose_kernel_or_other(options, candidates);
  }
  return {make_timer(options.method, options, candidates), options.method, ""};
}

bool none_issued_work(std::span<const CandidateSamples> candidates) {
  return std::all_of(candidates.begin(), candidates.end(), [](const CandidateSamples& samples) {
    return std::all_of(samples.activities.begin(), samples.activities.end(),
                       [](const auto& activities) { return activities.empty(); });
  });
}

std::string kernel_refusal(const std::string& problem) {
  return "method 'kernel' cannot be used: " + problem + "; use 'event' or 'auto'";
}

Method fallback_method(const TimingOptions& options) {
  return options.other_devices.empty() ? Method::kEvent : Method::kSync;
}

std::string fallback_reason(const std::string& problem) {
  return "kernel times are unavailable: " + problem;
}

std::string kernel_problem() {
#ifdef CONVTIME_WITH_CUDA
  if (const auto problem = CuptiSession::unavailable(); problem.has_value()) {
    return *problem;
  }
  return CuptiSession::taken();
#else
  return "convtime was built without CUDA";
#endif
}

}  // namespace convtime
