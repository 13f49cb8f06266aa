#include "timing/counters/metric_host.h"

#include <cupti_version.h>

#include <limits>
#include <utility>

namespace convtime {

namespace {

std::string text_or_nothing(const char* text) { return text == nullptr ? "" : text; }

/// CUPTI takes arrays of names as non-const, although it does not modify them.
const char** names_of(std::span<const char* const> metrics) {
  return const_cast<const char**>(metrics.data());
}

struct MetricKind {
  CUpti_MetricType type;
  const char* suffix;
};

constexpr MetricKind kKinds[] = {
    {CUPTI_METRIC_TYPE_COUNTER, ".sum"},
    {CUPTI_METRIC_TYPE_RATIO, ".ratio"},
    {CUPTI_METRIC_TYPE_THROUGHPUT, ".avg.pct_of_peak_sustained_elapsed"},
};

using Properties = CUpti_Profiler_Host_GetMetricProperties_Params;

/// For example, links between devices are counted for all contexts together.
bool is_of_device([[maybe_unused]] const Properties& properties) {
#if CUPTI_API_VERSION >= 130200
  return properties.metricCollectionScope == CUPTI_METRIC_COLLECTION_SCOPE_DEVICE;
#else
  return false;
#endif
}

/// Read the properties and return CUPTI's result.
CUptiResult read_properties(const ProfilerApi& api, CUpti_Profiler_Host_Object* host,
                            const char* metric, Properties& properties) {
  properties = sized<Properties>(CUpti_Profiler_Host_GetMetricProperties_Params_STRUCT_SIZE);
  properties.pHostObject = host;
  properties.pMetricName = metric;
  return api.metric_properties(&properties);
}

}  // namespace

MetricHost::MetricHost(const ProfilerApi& api, std::string chip,
                       std::vector<std::uint8_t> availability)
    : api_(api), chip_(std::move(chip)), availability_(std::move(availability)) {
  auto params = sized<CUpti_Profiler_Host_Initialize_Params>(
      CUpti_Profiler_Host_Initialize_Params_STRUCT_SIZE);
  params.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
  params.pChipName = chip_.c_str();
  params.pCounterAvailabilityImage = availability_.empty() ? nullptr : availability_.data();
  api_.check(api_.host_initialize(&params), "cuptiProfilerHostInitialize");
  host_ = params.pHostObject;
}

MetricHost::~MetricHost() {
  auto params = sized<CUpti_Profiler_Host_Deinitialize_Params>(
      CUpti_Profiler_Host_Deinitialize_Params_STRUCT_SIZE);
  params.pHostObject = host_;
  api_.warn(api_.host_deinitialize(&params), "cuptiProfilerHostDeinitialize");
}

std::vector<std::string> MetricHost::metrics() const {
  std::vector<std::string> names;
  for (const MetricKind& kind : kKinds) {
    auto params = sized<CUpti_Profiler_Host_GetBaseMetrics_Params>(
        CUpti_Profiler_Host_GetBaseMetrics_Params_STRUCT_SIZE);
    params.pHostObject = host_;
    params.metricType = kind.type;
    api_.check(api_.base_metrics(&params), "cuptiProfilerHostGetBaseMetrics");
    for (std::size_t i = 0; i < params.numMetrics; ++i) {
      const char* const name = params.ppMetricNames[i];
      Properties properties{};
      api_.check(read_properties(api_, host_, name, properties),
                 "cuptiProfilerHostGetMetricProperties");
      if (!is_of_device(properties)) {
        names.push_back(std::string(name) + kind.suffix);
      }
    }
  }
  return names;
}

std::optional<MetricInfo> MetricHost::describe(const std::string& metric) const {
  Properties properties{};
  const CUptiResult status = read_properties(api_, host_, metric.c_str(), properties);
  if (status == CUPTI_ERROR_INVALID_METRIC_NAME) {
    return std::nullopt;
  }
  api_.check(status, "cuptiProfilerHostGetMetricProperties");
  return MetricInfo{text_or_nothing(properties.pDescription), text_or_nothing(properties.pDimUnit),
                    text_or_nothing(properties.pHwUnit)};
}

CounterSchedule MetricHost::schedule(std::span<const char* const> metrics) {
  auto added = sized<CUpti_Profiler_Host_ConfigAddMetrics_Params>(
      CUpti_Profiler_Host_ConfigAddMetrics_Params_STRUCT_SIZE);
  added.pHostObject = host_;
  added.ppMetricNames = names_of(metrics);
  added.numMetrics = metrics.size();
  api_.check(api_.add_metrics(&added), "cuptiProfilerHostConfigAddMetrics");

  auto size = sized<CUpti_Profiler_Host_GetConfigImageSize_Params>(
      CUpti_Profiler_Host_GetConfigImageSize_Params_STRUCT_SIZE);
  size.pHostObject = host_;
  api_.check(api_.config_image_size(&size), "cuptiProfilerHostGetConfigImageSize");

  CounterSchedule schedule;
  schedule.config_image.resize(size.configImageSize);
  auto image = sized<CUpti_Profiler_Host_GetConfigImage_Params>(
      CUpti_Profiler_Host_GetConfigImage_Params_STRUCT_SIZE);
  image.pHostObject = host_;
  image.configImageSize = schedule.config_image.size();
  image.pConfigImage = schedule.config_image.data();
  api_.check(api_.config_image(&image), "cuptiProfilerHostGetConfigImage");

  auto passes = sized<CUpti_Profiler_Host_GetNumOfPasses_Params>(
      CUpti_Profiler_Host_GetNumOfPasses_Params_STRUCT_SIZE);
  passes.configImageSize = schedule.config_image.size();
  passes.pConfigImage = schedule.config_image.data();
  api_.check(api_.number_of_passes(&passes), "cuptiProfilerHostGetNumOfPasses");
  schedule.passes = passes.numOfPasses;
  return schedule;
}

std::vector<double> MetricHost::evaluate(std::span<const char* const> metrics,
                                         std::span<const std::uint8_t> counter_data,
                                         std::size_t range) const {
  std::vector<double> values(metrics.size(), std::numeric_limits<double>::quiet_NaN());
  auto params = sized<CUpti_Profiler_Host_EvaluateToGpuValues_Params>(
      CUpti_Profiler_Host_EvaluateToGpuValues_Params_STRUCT_SIZE);
  params.pHostObject = host_;
  params.pCounterDataImage = counter_data.data();
  params.counterDataImageSize = counter_data.size();
  params.rangeIndex = range;
  params.ppMetricNames = names_of(metrics);
  params.numMetrics = metrics.size();
  params.pMetricValues = values.data();
  api_.check(api_.evaluate(&params), "cuptiProfilerHostEvaluateToGpuValues");
  return values;
}

ScheduledMetrics schedule_together(const MakeHost& make_host, std::span<const char* const> names) {
  ScheduledMetrics scheduled{{names.begin(), names.end()}, make_host(), {}};
  scheduled.schedule = scheduled.host->schedule(scheduled.names);
  return scheduled;
}

std::vector<ScheduledMetrics> schedule_by_pass(const MakeHost& make_host,
                                               std::span<const char* const> names) {
  std::vector<ScheduledMetrics> parts;
  for (std::size_t first = 0, next = 0; next < names.size(); ++next) {
    const std::size_t count = next - first + 1;
    ScheduledMetrics part = schedule_together(make_host, names.subspan(first, count));
    if (count > 1 && part.schedule.passes <= 1) {
      parts.back() = std::move(part);
      continue;
    }
    if (count > 1) {
      part = schedule_together(make_host, names.subspan(next, 1));
    }
    // A metric that needs several passes is counted separately.
    first = part.schedule.passes <= 1 ? next : next + 1;
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace convtime
