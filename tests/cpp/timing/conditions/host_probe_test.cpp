#include "timing/conditions/host_probe.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "helpers.h"
#include "timing/clock.h"
#include "timing/conditions/text_file.h"

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
  /// During which something changes.
  static HostReading read(HostProbe& probe, const std::function<void()>& change,
                          double seconds = 0) {
    probe.begin(seconds);
    change();
    return probe.end();
  }

  const fs::path root_ =
      fs::temp_directory_path() / ("convtime_host_probe_" + std::to_string(::getpid()));
};

TEST_F(HostProbeTest, TellsTheLongestWaitOfAThreadAndWhoRunsBesideThem) {
  write_thread(1, 1'000'000, 500);
  write_thread(2, 1'000'000, 500);
  HostProbe probe = this->probe();
  const HostReading reading = read(probe, [&] {
    write_thread(1, 9'000'000, 3'000'500);
    write_thread(2, 9'000'000, 1'000'500);
    write("proc/loadavg", "0.00 0.00 0.00 3/90 1234\n");
  });
  EXPECT_DOUBLE_EQ(reading.longest_wait_seconds, 3e-3);
  EXPECT_DOUBLE_EQ(reading.waiting_seconds, 4e-3);
  EXPECT_EQ(reading.threads, 2);
  EXPECT_NEAR(reading.others_seconds / reading.seconds, 1, 1e-9);
  EXPECT_EQ(probe.missing(), "");
}

// Until the next tick of the scheduler, the counter of a thread that runs stands still.
TEST_F(HostProbeTest, AThreadComputesWhereItsCounterMovesOrWhereItRuns) {
  for (const int id : {1, 2, 3}) {
    write_thread(id, 0, 0);
    write_state(id, 'S', 4 + id);
  }
  HostProbe probe = this->probe();
  EXPECT_TRUE(probe.used_cores().empty());
  const HostReading two = read(probe, [&] {
    write_thread(1, 9'000'000, 0);
    write_thread(3, 9'000'000, 0);
  });
  EXPECT_EQ(two.threads, 2);
  EXPECT_EQ(probe.used_cores(), (std::vector<int>{5, 7}));
  const HostReading running = read(probe, [&] {
    write_state(1, 'R', 5);
    write_thread(2, 18'000'000, 0);
  });
  EXPECT_EQ(running.threads, 2);
}

TEST_F(HostProbeTest, SaysWhatIsMissing) {
  fs::remove_all(root_);
  HostProbe probe = this->probe();
  const HostReading reading = read(probe, [] {});
  EXPECT_TRUE(std::isnan(reading.longest_wait_seconds));
  EXPECT_TRUE(std::isnan(reading.others_seconds));
  EXPECT_GT(reading.seconds, 0);
  EXPECT_TRUE(contains(probe.missing(), "wait for a core"));
  EXPECT_TRUE(contains(probe.missing(), "other processes"));
}

TEST_F(HostProbeTest, SeesTheQuotasOfItsGroups) {
  const auto throttled = [&](const std::string& groups, const std::string& stat,
                             const std::string& before, const std::string& after) {
    write("proc/self/cgroup", groups);
    write(stat, before);
    HostProbe probe = this->probe();
    return read(probe, [&] { write(stat, after); }).throttled_seconds;
  };
  // Of a group around its own.
  write("cgroup/outer/inner/cpu.max", "max 100000\n");
  write("cgroup/outer/inner/cpu.stat", "usage_usec 1\nthrottled_usec 900\n");
  write("cgroup/outer/cpu.max", "50000 100000\n");
  EXPECT_NEAR(throttled("0::/outer/inner\n", "cgroup/outer/cpu.stat",
                        "usage_usec 1\nnr_throttled 4\nthrottled_usec 100\n",
                        "usage_usec 1\nnr_throttled 5\nthrottled_usec 2100\n"),
              2e-3, 1e-12);
  // Of the first version; and a container does not see its own path below the mount.
  write("cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
  EXPECT_NEAR(throttled("4:memory:/docker/1\n2:cpu,cpuacct:/docker/1\n0::/\n",
                        "cgroup/cpu,cpuacct/cpu.stat",
                        "nr_periods 9\nnr_throttled 4\nthrottled_time 1000000\n",
                        "nr_periods 9\nnr_throttled 5\nthrottled_time 6000000\n"),
              5e-3, 1e-12);
  // Without a quota.
  write("cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(throttled("2:cpu:/\n", "cgroup/cpu/cpu.stat", "throttled_time 1000000\n",
                      "throttled_time 9000000\n"),
            0);
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
  const HostReading reading = read(probe, [&] { stat(200, 7); }, 1);
  EXPECT_NEAR(reading.others_seconds, 1.0 - reading.cpu_seconds, 1e-6);
  EXPECT_NEAR(reading.stolen_seconds, 0.07, 1e-9);
}

// Lines of cores of a large host, those that may be used last, and the interrupts behind them.
TEST_F(HostProbeTest, ReadsTheCoresOfLargeHosts) {
  constexpr int kCores = 4096;
  std::vector<int> allowed;
  cpu_set_t set;
  ASSERT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) {
      allowed.push_back(core);
    }
  }
  const auto stat = [&](int busy) {
    std::string text = "cpu  0 0 0 0 0 0 0 0 0 0\n";
    const auto add = [&](int core, int ticks) {
      text += "cpu" + std::to_string(core) + " " + std::to_string(ticks) + " 0 0 0 0 0 0 0 0 0\n";
    };
    for (int core = CPU_SETSIZE; core < kCores; ++core) {
      add(core, 1000 * busy);
    }
    for (const int core : allowed) {
      add(core, busy);
    }
    write("proc/stat", text + "intr 12345" + std::string(10'000, ' ') + "\n");
  };
  write_thread(1, 0, 0);
  stat(0);
  HostProbe probe = this->probe();
  const HostReading reading = read(probe, [&] { stat(100); }, 1);
  EXPECT_NEAR(reading.others_seconds, static_cast<double>(allowed.size()) - reading.cpu_seconds,
              1e-6);
}

TEST_F(HostProbeTest, KeepsFewFilesOpenForManyThreads) {
  constexpr int kThreads = 1000;
  for (int id = 1; id <= kThreads; ++id) {
    write_thread(id, 0, 0);
    write_state(id, 'S', id);
  }
  const std::ptrdiff_t files = open_files();
  const LimitOfFiles limit(static_cast<rlim_t>(files) + 100);
  HostProbe probe = this->probe();
  EXPECT_LE(open_files() - files, (files + 100) / 4 + 3);
  const HostReading reading = read(probe, [&] {
    for (int id = 1; id <= kThreads; ++id) {
      write_thread(id, 9'000'000, 1'000'000);
    }
  });
  EXPECT_EQ(reading.threads, kThreads);
  EXPECT_NEAR(reading.waiting_seconds, kThreads * 1e-3, 1e-9);
  EXPECT_EQ(probe.used_cores().size(), static_cast<std::size_t>(kThreads));
}

TEST_F(HostProbeTest, ReadsAsMuchOfAFileAsFitsBeforeANull) {
  std::array<char, 8> buffer{};
  for (const std::string text : {"", "123456", "1234567", "12345678", "1234567890"}) {
    write("text", text);
    const TextFile file(root_ / "text");
    EXPECT_EQ(file.read(buffer), text.substr(0, 7));
  }
  EXPECT_STREQ(buffer.data(), "1234567");
  for (const std::size_t size : {1, 4095, 4096, 4097, 50'000}) {
    const std::string text(size, 'x');
    write("text", text);
    std::string growing;
    EXPECT_EQ(TextFile(root_ / "text").read(growing), text);
    EXPECT_EQ(growing[size], '\0');
  }
  EXPECT_EQ(TextFile().read(buffer), "");
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
  EXPECT_FALSE(contains(probe.missing(), "changed"));
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(::sched_getcpu(), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_TRUE(contains(probe.missing(), "changed during the run"));
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(HostProbe, TakesMicroseconds) { EXPECT_LT(HostProbe().read_seconds(), 1e-3); }

}  // namespace
}  // namespace convtime
