#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/cupti_error.h"
#include "helpers.h"
#include "timing/counters/profiler.h"
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

/// A function that does this, and is noted; of its arguments, the size is that of CUPTI's header.
#define FAKE(function, Params, ...)                        \
  api.function = [](Params* params) {                      \
    __VA_ARGS__;                                           \
    return noted(#function, params, Params##_STRUCT_SIZE); \
  }

ProfilerApi fake_api() {
  ProfilerApi api;
  api.result_string = [](CUptiResult status, const char** text) {
    *text = status == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
                                                          : "CUPTI_ERROR_UNKNOWN";
    return CUPTI_SUCCESS;
  };
  FAKE(initialize, CUpti_Profiler_Initialize_Params);
  FAKE(deinitialize, CUpti_Profiler_DeInitialize_Params);
  FAKE(chip_name, CUpti_Device_GetChipName_Params, params->pChipName = "GH100");
  FAKE(
      counter_availability, CUpti_Profiler_GetCounterAvailability_Params,
      params->counterAvailabilityImageSize = kImageBytes;
      if (params->pCounterAvailabilityImage != nullptr) {
        std::fill_n(params->pCounterAvailabilityImage, kImageBytes, kAvailable);
      });
  FAKE(host_initialize, CUpti_Profiler_Host_Initialize_Params,
       EXPECT_EQ(params->profilerType, CUPTI_PROFILER_TYPE_RANGE_PROFILER);
       EXPECT_STREQ(params->pChipName, "GH100");
       fake.availability = params->pCounterAvailabilityImage; fake.metrics.clear();
       params->pHostObject = handle<CUpti_Profiler_Host_Object>());
  FAKE(host_deinitialize, CUpti_Profiler_Host_Deinitialize_Params,
       EXPECT_EQ(params->pHostObject, handle<CUpti_Profiler_Host_Object>()));
  FAKE(base_metrics, CUpti_Profiler_Host_GetBaseMetrics_Params,
       static const char* names[] = {"dram__bytes", "lts__hit_rate", "sm__throughput"};
       params->ppMetricNames = &names[params->metricType]; params->numMetrics = 1);
  FAKE(add_metrics, CUpti_Profiler_Host_ConfigAddMetrics_Params, expect_availability();
       fake.metrics.insert(fake.metrics.end(), params->ppMetricNames,
                           params->ppMetricNames + params->numMetrics));
  FAKE(config_image_size, CUpti_Profiler_Host_GetConfigImageSize_Params,
       params->configImageSize = kImageBytes);
  FAKE(config_image, CUpti_Profiler_Host_GetConfigImage_Params,
       EXPECT_EQ(params->configImageSize, kImageBytes));
  FAKE(number_of_passes, CUpti_Profiler_Host_GetNumOfPasses_Params,
       params->numOfPasses = fake.passes());
  FAKE(
      evaluate, CUpti_Profiler_Host_EvaluateToGpuValues_Params, expect_availability();
      for (std::size_t metric = 0; metric < params->numMetrics; ++metric) {
        const std::string name = params->ppMetricNames[metric];
        params->pMetricValues[metric] = static_cast<double>(100 * params->rangeIndex + name.size());
      });
  FAKE(enable, CUpti_RangeProfiler_Enable_Params,
       params->pRangeProfilerObject = handle<CUpti_RangeProfiler_Object>());
  FAKE(disable, CUpti_RangeProfiler_Disable_Params,
       EXPECT_FALSE(fake.started) << "disabled before it was stopped");
  FAKE(counter_data_size, CUpti_RangeProfiler_GetCounterDataSize_Params,
       EXPECT_GE(params->maxNumRangeTreeNodes, params->maxNumOfRanges);
       params->counterDataSize = kImageBytes);
  FAKE(initialize_counter_data, CUpti_RangeProfiler_CounterDataImage_Initialize_Params,
       EXPECT_EQ(params->counterDataSize, kImageBytes));
  FAKE(set_config, CUpti_RangeProfiler_SetConfig_Params, EXPECT_EQ(params->range, CUPTI_AutoRange);
       EXPECT_EQ(params->replayMode, CUPTI_KernelReplay); EXPECT_EQ(params->numNestingLevels, 1);
       fake.room = params->maxRangesPerPass);
  FAKE(start, CUpti_RangeProfiler_Start_Params, fake.launched = 0;
       fake.started = fake.fails != "start");
  FAKE(stop, CUpti_RangeProfiler_Stop_Params, EXPECT_TRUE(fake.started) << "stopped twice";
       fake.started = false; fake.counted = fake.launched);
  FAKE(decode, CUpti_RangeProfiler_DecodeData_Params,
       params->numOfRangeDropped = fake.counted > fake.room ? fake.counted - fake.room : 0);
  FAKE(counter_data_info, CUpti_RangeProfiler_GetCounterDataInfo_Params,
       params->numTotalRanges = fake.names.size());
  FAKE(range_info, CUpti_RangeProfiler_CounterData_GetRangeInfo_Params,
       params->rangeName = fake.names.at(params->rangeIndex).c_str());
  FAKE(
      metric_properties, CUpti_Profiler_Host_GetMetricProperties_Params,
      params->pDescription = "# of bytes";
      params->pDimUnit = "byte"; if (std::string(params->pMetricName) == "dram__byte.sum") {
        return CUPTI_ERROR_INVALID_METRIC_NAME;
      });
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

  auto times(const std::string& call) const { return std::ranges::count(fake.calls, call); }

  /// What count() says where it throws: CUPTI's result, and all of it.
  std::pair<std::string, std::string> failure() {
    try {
      count();
    } catch (const CuptiError& error) {
      return {error.result(), error.what()};
    }
    return {};
  }

  void expect_nothing_left() {
    EXPECT_FALSE(fake.started);
    // Each was undone as often as it succeeded.
    const std::map<std::string, std::string> undone = {{"initialize", "deinitialize"},
                                                       {"host_initialize", "host_deinitialize"},
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

TEST_F(CountersTest, CallsOnceForAsManyMetricsAsOnePassCountsAndAnewForEachRepeat) {
  using Values = std::vector<std::vector<double>>;
  const Values expected{{4, 9, 6}, {104, 109, 106}};
  EXPECT_EQ(count(), std::vector<Values>{expected});
  EXPECT_EQ(call_.calls, 2);
  EXPECT_EQ(fake.counted, 2U);  // and not what prepares the call
  expect_nothing_left();
  EXPECT_EQ(count(2), (std::vector<Values>{expected, expected}));
  EXPECT_EQ(call_.calls, 2 + 4);
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
  const auto [result, said] = failure();
  EXPECT_EQ(result, "kernels uncounted");
  EXPECT_TRUE(contains(said, "counted 1 of the 2 kernels that the call launches"));
  EXPECT_EQ(call_.calls, 2);
  expect_nothing_left();
}

TEST_F(CountersTest, OrdersKernelsByTheirNumbersAndCountsFewerWhereCallsDiffer) {
  EXPECT_EQ(count(1, 9, true).at(0).size(), 2U);
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
        failing == "host_deinitialize" || failing == "deinitialize" || failing == "disable";
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
  EXPECT_EQ(failure(), std::pair(std::string("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"),
                                 std::string("CUPTI call failed: cuptiRangeProfilerEnable returned "
                                             "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")));
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
  EXPECT_TRUE(contains(error_of<std::runtime_error>([&] { count(); }),
                       "3 kernels ran, but the call was seen to launch 2:"));
  expect_nothing_left();
  call_ = Launching(1000);  // that there is no room for
  EXPECT_THROW(count(), std::runtime_error);
  expect_nothing_left();
}

TEST(CountingTurn, IsForOneAtATime) {
  {
    const CountingTurn turn;
    EXPECT_NO_THROW(turn.require());
    EXPECT_THROW(CountingTurn(), std::runtime_error);
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
