#include "timing/judge/host_reading.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "helpers.h"

namespace convtime {
namespace {

/// Of a call of one thread that nothing disturbed, on an idle machine.
HostReading quiet(double seconds) {
  return {.seconds = seconds,
          .cpu_seconds = seconds,
          .waiting_seconds = 0,
          .longest_wait_seconds = 0,
          .threads = 1,
          .throttled_seconds = 0,
          .others_seconds = 0};
}

HostReading with(double HostReading::* quantity, double value, double seconds = 0.01) {
  HostReading reading = quiet(seconds);
  reading.*quantity = value;
  return reading;
}

TEST(Disturbance, IsWhatOthersDoToACall) {
  EXPECT_FALSE(is_disturbed(quiet(0.01), 2));
  EXPECT_TRUE(is_disturbed(with(&HostReading::longest_wait_seconds, 0.004), 2));
  EXPECT_TRUE(is_disturbed(with(&HostReading::throttled_seconds, 0.005), 2));
  EXPECT_TRUE(is_disturbed(with(&HostReading::stolen_seconds, 0.001), 2));
  EXPECT_TRUE(is_disturbed(with(&HostReading::others_seconds, 0.01), 2));
  HostReading from_disk = quiet(0.01);
  from_disk.major_faults = 3;
  EXPECT_TRUE(is_disturbed(from_disk, 2));
}

TEST(Disturbance, IsNotWhatACallDoesItself) {
  HostReading sleeping = quiet(0.01);
  sleeping.cpu_seconds = 1e-4;
  sleeping.voluntary_switches = 1;
  EXPECT_FALSE(is_disturbed(sleeping, 2));
  HostReading touching = quiet(0.01);
  touching.minor_faults = 12'589;
  EXPECT_FALSE(is_disturbed(touching, 2));
  // To be woken up takes some microseconds, of short calls and of long ones.
  EXPECT_FALSE(is_disturbed(with(&HostReading::longest_wait_seconds, 30e-6, 100e-6), 2));
  EXPECT_FALSE(is_disturbed(with(&HostReading::longest_wait_seconds, 60e-6), 2));
}

TEST(Disturbance, LeavesOthersTheirCoresWhereThereAreEnough) {
  EXPECT_FALSE(is_disturbed(with(&HostReading::others_seconds, 0.02), 16));
  EXPECT_TRUE(is_disturbed(with(&HostReading::others_seconds, 0.02), 2));
}

TEST(Disturbance, IsSeenWithoutRunQueues) {
  HostReading preempted = quiet(0.01);
  preempted.longest_wait_seconds = HostReading::kUnknown;
  preempted.involuntary_switches = 1;
  EXPECT_FALSE(is_disturbed(preempted, 2));
  preempted.cpu_seconds = 0.006;
  preempted.involuntary_switches = 0;  // it slept
  EXPECT_FALSE(is_disturbed(preempted, 2));
  preempted.involuntary_switches = 1;
  EXPECT_TRUE(is_disturbed(preempted, 2));
}

HostRecord record_of(const std::vector<HostReading>& readings, const HostReading& run = {}) {
  HostRecord record;
  record.readings = readings;
  record.whole_run = run;
  record.cores = 2;
  return record;
}

std::string told(const std::vector<HostReading>& readings, const HostReading& run = {}) {
  return describe_disturbance(record_of(readings, run), in_turn(readings.size(), 100));
}

TEST(Disturbance, IsToldWithHowMuchItWas) {
  EXPECT_EQ(told({quiet(0.01), quiet(0.01)}), "");
  const HostReading waited = with(&HostReading::longest_wait_seconds, 0.004);
  EXPECT_TRUE(contains(told({waited, quiet(0.01)}), "20 %"));
  EXPECT_TRUE(contains(told({with(&HostReading::throttled_seconds, 0.005)}), "50 %"));
  EXPECT_TRUE(contains(told({with(&HostReading::others_seconds, 0.009)}), "0.9"));
  // Few samples are not told of, and others' work is counted over the whole run.
  std::vector<HostReading> readings(20, quiet(0.01));
  readings[3] = waited;
  EXPECT_EQ(told(readings), "");
  readings[4] = readings[5] = waited;
  EXPECT_NE(told(readings), "");
  const HostReading run = with(&HostReading::others_seconds, 0.9, 1.0);
  EXPECT_TRUE(contains(told({quiet(0.01)}, run), "0.9"));
  EXPECT_EQ(told({quiet(0.01)}, with(&HostReading::others_seconds, 0.02, 0.02)), "")
      << "two ticks of 10 ms say nothing";
}

TEST(Disturbance, OtherRunsDifferMoreWhereSeveralThreadsCompute) {
  const auto of_threads = [](double threads) {
    HostReading reading = quiet(0.01);
    reading.threads = threads;
    return reading;
  };
  const auto share = [](const std::vector<HostReading>& readings) {
    return share_between_runs(record_of(readings), in_turn(3, 3));
  };
  const HostReading one = of_threads(1);
  const HostReading two = of_threads(2);
  EXPECT_GT(share({one, one, two}), 0);
  EXPECT_GT(share({one, two, two}), share({one, one, two}));
  EXPECT_EQ(share({one, one, of_threads(HostReading::kUnknown)}), share({one, one, one}));
  EXPECT_EQ(share_between_runs({}, {}), 0);
}

}  // namespace
}  // namespace convtime
