#include "timing/conditions/host_probe.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "timing/clock.h"

namespace convtime {
namespace {

namespace fs = std::filesystem;

/// Trees that look like those of a kernel.
class HostProbeTest : public ::testing::Test {
 protected:
  HostProbeTest() {
    fs::remove_all(root_);
    write("proc/stat", "cpu  0 0 0 0 0 0 0 0 0 0\n");
    write("proc/loadavg", "0.00 0.00 0.00 1/90 1234\n");
  }
  ~HostProbeTest() override { fs::remove_all(root_); }

  /// In place, since the probe keeps files open.
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path, std::ios::trunc) << text;
  }
  void write_thread(int id, long run, long wait) const {
    write("proc/self/task/" + std::to_string(id) + "/schedstat",
          std::to_string(run) + " " + std::to_string(wait) + " 7\n");
  }
  void write_state(int id, char state, int core) const {
    std::string text = std::to_string(id) + " (a (b) c) " + state;
    for (int field = 4; field < 39; ++field) {
      text += " 0";
    }
    write("proc/self/task/" + std::to_string(id) + "/stat",
          text + " " + std::to_string(core) + " 0\n");
  }
  HostProbe probe() const { return HostProbe(root_ / "proc", root_ / "cgroup"); }

  const fs::path root_ =
      fs::temp_directory_path() / ("convtime_host_probe_" + std::to_string(::getpid()));
};

TEST_F(HostProbeTest, TellsTheLongestWaitOfAThread) {
  write_thread(1, 1'000'000, 500);
  write_thread(2, 1'000'000, 500);
  HostProbe probe = this->probe();
  probe.begin(0);
  write_thread(1, 9'000'000, 3'000'500);
  write_thread(2, 9'000'000, 1'000'500);
  const HostReading reading = probe.end();
  EXPECT_DOUBLE_EQ(reading.longest_wait_seconds, 3e-3);
  EXPECT_DOUBLE_EQ(reading.waiting_seconds, 4e-3);
  EXPECT_EQ(reading.threads, 2);
  EXPECT_EQ(probe.missing(), "");
}

TEST_F(HostProbeTest, CountsWhoRunsBesideItsThreads) {
  write_thread(1, 0, 0);
  HostProbe probe = this->probe();
  probe.begin(0);
  write("proc/loadavg", "0.00 0.00 0.00 3/90 1234\n");
  const HostReading reading = probe.end();
  EXPECT_NEAR(reading.others_seconds / reading.seconds, 2, 1e-9);
}

// Until the next tick of the scheduler, the counter of a thread that runs stands still.
TEST_F(HostProbeTest, AThreadComputesWhereItsCounterMovesOrWhereItRuns) {
  const std::vector<int> threads{1, 2, 3};
  for (const int id : threads) {
    write_thread(id, 0, 0);
    write_state(id, 'S', 0);
  }
  HostProbe probe = this->probe();
  probe.begin(0);
  for (const int id : threads) {
    write_thread(id, 9'000'000, 0);
  }
  EXPECT_EQ(probe.end().threads, 3);
  probe.begin(0);
  write_state(1, 'R', 0);
  write_thread(2, 18'000'000, 0);
  EXPECT_EQ(probe.end().threads, 2);
}

TEST_F(HostProbeTest, TellsTheCoresOfThreadsThatComputed) {
  for (const int id : {1, 2, 3}) {
    write_thread(id, 0, 0);
    write_state(id, 'S', 4 + id);
  }
  HostProbe probe = this->probe();
  EXPECT_TRUE(probe.used_cores().empty());
  probe.begin(0);
  write_thread(1, 9'000'000, 0);
  write_thread(3, 9'000'000, 0);
  probe.end();
  EXPECT_EQ(probe.used_cores(), (std::vector<int>{5, 7}));
}

TEST_F(HostProbeTest, SaysWhatIsMissing) {
  fs::remove_all(root_);
  HostProbe probe = this->probe();
  probe.begin(0);
  const HostReading reading = probe.end();
  EXPECT_TRUE(std::isnan(reading.longest_wait_seconds));
  EXPECT_TRUE(std::isnan(reading.others_seconds));
  EXPECT_GT(reading.seconds, 0);
  EXPECT_NE(probe.missing().find("wait for a core"), std::string::npos) << probe.missing();
  EXPECT_NE(probe.missing().find("other processes"), std::string::npos) << probe.missing();
}

TEST_F(HostProbeTest, SeesTheQuotaOfAGroupAroundItsOwn) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("cgroup/outer/inner/cpu.max", "max 100000\n");
  write("cgroup/outer/inner/cpu.stat", "usage_usec 1\nthrottled_usec 900\n");
  write("cgroup/outer/cpu.max", "50000 100000\n");
  write("cgroup/outer/cpu.stat", "usage_usec 1\nnr_throttled 4\nthrottled_usec 100\n");
  HostProbe probe = this->probe();
  probe.begin(0);
  write("cgroup/outer/cpu.stat", "usage_usec 1\nnr_throttled 5\nthrottled_usec 2100\n");
  EXPECT_NEAR(probe.end().throttled_seconds, 2e-3, 1e-12);
}

TEST_F(HostProbeTest, SeesQuotasOfTheFirstVersionAndOfContainers) {
  // A container does not see its own path below the mount.
  write("proc/self/cgroup", "4:memory:/docker/1\n2:cpu,cpuacct:/docker/1\n0::/\n");
  write("cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
  write("cgroup/cpu,cpuacct/cpu.stat", "nr_periods 9\nnr_throttled 4\nthrottled_time 1000000\n");
  HostProbe probe = this->probe();
  probe.begin(0);
  write("cgroup/cpu,cpuacct/cpu.stat", "nr_periods 9\nnr_throttled 5\nthrottled_time 6000000\n");
  EXPECT_NEAR(probe.end().throttled_seconds, 5e-3, 1e-12);
}

TEST_F(HostProbeTest, IsNotThrottledWithoutAQuota) {
  write("proc/self/cgroup", "2:cpu:/\n");
  write("cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("cgroup/cpu/cpu.stat", "throttled_time 1000000\n");
  HostProbe probe = this->probe();
  probe.begin(0);
  write("cgroup/cpu/cpu.stat", "throttled_time 9000000\n");
  EXPECT_EQ(probe.end().throttled_seconds, 0);
}

TEST_F(HostProbeTest, CountsCoresInLongReadings) {
  const auto stat = [&](int busy, int stolen) {
    std::string text = "cpu  0 0 0 0 0 0 0 0 0 0\n";
    for (int core = 0; core < 64; ++core) {
      const bool first = core == 0;
      text += "cpu" + std::to_string(core) + " " + std::to_string(first ? busy : 0) +
              " 0 0 0 0 0 0 " + std::to_string(first ? stolen : 0) + " 0 0\n";
    }
    write("proc/stat", text);
  };
  write_thread(1, 0, 0);
  stat(100, 0);
  HostProbe probe = this->probe();
  if (!fs::exists("/sys/devices/system/cpu/cpu0") || probe.cores() > 64) {
    GTEST_SKIP() << "another set of cores";
  }
  probe.begin(1);
  stat(200, 7);
  const HostReading reading = probe.end();
  EXPECT_NEAR(reading.others_seconds, 1.0 - reading.cpu_seconds, 1e-6);
  EXPECT_NEAR(reading.stolen_seconds, 0.07, 1e-9);
}

TEST(HostProbe, SeesWhatThisProcessDoes) {
  HostProbe probe;
  probe.begin(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const HostReading slept = probe.end();
  EXPECT_GE(slept.seconds, 2e-3);
  EXPECT_LT(slept.cpu_seconds, 1e-3);
  EXPECT_GE(slept.voluntary_switches, 1);

  constexpr std::size_t kBytes = 16 << 20;
  probe.begin(0);
  {
    std::vector<char> touched(kBytes, 1);
    EXPECT_EQ(touched.back(), 1);
  }
  EXPECT_GE(probe.end().minor_faults, 1);
}

TEST(HostProbe, SeesThreadsThatStartLater) {
  HostProbe probe;
  if (!probe.missing().empty()) {
    GTEST_SKIP() << probe.missing();
  }
  std::atomic<bool> done = false;
  std::thread spinning([&] {
    while (!done) {
    }
  });
  double threads = 0;
  const double start = now_seconds();
  while (threads < 2 && now_seconds() - start < 5) {
    probe.begin(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    threads = probe.end().threads;
  }
  done = true;
  spinning.join();
  EXPECT_GE(threads, 1);
}

TEST(HostProbe, SaysThatTheCoresChanged) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  if (CPU_COUNT(&before) < 2) {
    GTEST_SKIP() << "there is one core";
  }
  HostProbe probe;
  EXPECT_EQ(probe.missing().find("changed"), std::string::npos);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(::sched_getcpu(), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_NE(probe.missing().find("changed during the run"), std::string::npos);
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(HostProbe, TakesMicroseconds) { EXPECT_LT(HostProbe().read_seconds(), 1e-3); }

}  // namespace
}  // namespace convtime
