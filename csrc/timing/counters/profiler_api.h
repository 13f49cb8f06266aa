#pragma once

#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_result.h>
#include <cupti_target.h>

#include <cstddef>
#include <string>

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

/// Return arguments for a function of the table. CUPTI expects the size of a structure up to its
/// last field; sizeof would include padding.
template <typename Params>
Params sized(std::size_t bytes) {
  Params params{};
  params.structSize = bytes;
  return params;
}

/// Load the libraries that CUPTI needs for counting, from CUPTI's own folder, and never unload
/// them. CUPTI requests them by name only. The system's loader does not search that folder and may
/// find the libraries of another toolkit, whose structures differ. Returns why one cannot be
/// loaded; empty if all are.
std::string load_profiler_libraries();

}  // namespace convtime
