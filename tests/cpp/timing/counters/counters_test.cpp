#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/cupti_error.h"
#include "timing/counters/metric_host.h"
#include "timing/counters/passes.h"
#include "timing/counters/profiler_api.h"
#include "timing/counters/profiler_libraries.h"
#include "timing/counters/range_profiler.h"
#include "timing/counters/scheduling.h"
#include "timing/trace/cupti_session.h"

// Reading counters, on a stand-in for CUPTI: what is asked of it, in which order, and what is left
// behind where it fails.

namespace convtime {
namespace {

/// A CUPTI whose device runs kernels that tests launch.
struct Fake {
  std::vector<std::string> calls;
  const std::uint8_t* availability = nullptr;  ///< that the newest host was given
  std::string fails;                           ///< the call that does
  std::vector<std::string> metrics;            ///< that were added to the newest host
  bool started = false;
  std::size_t launched = 0;  ///< since the last start
  std::size_t counted = 0;   ///< between the last start and stop
  std::size_t room = 0;
  /// The names of ranges, in the order that it gives them.
  std::vector<std::string> names;

  void launch() { launched += 1; }

  /// Two metrics fit into a pass, and a throughput takes three.
  std::size_t passes() const {
    std::size_t throughputs = 0;
    for (const std::string& metric : metrics) {
      throughputs += metric.find("throughput") == std::string::npos ? 0 : 1;
    }
    return 3 * throughputs + (metrics.size() - throughputs + 1) / 2;
  }
};

Fake fake;

template <typename Params>
CUptiResult noted(const char* call, Params* params, std::size_t bytes) {
  fake.calls.push_back(call);
  EXPECT_EQ(params->structSize, bytes) << call;
  EXPECT_EQ(params->pPriv, nullptr) << call;
  return fake.fails == call ? CUPTI_ERROR_INSUFFICIENT_PRIVILEGES : CUPTI_SUCCESS;
}

int object = 0;

template <typename Object>
Object* handle() {
  return reinterpret_cast<Object*>(&object);
}

constexpr std::size_t kImageBytes = 16;
constexpr std::uint8_t kAvailable = 0xA5;

/// CUPTI goes on reading what its host was given.
void expect_availability() {
  for (std::size_t byte = 0; fake.availability != nullptr && byte < kImageBytes; ++byte) {
    EXPECT_EQ(fake.availability[byte], kAvailable);
  }
}

/// Names the structure of the arguments, whose size is the one that CUPTI's header gives.
#define NOTED(call, params, Params) noted(call, params, Params##_STRUCT_SIZE)

ProfilerApi fake_api() {
  ProfilerApi api;
  api.result_string = [](CUptiResult status, const char** text) {
    *text = status == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
                                                          : "CUPTI_ERROR_UNKNOWN";
    return CUPTI_SUCCESS;
  };
  api.initialize = [](CUpti_Profiler_Initialize_Params* params) {
    return NOTED("initialize", params, CUpti_Profiler_Initialize_Params);
  };
  api.deinitialize = [](CUpti_Profiler_DeInitialize_Params* params) {
    return NOTED("deinitialize", params, CUpti_Profiler_DeInitialize_Params);
  };
  api.chip_name = [](CUpti_Device_GetChipName_Params* params) {
    params->pChipName = "GH100";
    return NOTED("chip name", params, CUpti_Device_GetChipName_Params);
  };
  api.counter_availability = [](CUpti_Profiler_GetCounterAvailability_Params* params) {
    params->counterAvailabilityImageSize = kImageBytes;
    if (params->pCounterAvailabilityImage != nullptr) {
      std::fill_n(params->pCounterAvailabilityImage, kImageBytes, kAvailable);
    }
    return NOTED("availability", params, CUpti_Profiler_GetCounterAvailability_Params);
  };
  api.host_initialize = [](CUpti_Profiler_Host_Initialize_Params* params) {
    EXPECT_EQ(params->profilerType, CUPTI_PROFILER_TYPE_RANGE_PROFILER);
    EXPECT_STREQ(params->pChipName, "GH100");
    fake.availability = params->pCounterAvailabilityImage;
    fake.metrics.clear();
    params->pHostObject = handle<CUpti_Profiler_Host_Object>();
    return NOTED("host initialize", params, CUpti_Profiler_Host_Initialize_Params);
  };
  api.host_deinitialize = [](CUpti_Profiler_Host_Deinitialize_Params* params) {
    EXPECT_EQ(params->pHostObject, handle<CUpti_Profiler_Host_Object>());
    return NOTED("host deinitialize", params, CUpti_Profiler_Host_Deinitialize_Params);
  };
  api.base_metrics = [](CUpti_Profiler_Host_GetBaseMetrics_Params* params) {
    static std::array<const char*, 3> names = {"dram__bytes", "lts__hit_rate", "sm__throughput"};
    params->ppMetricNames = &names.at(params->metricType);
    params->numMetrics = 1;
    return NOTED("base metrics", params, CUpti_Profiler_Host_GetBaseMetrics_Params);
  };
  api.metric_properties = [](CUpti_Profiler_Host_GetMetricProperties_Params* params) {
    params->pDescription = "# of bytes";
    params->pDimUnit = "byte";
    const CUptiResult status =
        NOTED("metric properties", params, CUpti_Profiler_Host_GetMetricProperties_Params);
    return std::string(params->pMetricName) == "dram__byte.sum" ? CUPTI_ERROR_INVALID_METRIC_NAME
                                                                : status;
  };
  api.add_metrics = [](CUpti_Profiler_Host_ConfigAddMetrics_Params* params) {
    expect_availability();
    fake.metrics.insert(fake.metrics.end(), params->ppMetricNames,
                        params->ppMetricNames + params->numMetrics);
    return NOTED("add metrics", params, CUpti_Profiler_Host_ConfigAddMetrics_Params);
  };
  api.config_image_size = [](CUpti_Profiler_Host_GetConfigImageSize_Params* params) {
    params->configImageSize = kImageBytes;
    return NOTED("config image size", params, CUpti_Profiler_Host_GetConfigImageSize_Params);
  };
  api.config_image = [](CUpti_Profiler_Host_GetConfigImage_Params* params) {
    EXPECT_EQ(params->configImageSize, kImageBytes);
    return NOTED("config image", params, CUpti_Profiler_Host_GetConfigImage_Params);
  };
  api.number_of_passes = [](CUpti_Profiler_Host_GetNumOfPasses_Params* params) {
    params->numOfPasses = fake.passes();
    return NOTED("number of passes", params, CUpti_Profiler_Host_GetNumOfPasses_Params);
  };
  api.evaluate = [](CUpti_Profiler_Host_EvaluateToGpuValues_Params* params) {
    expect_availability();
    for (std::size_t metric = 0; metric < params->numMetrics; ++metric) {
      const std::string name = params->ppMetricNames[metric];
      params->pMetricValues[metric] = static_cast<double>(100 * params->rangeIndex + name.size());
    }
    return NOTED("evaluate", params, CUpti_Profiler_Host_EvaluateToGpuValues_Params);
  };
  api.enable = [](CUpti_RangeProfiler_Enable_Params* params) {
    params->pRangeProfilerObject = handle<CUpti_RangeProfiler_Object>();
    return NOTED("enable", params, CUpti_RangeProfiler_Enable_Params);
  };
  api.disable = [](CUpti_RangeProfiler_Disable_Params* params) {
    EXPECT_FALSE(fake.started) << "disabled before it was stopped";
    return NOTED("disable", params, CUpti_RangeProfiler_Disable_Params);
  };
  api.counter_data_size = [](CUpti_RangeProfiler_GetCounterDataSize_Params* params) {
    EXPECT_GE(params->maxNumRangeTreeNodes, params->maxNumOfRanges);
    params->counterDataSize = kImageBytes;
    return NOTED("counter data size", params, CUpti_RangeProfiler_GetCounterDataSize_Params);
  };
  api.initialize_counter_data = [](CUpti_RangeProfiler_CounterDataImage_Initialize_Params* params) {
    EXPECT_EQ(params->counterDataSize, kImageBytes);
    return NOTED("initialize counter data", params,
                 CUpti_RangeProfiler_CounterDataImage_Initialize_Params);
  };
  api.set_config = [](CUpti_RangeProfiler_SetConfig_Params* params) {
    EXPECT_EQ(params->range, CUPTI_AutoRange);
    EXPECT_EQ(params->replayMode, CUPTI_KernelReplay);
    EXPECT_EQ(params->numNestingLevels, 1);
    fake.room = params->maxRangesPerPass;
    return NOTED("set config", params, CUpti_RangeProfiler_SetConfig_Params);
  };
  api.start = [](CUpti_RangeProfiler_Start_Params* params) {
    fake.launched = 0;
    const CUptiResult status = NOTED("start", params, CUpti_RangeProfiler_Start_Params);
    fake.started = status == CUPTI_SUCCESS;
    return status;
  };
  api.stop = [](CUpti_RangeProfiler_Stop_Params* params) {
    EXPECT_TRUE(fake.started) << "stopped twice";
    fake.started = false;
    fake.counted = fake.launched;
    return NOTED("stop", params, CUpti_RangeProfiler_Stop_Params);
  };
  api.decode = [](CUpti_RangeProfiler_DecodeData_Params* params) {
    params->numOfRangeDropped = fake.counted > fake.room ? fake.counted - fake.room : 0;
    return NOTED("decode", params, CUpti_RangeProfiler_DecodeData_Params);
  };
  api.counter_data_info = [](CUpti_RangeProfiler_GetCounterDataInfo_Params* params) {
    params->numTotalRanges = fake.names.size();
    return NOTED("counter data info", params, CUpti_RangeProfiler_GetCounterDataInfo_Params);
  };
  api.range_info = [](CUpti_RangeProfiler_CounterData_GetRangeInfo_Params* params) {
    params->rangeName = fake.names.at(params->rangeIndex).c_str();
    return NOTED("range info", params, CUpti_RangeProfiler_CounterData_GetRangeInfo_Params);
  };
  return api;
}

/// A call that launches kernels, and is prepared by launching another.
class Launching final : public Callable {
 public:
  explicit Launching(std::size_t kernels) : kernels_(kernels) {}
  void prepare() override { fake.launch(); }
  void call() override {
    ++calls;
    for (std::size_t i = 0; i < kernels_; ++i) {
      fake.launch();
    }
    if (throws) {
      throw std::logic_error("the call's own");
    }
  }

  int calls = 0;
  bool throws = false;

 private:
  std::size_t kernels_;
};

class CountersTest : public testing::Test {
 protected:
  void SetUp() override {
    fake = {};
    fake.names = {"0", "1"};
  }

  MakeHost host_maker() {
    return [this] { return std::make_unique<MetricHost>(api_, "GH100"); };
  }

  /// Of a call that is said to launch so many kernels, or up to as many; for each repeat.
  std::vector<std::vector<std::vector<double>>> count(std::size_t repeats = 1,
                                                      std::size_t launches = 2,
                                                      bool or_fewer = false) {
    const ProfilerLibrary library(api_);
    const std::string chip = library.chip_name(0);
    const std::vector<std::uint8_t> availability = library.counter_availability(nullptr);
    const auto parts = schedule_by_pass(
        [&] { return std::make_unique<MetricHost>(api_, chip, availability); }, kMetrics);
    const std::size_t fewest = or_fewer ? 0 : launches;
    return count_calls({call_, parts, fewest, launches, repeats}, api_, nullptr, hooks_);
  }

  std::size_t times(const std::string& call) const {
    std::size_t times = 0;
    for (const std::string& made : fake.calls) {
      times += made == call ? 1 : 0;
    }
    return times;
  }

  void expect_nothing_left() {
    EXPECT_FALSE(fake.started);
    // Each was undone as often as it succeeded.
    const std::map<std::string, std::string> undone = {{"initialize", "deinitialize"},
                                                       {"host initialize", "host deinitialize"},
                                                       {"enable", "disable"},
                                                       {"start", "stop"}};
    for (const auto& [done, undo] : undone) {
      EXPECT_EQ(times(done) - (fake.fails == done ? 1 : 0), times(undo)) << done;
    }
  }

  static constexpr std::array<const char*, 3> kMetrics = {"dram", "gpu__time", "cycles"};

  ProfilerApi api_ = fake_api();
  Launching call_{2};
  CountingHooks hooks_{.host = {}, .synchronize = [] {}, .require_turn = [] {}};
};

TEST_F(CountersTest, CallsOnceForAsManyMetricsAsOnePassCounts) {
  const auto values = count();
  EXPECT_EQ(call_.calls, 2);
  EXPECT_EQ(values, (std::vector<std::vector<std::vector<double>>>{{{4, 9, 6}, {104, 109, 106}}}));
  EXPECT_EQ(fake.counted, 2U);  // and not what prepares the call
  expect_nothing_left();
}

TEST_F(CountersTest, CountsAnewForEachRepeat) {
  const auto values = count(2);
  EXPECT_EQ(call_.calls, 4);
  ASSERT_EQ(values.size(), 2U);
  EXPECT_EQ(values[0], values[1]);
  expect_nothing_left();
}

TEST_F(CountersTest, PutsMetricsTogetherInTheirOrder) {
  const std::array<const char*, 7> metrics = {"a", "b", "throughput c", "d", "e", "f", "g"};
  const auto parts = schedule_by_pass(host_maker(), metrics);
  std::vector<std::pair<std::string, std::size_t>> found;
  for (const ScheduledMetrics& part : parts) {
    std::string names;
    for (const char* const name : part.names) {
      names += name;
    }
    found.emplace_back(names, part.schedule.passes);
  }
  EXPECT_EQ(found, (std::vector<std::pair<std::string, std::size_t>>{
                       {"ab", 1}, {"throughput c", 3}, {"de", 1}, {"fg", 1}}));
  EXPECT_EQ(schedule_together(host_maker(), metrics).schedule.passes, 6U);
}

TEST_F(CountersTest, RefusesACallOfWhichNotAllIsCounted) {
  hooks_.require_turn = [turns = 0]() mutable {
    if (++turns == 2) {
      fake.names.pop_back();
    }
  };
  try {
    count();
    FAIL();
  } catch (const CuptiError& refused) {
    EXPECT_EQ(refused.result(), "kernels uncounted");
    EXPECT_STREQ(
        refused.what(),
        "CUPTI counted 1 of the 2 kernels that the call launches, and CUPTI's range profiler does "
        "not count the nodes of a CUDA graph one by one; count the call that was captured, not the "
        "graph's replay");
  }
  EXPECT_EQ(call_.calls, 2);
  expect_nothing_left();
}

TEST_F(CountersTest, CountsFewerKernelsWhereCallsDiffer) {
  EXPECT_EQ(count(1, 9, true).at(0).size(), 2U);
}

TEST_F(CountersTest, OrdersKernelsByTheirNumbers) {
  fake.names = {"0", "1", "10", "2", "3", "4", "5", "6", "7", "8", "9"};
  const auto values = count(1, 11).at(0);
  ASSERT_EQ(values.size(), 11U);
  EXPECT_EQ(values[2][0], 304);
  EXPECT_EQ(values[10][0], 204);
}

TEST_F(CountersTest, LeavesNothingBehindWhateverFails) {
  count();
  const std::vector<std::string> calls = fake.calls;
  for (const std::string& failing : calls) {
    SetUp();
    fake.fails = failing;
    const bool undoes =
        failing == "host deinitialize" || failing == "deinitialize" || failing == "disable";
    testing::internal::CaptureStderr();
    if (undoes) {
      EXPECT_NO_THROW(count()) << failing;  // there is nothing more to be done, and it is said
      EXPECT_NE(testing::internal::GetCapturedStderr().find("INSUFFICIENT"), std::string::npos);
    } else {
      EXPECT_THROW(count(), CuptiError) << failing;
      EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << failing;
    }
    expect_nothing_left();
  }
}

TEST_F(CountersTest, SaysWhatCuptiSaid) {
  fake.fails = "enable";
  try {
    count();
    FAIL();
  } catch (const CuptiError& error) {
    EXPECT_EQ(error.result(), "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES");
    EXPECT_STREQ(error.what(),
                 "CUPTI call failed: cuptiRangeProfilerEnable returned "
                 "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES");
  }
}

TEST_F(CountersTest, EndsWithTheCallsOwnFailure) {
  call_.throws = true;
  EXPECT_THROW(count(), std::logic_error);
  EXPECT_EQ(times("stop"), 1U);
  expect_nothing_left();
}

TEST_F(CountersTest, EndsWhereAProfilerBegins) {
  int parts = 0;
  hooks_.require_turn = [&parts] {
    if (++parts == 2) {
      throw std::runtime_error("a profiler has begun");
    }
  };
  EXPECT_THROW(count(), std::runtime_error);
  EXPECT_EQ(call_.calls, 1);
  expect_nothing_left();
}

TEST_F(CountersTest, RefusesKernelsThatAreNotTheCalls) {
  fake.names = {"0", "1", "2"};
  try {
    count();
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()).find("3 kernels ran, but the call was seen to launch 2:"),
              0U)
        << error.what();
  }
  expect_nothing_left();
}

TEST_F(CountersTest, RefusesKernelsThatThereIsNoRoomFor) {
  call_ = Launching(1000);
  EXPECT_THROW(count(), std::runtime_error);
  expect_nothing_left();
}

TEST(CountingTurn, IsForOneAtATime) {
  const CountingTurn turn;
  EXPECT_NO_THROW(turn.require());
  EXPECT_THROW(CountingTurn(), std::runtime_error);
}

TEST(CountingTurn, IsAgainFreeBehindTheLast) {
  {
    const CountingTurn turn;
  }
  EXPECT_NO_THROW(CountingTurn());
}

TEST(CountingTurn, IsNoneWhileAProfilerRecordsOrIsAboutTo) {
  {
    const MakeWay way;
    EXPECT_THROW(CountingTurn(), std::runtime_error);
  }
  set_profiler_check([] { return true; });
  EXPECT_THROW(CountingTurn(), std::runtime_error);
  set_profiler_check(nullptr);
  EXPECT_NO_THROW(CountingTurn());
}

TEST(CountingTurn, EndsWithAProfilerThatBegins) {
  const CountingTurn turn;
  {
    const MakeWay way;
  }  // it may be over again before anyone looks
  EXPECT_THROW(turn.require(), std::runtime_error);
}

/// The folder of a library that is loaded already, asked for as CUPTI asks for it.
std::filesystem::path folder_of(const char* library) {
  void* const loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  link_map* map = nullptr;
  if (loaded == nullptr || dlinfo(loaded, RTLD_DI_LINKMAP, &map) != 0) {
    return "not loaded";
  }
  return std::filesystem::canonical(map->l_name).parent_path();
}

TEST(ProfilerLibraries, AreThoseBesideCupti) {
  EXPECT_EQ(load_profiler_libraries(), "");
  Dl_info cupti{};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&cuptiProfilerInitialize), &cupti), 0);
  const auto folder = std::filesystem::canonical(cupti.dli_fname).parent_path();
  EXPECT_EQ(folder_of("libnvperf_host.so"), folder);
  EXPECT_EQ(folder_of("libnvperf_target.so"), folder);
}

TEST_F(CountersTest, KnowsAChipsMetrics) {
  const MetricHost host(api_, "GH100");
  EXPECT_EQ(host.metrics(),
            (std::vector<std::string>{"dram__bytes.sum", "lts__hit_rate.ratio",
                                      "sm__throughput.avg.pct_of_peak_sustained_elapsed"}));
  EXPECT_EQ(host.describe("dram__bytes.sum").value().unit, "byte");
  EXPECT_EQ(host.describe("dram__bytes.sum").value().hardware_unit, "");
  EXPECT_FALSE(host.describe("dram__byte.sum").has_value());
}

}  // namespace
}  // namespace convtime
