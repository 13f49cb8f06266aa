#include "timing/counters/counting.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>

#include "core/cuda.h"
#include "timing/counters/profiler.h"
#include "timing/trace/attribution.h"
#include "timing/trace/cupti_session.h"

namespace convtime {
namespace {

const ProfilerApi kCupti;

/// Return the context that the runtime uses for the current device. libcuda is reached through the
/// runtime, because convtime does not link with it: it comes with the driver.
CUcontext current_context() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  CONVTIME_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &function, 12000,
                                                       cudaEnableDefault, &found));
  CUcontext context = nullptr;
  if (found != cudaDriverEntryPointSuccess ||
      reinterpret_cast<decltype(&cuCtxGetCurrent)>(function)(&context) != CUDA_SUCCESS) {
    throw std::runtime_error("the CUDA driver did not return its current context");
  }
  return context;
}

void require_cupti() {
  std::string problem = CuptiSession::unavailable();
  if (problem.empty()) {
    static const std::string missing = load_profiler_libraries();
    problem = missing;
  }
  if (!problem.empty()) {
    throw CuptiError("no CUPTI", problem);
  }
  CONVTIME_CUDA_CHECK(cudaFree(nullptr));  // CUPTI needs a context to know a device
}

/// The kernels that a call launches on this device, in order.
struct Launches {
  std::vector<ActivityInfo> kernels;
  bool differ = false;     ///< they differ from one call to the next
  bool in_graphs = false;  ///< some are nodes of CUDA graphs
};

bool is_kernel_of(const DeviceActivity& activity, int device) {
  return activity.info.kind == ActivityKind::kKernel &&
         activity.info.device == static_cast<std::uint32_t>(device);
}

std::vector<ActivityInfo> kernels_of(std::vector<DeviceActivity> activities, int device) {
  std::erase_if(activities, [device](const DeviceActivity& activity) {
    return !is_kernel_of(activity, device);
  });
  // Not only by start time, because launches on several streams can overtake each other. All
  // kernels of a graph have the same issue time.
  std::ranges::sort(activities, [](const DeviceActivity& a, const DeviceActivity& b) {
    return std::pair(a.issued_ns, a.start_ns) < std::pair(b.issued_ns, b.start_ns);
  });
  std::vector<ActivityInfo> kernels;
  for (const DeviceActivity& activity : activities) {
    kernels.push_back(activity.info);
  }
  return kernels;
}

constexpr std::size_t kTracedCalls = 2;

/// Return CUPTI's records of several calls; if no try has complete records, those of the last.
Attribution trace_calls(Callable& call, const HostHooks& hooks) {
  constexpr int kTries = 3;
  std::optional<CuptiSession> session;
  hooks.wait([&] { session.emplace(); });
  Attribution traced;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    std::array<Window, kTracedCalls> windows;
    for (Window& window : windows) {
      window.of = &call;
      window.prepare = CuptiSession::now();
      call.prepare();
      window.begin = CuptiSession::now();
      call.call();
      window.end = CuptiSession::now();
      call.discard_result();
    }
    hooks.wait([&] {
      CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
      traced = session->take(windows);
    });
    if (traced.faults.count() == 0) {
      break;
    }
  }
  hooks.wait([&] { session.reset(); });
  return traced;
}

Launches trace_launches(Callable& call, const HostHooks& hooks) {
  Attribution traced = trace_calls(call, hooks);
  if (traced.faults.count() > 0) {
    throw std::runtime_error("CUPTI's records of the call's kernels are incomplete (" +
                             traced.faults.describe() + ")");
  }
  const int device = current_device();
  Launches launches;
  for (const std::vector<DeviceActivity>& call : traced.calls) {
    launches.in_graphs |= std::ranges::any_of(call, [&](const auto& activity) {
      return is_kernel_of(activity, device) && activity.graph != 0;
    });
  }
  launches.kernels = kernels_of(std::move(traced.calls[0]), device);
  launches.differ = kernels_of(std::move(traced.calls[1]), device) != launches.kernels;
  return launches;
}

/// Return the maximum number of kernels that a call may launch.
std::size_t most_kernels(const Launches& launches) {
  constexpr std::size_t kFew = 16;
  const std::size_t known = launches.kernels.size();
  return launches.differ ? 2 * known + kFew : known;
}

/// Throw if counted kernels could not be attributed to the call.
void require_countable(const Launches& launches, bool replays_kernels) {
  if (launches.kernels.empty()) {
    throw std::invalid_argument("the call launches no kernel on this GPU");
  }
  if (launches.differ && launches.in_graphs) {
    throw uncounted("calls do not launch the same kernels each time, some of them in CUDA graphs");
  }
  if (launches.differ && !replays_kernels) {
    throw std::invalid_argument(
        "calls do not launch the same kernels each time, so counts of several calls cannot be "
        "combined; use replay='kernel'");
  }
}

std::vector<const char*> pointers_to(std::span<const std::string> texts) {
  std::vector<const char*> pointers;
  for (const std::string& text : texts) {
    pointers.push_back(text.c_str());
  }
  return pointers;
}

/// Count the kernels `repeats` times. Releases the profiler's resources on every exit.
void count_repeats(Callable& call, const Launches& launches, const CountingOptions& options,
                   Counted& result) {
  const CountingTurn turn;
  const CountingHooks hooks{options.hooks, [] { CONVTIME_CUDA_CHECK(cudaDeviceSynchronize()); },
                            [&] { turn.require(); }};
  const std::vector<const char*> metrics = pointers_to(options.metrics);

  CUcontext context = nullptr;
  std::optional<ProfilerLibrary> library;
  std::vector<ScheduledMetrics> parts;
  options.hooks.wait([&] {
    context = current_context();
    library.emplace(kCupti);
    const std::string chip = library->chip_name(current_device());
    const std::vector<std::uint8_t> availability = library->counter_availability(context);
    const MakeHost make_host = [&] {
      return std::make_unique<MetricHost>(kCupti, chip, availability);
    };
    if (options.replays_kernels) {
      parts.push_back(schedule_together(make_host, metrics));
    } else {
      parts = schedule_by_pass(make_host, metrics);
    }
  });
  for (const ScheduledMetrics& part : parts) {
    result.passes += part.schedule.passes;
  }
  result.values = count_calls({.call = call,
                               .parts = parts,
                               .fewest = launches.differ ? 0 : launches.kernels.size(),
                               .most = most_kernels(launches),
                               .repeats = options.repeats},
                              kCupti, context, hooks);
  options.hooks.wait([&] {
    parts.clear();
    library.reset();
  });
}

}  // namespace

Counted count_kernels(Callable& call, const CountingOptions& options) {
  require_cupti();
  {
    const CountingTurn refused_early;
  }
  ColdCallable cold(call, options.flush);
  Callable& conditioned = options.flush.empty() ? call : static_cast<Callable&>(cold);
  // The first call loads code and selects algorithms.
  conditioned.prepare();
  conditioned.call();
  conditioned.discard_result();
  const Launches launches = trace_launches(conditioned, options.hooks);
  require_countable(launches, options.replays_kernels);
  Counted result;
  result.launches = launches.kernels;
  if (launches.differ) {
    result.unnamed = "calls do not launch the same kernels each time";
  }
  count_repeats(conditioned, launches, options, result);
  return result;
}

std::vector<std::optional<DescribedMetric>> describe_metrics(std::span<const std::string> names) {
  require_cupti();
  const CountingTurn turn;
  const ProfilerLibrary library(kCupti);
  const MetricHost host(kCupti, library.chip_name(current_device()));
  std::vector<std::optional<DescribedMetric>> described;
  for (const std::string& name : names) {
    described.push_back(host.describe(name));
  }
  return described;
}

std::vector<std::string> metric_names() {
  require_cupti();
  const CountingTurn turn;
  const ProfilerLibrary library(kCupti);
  return MetricHost(kCupti, library.chip_name(current_device())).metrics();
}

}  // namespace convtime
