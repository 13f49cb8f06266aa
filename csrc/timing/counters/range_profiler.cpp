#include "timing/counters/range_profiler.h"

#include <charconv>
#include <string_view>
#include <system_error>

namespace convtime {
namespace {

/// In this mode, CUPTI names ranges by number.
std::size_t number_of(std::string_view name, std::size_t otherwise) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_number = error == std::errc{} && end == name.data() + name.size();
  return is_number ? number : otherwise;
}

}  // namespace

ProfilerLibrary::ProfilerLibrary(const ProfilerApi& api) : api_(api) {
  auto params =
      sized<CUpti_Profiler_Initialize_Params>(CUpti_Profiler_Initialize_Params_STRUCT_SIZE);
  api_.check(api_.initialize(&params), "cuptiProfilerInitialize");
}

ProfilerLibrary::~ProfilerLibrary() {
  auto params =
      sized<CUpti_Profiler_DeInitialize_Params>(CUpti_Profiler_DeInitialize_Params_STRUCT_SIZE);
  api_.warn(api_.deinitialize(&params), "cuptiProfilerDeInitialize");
}

std::string ProfilerLibrary::chip_name(int device) const {
  auto params = sized<CUpti_Device_GetChipName_Params>(CUpti_Device_GetChipName_Params_STRUCT_SIZE);
  params.deviceIndex = static_cast<std::size_t>(device);
  api_.check(api_.chip_name(&params), "cuptiDeviceGetChipName");
  return params.pChipName;
}

std::vector<std::uint8_t> ProfilerLibrary::counter_availability(CUcontext context) const {
  auto params = sized<CUpti_Profiler_GetCounterAvailability_Params>(
      CUpti_Profiler_GetCounterAvailability_Params_STRUCT_SIZE);
  params.ctx = context;
  api_.check(api_.counter_availability(&params), "cuptiProfilerGetCounterAvailability");
  std::vector<std::uint8_t> image(params.counterAvailabilityImageSize);
  params.pCounterAvailabilityImage = image.data();
  api_.check(api_.counter_availability(&params), "cuptiProfilerGetCounterAvailability");
  return image;
}

RangeProfiler::RangeProfiler(const ProfilerApi& api, CUcontext context) : api_(api) {
  auto params =
      sized<CUpti_RangeProfiler_Enable_Params>(CUpti_RangeProfiler_Enable_Params_STRUCT_SIZE);
  params.ctx = context;
  api_.check(api_.enable(&params), "cuptiRangeProfilerEnable");
  profiler_ = params.pRangeProfilerObject;
}

RangeProfiler::~RangeProfiler() {
  if (started_) {
    auto params =
        sized<CUpti_RangeProfiler_Stop_Params>(CUpti_RangeProfiler_Stop_Params_STRUCT_SIZE);
    params.pRangeProfilerObject = profiler_;
    api_.warn(api_.stop(&params), "cuptiRangeProfilerStop");
  }
  auto params =
      sized<CUpti_RangeProfiler_Disable_Params>(CUpti_RangeProfiler_Disable_Params_STRUCT_SIZE);
  params.pRangeProfilerObject = profiler_;
  api_.warn(api_.disable(&params), "cuptiRangeProfilerDisable");
}

void RangeProfiler::configure(std::span<const std::uint8_t> config_image,
                              std::span<const char* const> metrics, std::size_t ranges) {
  make_counter_data(metrics, ranges);
  auto params =
      sized<CUpti_RangeProfiler_SetConfig_Params>(CUpti_RangeProfiler_SetConfig_Params_STRUCT_SIZE);
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
  auto size = sized<CUpti_RangeProfiler_GetCounterDataSize_Params>(
      CUpti_RangeProfiler_GetCounterDataSize_Params_STRUCT_SIZE);
  size.pRangeProfilerObject = profiler_;
  size.pMetricNames = const_cast<const char**>(metrics.data());  // CUPTI does not modify them
  size.numMetrics = metrics.size();
  size.maxNumOfRanges = ranges;
  size.maxNumRangeTreeNodes = static_cast<std::uint32_t>(ranges);
  api_.check(api_.counter_data_size(&size), "cuptiRangeProfilerGetCounterDataSize");

  counter_data_.assign(size.counterDataSize, 0);
  auto initialize = sized<CUpti_RangeProfiler_CounterDataImage_Initialize_Params>(
      CUpti_RangeProfiler_CounterDataImage_Initialize_Params_STRUCT_SIZE);
  initialize.pRangeProfilerObject = profiler_;
  initialize.counterDataSize = counter_data_.size();
  initialize.pCounterData = counter_data_.data();
  api_.check(api_.initialize_counter_data(&initialize),
             "cuptiRangeProfilerCounterDataImageInitialize");
}

void RangeProfiler::start() {
  auto params =
      sized<CUpti_RangeProfiler_Start_Params>(CUpti_RangeProfiler_Start_Params_STRUCT_SIZE);
  params.pRangeProfilerObject = profiler_;
  api_.check(api_.start(&params), "cuptiRangeProfilerStart");
  started_ = true;
}

void RangeProfiler::stop() {
  auto params = sized<CUpti_RangeProfiler_Stop_Params>(CUpti_RangeProfiler_Stop_Params_STRUCT_SIZE);
  params.pRangeProfilerObject = profiler_;
  started_ = false;
  api_.check(api_.stop(&params), "cuptiRangeProfilerStop");
}

std::size_t RangeProfiler::decode() {
  auto params = sized<CUpti_RangeProfiler_DecodeData_Params>(
      CUpti_RangeProfiler_DecodeData_Params_STRUCT_SIZE);
  params.pRangeProfilerObject = profiler_;
  api_.check(api_.decode(&params), "cuptiRangeProfilerDecodeData");
  return params.numOfRangeDropped;
}

std::vector<std::size_t> RangeProfiler::launches() const {
  auto info = sized<CUpti_RangeProfiler_GetCounterDataInfo_Params>(
      CUpti_RangeProfiler_GetCounterDataInfo_Params_STRUCT_SIZE);
  info.pCounterDataImage = counter_data_.data();
  info.counterDataImageSize = counter_data_.size();
  api_.check(api_.counter_data_info(&info), "cuptiRangeProfilerGetCounterDataInfo");

  std::vector<std::size_t> launches;
  for (std::size_t range = 0; range < info.numTotalRanges; ++range) {
    auto params = sized<CUpti_RangeProfiler_CounterData_GetRangeInfo_Params>(
        CUpti_RangeProfiler_CounterData_GetRangeInfo_Params_STRUCT_SIZE);
    params.pCounterDataImage = counter_data_.data();
    params.counterDataImageSize = counter_data_.size();
    params.rangeIndex = range;
    params.rangeDelimiter = "/";
    api_.check(api_.range_info(&params), "cuptiRangeProfilerCounterDataGetRangeInfo");
    launches.push_back(number_of(params.rangeName == nullptr ? "" : params.rangeName, range));
  }
  return launches;
}

}  // namespace convtime
