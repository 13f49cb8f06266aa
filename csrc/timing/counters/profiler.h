#pragma once

#include <cuda.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_result.h>
#include <cupti_target.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/cupti_error.h"
#include "timing/callable.h"
#include "timing/counters/counting.h"
#include "timing/host_hooks.h"

namespace convtime {

/// CUPTI's functions for hardware counters, as a table, so that tests without a GPU can make each
/// fail.
struct ProfilerApi {
  decltype(&cuptiGetResultString) result_string = cuptiGetResultString;
  decltype(&cuptiProfilerInitialize) initialize = cuptiProfilerInitialize;
  decltype(&cuptiProfilerDeInitialize) deinitialize = cuptiProfilerDeInitialize;
  decltype(&cuptiDeviceGetChipName) chip_name = cuptiDeviceGetChipName;
  decltype(&cuptiProfilerGetCounterAvailability) counter_availability =
      cuptiProfilerGetCounterAvailability;

  decltype(&cuptiProfilerHostInitialize) host_initialize = cuptiProfilerHostInitialize;
  decltype(&cuptiProfilerHostDeinitialize) host_deinitialize = cuptiProfilerHostDeinitialize;
  decltype(&cuptiProfilerHostGetBaseMetrics) base_metrics = cuptiProfilerHostGetBaseMetrics;
  decltype(&cuptiProfilerHostGetMetricProperties) metric_properties =
      cuptiProfilerHostGetMetricProperties;
  decltype(&cuptiProfilerHostConfigAddMetrics) add_metrics = cuptiProfilerHostConfigAddMetrics;
  decltype(&cuptiProfilerHostGetConfigImageSize) config_image_size =
      cuptiProfilerHostGetConfigImageSize;
  decltype(&cuptiProfilerHostGetConfigImage) config_image = cuptiProfilerHostGetConfigImage;
  decltype(&cuptiProfilerHostGetNumOfPasses) number_of_passes = cuptiProfilerHostGetNumOfPasses;
  decltype(&cuptiProfilerHostEvaluateToGpuValues) evaluate = cuptiProfilerHostEvaluateToGpuValues;

  decltype(&cuptiRangeProfilerEnable) enable = cuptiRangeProfilerEnable;
  decltype(&cuptiRangeProfilerDisable) disable = cuptiRangeProfilerDisable;
  decltype(&cuptiRangeProfilerGetCounterDataSize) counter_data_size =
      cuptiRangeProfilerGetCounterDataSize;
  decltype(&cuptiRangeProfilerCounterDataImageInitialize) initialize_counter_data =
      cuptiRangeProfilerCounterDataImageInitialize;
  decltype(&cuptiRangeProfilerSetConfig) set_config = cuptiRangeProfilerSetConfig;
  decltype(&cuptiRangeProfilerStart) start = cuptiRangeProfilerStart;
  decltype(&cuptiRangeProfilerStop) stop = cuptiRangeProfilerStop;
  decltype(&cuptiRangeProfilerDecodeData) decode = cuptiRangeProfilerDecodeData;
  decltype(&cuptiRangeProfilerGetCounterDataInfo) counter_data_info =
      cuptiRangeProfilerGetCounterDataInfo;
  decltype(&cuptiRangeProfilerCounterDataGetRangeInfo) range_info =
      cuptiRangeProfilerCounterDataGetRangeInfo;

  /// Throw CuptiError with CUPTI's error message if a call failed.
  void check(CUptiResult status, const char* call) const;

  /// For destructors: print to stderr the message that check() would have thrown.
  void warn(CUptiResult status, const char* call) const noexcept;
};

template <typename Params>
Params sized(std::size_t bytes) {
  Params params{};
  params.structSize = bytes;
  return params;
}

/// The arguments of a function of the table. CUPTI expects the size of a structure up to its last
/// field; sizeof would include padding.
#define CONVTIME_CUPTI_PARAMS(name) ::convtime::sized<name##_Params>(name##_Params_STRUCT_SIZE)

/// Load the libraries that CUPTI needs for counting, from CUPTI's own folder, and never unload
/// them. CUPTI requests them by name only. The system's loader does not search that folder and may
/// find the libraries of another toolkit, whose structures differ. Returns why one cannot be
/// loaded; empty if all are.
std::string load_profiler_libraries();

/// CUPTI's profiler, from its initialization to its end. While it exists, kernels of the whole
/// process may take twice as long.
class ProfilerLibrary {
 public:
  /// Throws CuptiError.
  explicit ProfilerLibrary(const ProfilerApi& api);
  ~ProfilerLibrary();
  ProfilerLibrary(const ProfilerLibrary&) = delete;
  ProfilerLibrary& operator=(const ProfilerLibrary&) = delete;

  /// Return the chip name of a device by CUDA's number, for example "GH100".
  std::string chip_name(int device) const;

  /// Return the counter availability of the context's device, for MetricHost.
  std::vector<std::uint8_t> counter_availability(CUcontext context) const;

 private:
  const ProfilerApi& api_;
};

/// Counts events in each kernel of a context between start() and stop(): one range per kernel, in
/// launch order. Each launch waits for its kernel. If several passes are needed, CUPTI repeats the
/// kernel and restores the memory that it wrote.
class RangeProfiler {
 public:
  /// A ProfilerLibrary must outlive this object. All functions throw CuptiError.
  RangeProfiler(const ProfilerApi& api, CUcontext context);
  ~RangeProfiler();
  RangeProfiler(const RangeProfiler&) = delete;
  RangeProfiler& operator=(const RangeProfiler&) = delete;

  /// Begin a new count of up to `ranges` kernels. CUPTI keeps using the config image.
  void configure(std::span<const std::uint8_t> config_image, std::span<const char* const> metrics,
                 std::size_t ranges);

  void start();
  void stop();

  /// Read the counts from the device. Returns the number of kernels that did not fit.
  std::size_t decode();

  /// Return the launch index of each counted kernel.
  std::vector<std::size_t> launches() const;

  std::span<const std::uint8_t> counter_data() const { return counter_data_; }

 private:
  void make_counter_data(std::span<const char* const> metrics, std::size_t ranges);

  const ProfilerApi& api_;
  CUpti_RangeProfiler_Object* profiler_ = nullptr;
  std::vector<std::uint8_t> counter_data_;
  bool started_ = false;
};

/// CUPTI's plan for counting metrics.
struct CounterSchedule {
  std::vector<std::uint8_t> config_image;
  std::size_t passes = 0;  ///< several, because few counters fit in the hardware at a time
};

/// CUPTI's knowledge of a chip's metrics. It does not access a device.
class MetricHost {
 public:
  /// `availability` is the device's counter availability; without it, all counters of the chip are
  /// known. All functions throw CuptiError.
  MetricHost(const ProfilerApi& api, std::string chip, std::vector<std::uint8_t> availability = {});
  ~MetricHost();
  MetricHost(const MetricHost&) = delete;
  MetricHost& operator=(const MetricHost&) = delete;

  /// Return the names of metrics that are counted per context, such as "dram__bytes_read". Each has
  /// its most common suffix: ".sum", ".ratio" or ".avg.pct_of_peak_sustained_elapsed".
  std::vector<std::string> metrics() const;

  /// Return nothing for a name that the chip does not have.
  std::optional<DescribedMetric> describe(const std::string& metric) const;

  /// Schedule one set of metrics. Call this once: CUPTI would add a second set to the first.
  CounterSchedule schedule(std::span<const char* const> metrics);

  /// Return values in the metrics' own units for one range of decoded counters; NaN if a value is
  /// missing.
  std::vector<double> evaluate(std::span<const char* const> metrics,
                               std::span<const std::uint8_t> counter_data, std::size_t range) const;

 private:
  const ProfilerApi& api_;
  std::string chip_;
  std::vector<std::uint8_t> availability_;  // CUPTI keeps reading it
  CUpti_Profiler_Host_Object* host_ = nullptr;
};

/// Metrics that are counted together, and how.
struct ScheduledMetrics {
  std::vector<const char*> names;
  std::unique_ptr<MetricHost> host;
  CounterSchedule schedule;
};

/// Creates a host without metrics.
using MakeHost = std::function<std::unique_ptr<MetricHost>()>;

/// Schedule all metrics together, in as many passes as needed. Throws CuptiError, like all
/// functions here.
ScheduledMetrics schedule_together(const MakeHost& make_host, std::span<const char* const> names);

/// Schedule the metrics in order, as many together as fit in one pass. A metric that needs several
/// passes is separate.
std::vector<ScheduledMetrics> schedule_by_pass(const MakeHost& make_host,
                                               std::span<const char* const> names);

/// The call to count, and how.
struct CountedCall {
  Callable& call;
  std::span<const ScheduledMetrics> parts;  ///< of the metrics; each part is counted in separate
                                            ///< calls
  /// Kernels that the call launches; both are equal if there are several parts.
  std::size_t fewest = 0;
  std::size_t most = 0;
  std::size_t repeats = 1;
};

/// The hooks that counting needs.
struct CountingHooks {
  HostHooks host;
  /// Wait until the devices are idle.
  std::function<void()> synchronize;
  /// Throw if the counting must end.
  std::function<void()> require_turn;
};

/// Return the error if CUPTI does not count some of a call's kernels separately.
CuptiError uncounted(const std::string& seen);

/// Make the calls needed to count all metrics. Returns, for each repeat and each counted kernel in
/// launch order, the metrics' values. The preparation of each call is not counted. A
/// ProfilerLibrary must outlive the counting. Throws CuptiError, also if CUPTI counted fewer
/// kernels than the call launches, std::runtime_error if other kernels ran, too, and any exception
/// of the call.
std::vector<std::vector<std::vector<double>>> count_calls(const CountedCall& counted,
                                                          const ProfilerApi& api, CUcontext context,
                                                          const CountingHooks& hooks);

}  // namespace convtime
