#include "timing/counters/profiler.h"

#include <cupti.h>
#include <cupti_version.h>
#include <dlfcn.h>

#include <charconv>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/cupti_check.h"

namespace convtime {
namespace {

CuptiError error_of(const ProfilerApi& api, CUptiResult status, const char* call) {
  const std::string result = detail::cupti_result(status, api.result_string);
  return {result, detail::cupti_failure(result, call)};
}

/// In this mode, CUPTI names ranges by number.
std::size_t number_of(std::string_view name, std::size_t otherwise) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_number = error == std::errc{} && end == name.data() + name.size();
  return is_number ? number : otherwise;
}

std::string text_or_nothing(const char* text) { return text == nullptr ? "" : text; }

/// CUPTI takes arrays of names as non-const, although it does not modify them.
const char** mutable_names(std::span<const char* const> metrics) {
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
  properties = CONVTIME_CUPTI_PARAMS(CUpti_Profiler_Host_GetMetricProperties);
  properties.pHostObject = host;
  properties.pMetricName = metric;
  return api.metric_properties(&properties);
}

constexpr std::size_t kRoomBeside = 16;  // kernels

/// By kernel, in the order of launches.
using Rows = std::vector<std::vector<double>>;

void count_call(Callable& call, RangeProfiler& profiler, const CountingHooks& hooks) {
  const auto wait = [&hooks](const std::function<void()>& blocking) { hooks.host.wait(blocking); };
  call.prepare();
  wait(hooks.synchronize);  // the preparation of the call must not be counted
  wait([&] { profiler.start(); });
  call.call();
  wait([&] {
    hooks.synchronize();
    profiler.stop();
  });
  call.discard_result();
}

Rows read_rows(const ScheduledMetrics& part, const RangeProfiler& profiler) {
  std::map<std::size_t, std::vector<double>> by_launch;
  const std::vector<std::size_t> launches = profiler.launches();
  for (std::size_t range = 0; range < launches.size(); ++range) {
    by_launch[launches[range]] = part.host->evaluate(part.names, profiler.counter_data(), range);
  }
  Rows rows;
  for (auto& [launch, of_launch] : by_launch) {
    rows.push_back(std::move(of_launch));
  }
  return rows;
}

Rows count_part(const CountedCall& counted, const ScheduledMetrics& part, RangeProfiler& profiler,
                const CountingHooks& hooks) {
  hooks.host.poll();
  hooks.require_turn();
  // The additional room shows whether kernels of other threads ran, too.
  profiler.configure(part.schedule.config_image, part.names, counted.most + kRoomBeside);
  count_call(counted.call, profiler, hooks);
  std::size_t dropped = 0;
  Rows rows;
  hooks.host.wait([&] {
    dropped = profiler.decode();
    rows = read_rows(part, profiler);
  });
  if (rows.size() + dropped > counted.most) {
    throw std::runtime_error(std::to_string(rows.size() + dropped) +
                             " kernels ran, but the call was seen to launch " +
                             std::to_string(counted.most) +
                             ": no other thread of this process may use the GPU while counting");
  }
  if (rows.size() < counted.fewest) {
    throw uncounted("CUPTI counted " + std::to_string(rows.size()) + " of the " +
                    std::to_string(counted.fewest) + " kernels that the call launches");
  }
  return rows;
}

/// Append a part's values to those of the previous parts.
void append_values(Rows part, Rows& rows) {
  if (rows.empty()) {
    rows = std::move(part);
    return;
  }
  for (std::size_t kernel = 0; kernel < rows.size(); ++kernel) {
    rows[kernel].insert(rows[kernel].end(), part[kernel].begin(), part[kernel].end());
  }
}

}  // namespace

void ProfilerApi::check(CUptiResult status, const char* call) const {
  if (status != CUPTI_SUCCESS) {
    throw error_of(*this, status, call);
  }
}

void ProfilerApi::warn(CUptiResult status, const char* call) const noexcept {
  if (status != CUPTI_SUCCESS) {
    std::fprintf(stderr, "convtime: %s\n", error_of(*this, status, call).what());
  }
}

std::string load_profiler_libraries() {
  Dl_info cupti{};
  const bool found = dladdr(reinterpret_cast<void*>(&cuptiGetVersion), &cupti) != 0;
  const std::filesystem::path folder =
      found ? std::filesystem::path(cupti.dli_fname).parent_path() : std::filesystem::path();
  for (const char* const name : {"libnvperf_host.so", "libnvperf_target.so"}) {
    // Some distributions have them in other folders.
    if (dlopen((folder / name).c_str(), RTLD_LAZY) == nullptr &&
        dlopen(name, RTLD_LAZY) == nullptr) {
      const char* const why = dlerror();
      return std::string("cannot load ") + name + ", which CUPTI needs for counting (" +
             (why == nullptr ? "unknown reason" : why) + "): reinstall the CUPTI package";
    }
  }
  return "";
}

ProfilerLibrary::ProfilerLibrary(const ProfilerApi& api) : api_(api) {
  auto params = CONVTIME_CUPTI_PARAMS(CUpti_Profiler_Initialize);
  api_.check(api_.initialize(&params), "cuptiProfilerInitialize");
}

ProfilerLibrary::~ProfilerLibrary() {
  auto params = CONVTIME_CUPTI_PARAMS(CUpti_Profiler_DeInitialize);
  api_.warn(api_.deinitialize(&params), "cuptiProfilerDeInitialize");
}

std::string ProfilerLibrary::chip_name(int device) const {
  auto params = CONVTIME_CUPTI_PARAMS(CUpti_Device_GetChipName);
  params.deviceIndex = static_cast<std::size_t>(device);
  api_.check(api_.chip_name(&params), "cuptiDeviceGetChipName");
  return params.pChipName;
}

std::vector<std::uint8_t> ProfilerLibrary::counter_availability(CUcontext context) const {
  auto params = CONVTIME_CUPTI_PARAMS(CUpti_Profiler_GetCounterAvailability);
  params.ctx = context;
  api_.check(api_.counter_availability(&params), "cuptiProfilerGetCounterAvailability");
  std::vector<std::uint8_t> image(params.counterAvailabilityImageSize);
  params.pCounterAvailabilityImage = image.data();
  api_.check(api_.counter_availability(&params), "cuptiProfilerGetCounterAvailability");
  return image;
}

RangeProfiler::RangeProfiler(const ProfilerApi& api, CUcontext context) : api_(api) {
  auto params = CONVTIME_CUPTI_PARAMS(CUpti_RangeProfiler_Enable);
  params.ctx = context;
  api_.check(api_.enable(&params), "cuptiRangeProfilerEnable");
  profiler_ = params.pRangeProfilerObject;
}

RangeProfiler::~RangeProfiler() {
  if (started_) {
    auto params = CONVTIME_CUPTI_PARAMS(CUpti_RangeProfiler_Stop);
    params.pRangeProfilerObject = profiler_;
    api_.warn(api_.stop(&params), "cuptiRangeProfilerStop");
  }
  auto params = CONVTIME_CUPTI_PARAMS(CUpti_RangeProfiler_Disable);
  params.pRangeProfilerObject = profiler_;
  api_.warn(api_.disable(&params), "cuptiRangeProfilerDisable");
}

void RangeProfiler::configure(std::span<const std::uint8_t> config_image,
                              std::span<const char* const> metrics, std::size_t ranges) {
  make_counter_data(metrics, ranges);
  auto params = CONVTIME_CUPTI_PARAMS(CUpti_RangeProfiler_SetConfig);
  params.pRangeProfilerObject = profiler_;
  params.configSize = config_image.size();
  params.pConfig = config_image.data();
  params.counterDataImageSize = counter_data_.size();
  params.pCounterDataImage = counter_data_.data();
  params.range = CUPTI_AutoRange;
  params.replayMode = CUPTI_KernelReplay;
  params.maxRangesPerPass = ranges;
  params.numNestingLevels = 1;
  params.minNestingLevel = 1;
  params.passIndex = 0;
  params.targetNestingLevel = 1;
  // CUPTI refuses thousands of kernels, but does not report this as the reason.
  const std::string call = "cuptiRangeProfilerSetConfig for " + std::to_string(ranges) + " kernels";
  api_.check(api_.set_config(&params), call.c_str());
}

void RangeProfiler::make_counter_data(std::span<const char* const> metrics, std::size_t ranges) {
  auto size = CONVTIME_CUPTI_PARAMS(CUpti_RangeProfiler_GetCounterDataSize);
  size.pRangeProfilerObject = profiler_;
  size.pMetricNames = const_cast<const char**>(metrics.data());  // CUPTI does not modify them
  size.numMetrics = metrics.size();
  size.maxNumOfRanges = ranges;
  size.maxNumRangeTreeNodes = static_cast<std::uint32_t>(ranges);
  api_.check(api_.counter_data_size(&size), "cuptiRangeProfilerGetCounterDataSize");

  counter_data_.assign(size.counterDataSize, 0);
  auto initialize = CONVTIME_CUPTI_PARAMS(CUpti_RangeProfiler_CounterDataImage_Initialize);
  initialize.pRangeProfilerObject = profiler_;
  initialize.counterDataSize = counter_data_.size();
  initialize.pCounterData = counter_data_.data();
  api_.check(api_.initialize_counter_data(&initialize),
             "cuptiRangeProfilerCounterDataImageInitialize");
}

void RangeProfiler::start() {
  auto params = CONVTIME_CUPTI_PARAMS(CUpti_RangeProfiler_Start);
  params.pRangeProfilerObject = profiler_;
  api_.check(api_.start(&params), "cuptiRangeProfilerStart");
  started_ = true;
}

void RangeProfiler::stop() {
  auto params = CONVTIME_CUPTI_PARAMS(CUpti_RangeProfiler_Stop);
  params.pRangeProfilerObject = profiler_;
  started_ = false;
  api_.check(api_.stop(&params), "cuptiRangeProfilerStop");
}

std::size_t RangeProfiler::decode() {
  auto params = CONVTIME_CUPTI_PARAMS(CUpti_RangeProfiler_DecodeData);
  params.pRangeProfilerObject = profiler_;
  api_.check(api_.decode(&params), "cuptiRangeProfilerDecodeData");
  return params.numOfRangeDropped;
}

std::vector<std::size_t> RangeProfiler::launches() const {
  auto info = CONVTIME_CUPTI_PARAMS(CUpti_RangeProfiler_GetCounterDataInfo);
  info.pCounterDataImage = counter_data_.data();
  info.counterDataImageSize = counter_data_.size();
  api_.check(api_.counter_data_info(&info), "cuptiRangeProfilerGetCounterDataInfo");

  std::vector<std::size_t> launches;
  for (std::size_t range = 0; range < info.numTotalRanges; ++range) {
    auto params = CONVTIME_CUPTI_PARAMS(CUpti_RangeProfiler_CounterData_GetRangeInfo);
    params.pCounterDataImage = counter_data_.data();
    params.counterDataImageSize = counter_data_.size();
    params.rangeIndex = range;
    params.rangeDelimiter = "/";
    api_.check(api_.range_info(&params), "cuptiRangeProfilerCounterDataGetRangeInfo");
    launches.push_back(number_of(params.rangeName == nullptr ? "" : params.rangeName, range));
  }
  return launches;
}

MetricHost::MetricHost(const ProfilerApi& api, std::string chip,
                       std::vector<std::uint8_t> availability)
    : api_(api), chip_(std::move(chip)), availability_(std::move(availability)) {
  auto params = CONVTIME_CUPTI_PARAMS(CUpti_Profiler_Host_Initialize);
  params.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
  params.pChipName = chip_.c_str();
  params.pCounterAvailabilityImage = availability_.empty() ? nullptr : availability_.data();
  api_.check(api_.host_initialize(&params), "cuptiProfilerHostInitialize");
  host_ = params.pHostObject;
}

MetricHost::~MetricHost() {
  auto params = CONVTIME_CUPTI_PARAMS(CUpti_Profiler_Host_Deinitialize);
  params.pHostObject = host_;
  api_.warn(api_.host_deinitialize(&params), "cuptiProfilerHostDeinitialize");
}

std::vector<std::string> MetricHost::metrics() const {
  std::vector<std::string> names;
  for (const MetricKind& kind : kKinds) {
    auto params = CONVTIME_CUPTI_PARAMS(CUpti_Profiler_Host_GetBaseMetrics);
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

std::optional<DescribedMetric> MetricHost::describe(const std::string& metric) const {
  Properties properties{};
  const CUptiResult status = read_properties(api_, host_, metric.c_str(), properties);
  if (status == CUPTI_ERROR_INVALID_METRIC_NAME) {
    return std::nullopt;
  }
  api_.check(status, "cuptiProfilerHostGetMetricProperties");
  return DescribedMetric{text_or_nothing(properties.pDescription),
                         text_or_nothing(properties.pDimUnit), text_or_nothing(properties.pHwUnit)};
}

CounterSchedule MetricHost::schedule(std::span<const char* const> metrics) {
  auto added = CONVTIME_CUPTI_PARAMS(CUpti_Profiler_Host_ConfigAddMetrics);
  added.pHostObject = host_;
  added.ppMetricNames = mutable_names(metrics);
  added.numMetrics = metrics.size();
  api_.check(api_.add_metrics(&added), "cuptiProfilerHostConfigAddMetrics");

  auto size = CONVTIME_CUPTI_PARAMS(CUpti_Profiler_Host_GetConfigImageSize);
  size.pHostObject = host_;
  api_.check(api_.config_image_size(&size), "cuptiProfilerHostGetConfigImageSize");

  CounterSchedule schedule;
  schedule.config_image.resize(size.configImageSize);
  auto image = CONVTIME_CUPTI_PARAMS(CUpti_Profiler_Host_GetConfigImage);
  image.pHostObject = host_;
  image.configImageSize = schedule.config_image.size();
  image.pConfigImage = schedule.config_image.data();
  api_.check(api_.config_image(&image), "cuptiProfilerHostGetConfigImage");

  auto passes = CONVTIME_CUPTI_PARAMS(CUpti_Profiler_Host_GetNumOfPasses);
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
  auto params = CONVTIME_CUPTI_PARAMS(CUpti_Profiler_Host_EvaluateToGpuValues);
  params.pHostObject = host_;
  params.pCounterDataImage = counter_data.data();
  params.counterDataImageSize = counter_data.size();
  params.rangeIndex = range;
  params.ppMetricNames = mutable_names(metrics);
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

CuptiError uncounted(const std::string& seen) {
  return {"kernels uncounted",
          seen +
              ", and CUPTI's range profiler does not count the nodes of a CUDA graph one by one; "
              "count the call that was captured, not the graph's replay"};
}

std::vector<Rows> count_calls(const CountedCall& counted, const ProfilerApi& api, CUcontext context,
                              const CountingHooks& hooks) {
  std::vector<Rows> values(counted.repeats);
  for (const ScheduledMetrics& part : counted.parts) {
    std::optional<RangeProfiler> profiler;
    hooks.host.wait([&] { profiler.emplace(api, context); });
    for (Rows& rows : values) {
      append_values(count_part(counted, part, *profiler, hooks), rows);
    }
    hooks.host.wait([&] { profiler.reset(); });
  }
  return values;
}

}  // namespace convtime
