#include "timing/conditions/host_counters.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <future>
#include <thread>
#include <vector>

#include "helpers.h"
#include "timing/conditions/host_probe.h"

namespace convtime {
namespace {

constexpr PerfEvent kPageFaults{PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS};
constexpr PerfEvent kTaskClock{PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK};
constexpr PerfEvent kUnavailable{PERF_TYPE_HARDWARE, 0xFFFF};
constexpr std::size_t kPages = 300;

int this_thread() { return static_cast<int>(::syscall(SYS_gettid)); }

/// Touches so many pages for the first time.
void touch_pages(std::size_t pages = kPages) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const mapped =
      ::mmap(nullptr, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ::madvise(mapped, pages * page, MADV_NOHUGEPAGE);
  for (std::size_t i = 0; i < pages; ++i) {
    static_cast<volatile char*>(mapped)[i * page] = 1;
  }
  ::munmap(mapped, pages * page);
}

long faults_of_process() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

double seconds_of_thread() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Software events, which every kernel with perf counts on any machine.
class HostCountersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const HostCounters counters(std::array{kPageFaults});
    if (!counters.reason().empty()) {
      GTEST_SKIP() << counters.reason();
    }
  }
};

TEST_F(HostCountersTest, CountsWhatGetrusageAndTheThreadsClockCount) {
  HostCounters counters(std::array{kPageFaults, kTaskClock});
  counters.follow(std::array{this_thread()});
  touch_pages();  // before
  const long faults = faults_of_process();
  const double start = seconds_of_thread();
  counters.begin();
  touch_pages();
  while (seconds_of_thread() - start < 5e-3) {
  }
  const std::vector<double> counts = counters.end();
  const double seconds = seconds_of_thread() - start;
  EXPECT_GE(counts[0], kPages);
  EXPECT_LE(counts[0], faults_of_process() - faults);
  EXPECT_NEAR(1e-9 * counts[1], seconds, 0.1 * seconds);
  EXPECT_EQ(counters.reason(), "");

  counters.begin();
  EXPECT_LT(counters.end()[0], 10);  // each count begins anew
}

TEST_F(HostCountersTest, LeavesFilesToTheProgramThatIsTimed) {
  const std::ptrdiff_t files = open_files();
  HostCounters counters(std::array{kPageFaults, kTaskClock});
  const LimitOfFiles limit(static_cast<rlim_t>(files) + 100);
  const std::vector<int> threads(200, this_thread());
  counters.follow(threads);
  EXPECT_EQ(open_files(), files);
  EXPECT_TRUE(contains(counters.reason(), "counting 200 threads needs 400 open files"))
      << counters.reason();
  EXPECT_TRUE(std::isnan(counters.end()[0]));
}

TEST_F(HostCountersTest, CountsThreadsWhileTheyAreFollowed) {
  const std::ptrdiff_t files = open_files();
  {
    HostCounters counters(std::array{kPageFaults, kTaskClock});
    for (int round = 0; round < 20; ++round) {
      std::promise<int> started;
      std::promise<void> go;
      std::thread other([&] {
        started.set_value(this_thread());
        go.get_future().wait();
        touch_pages();
      });
      counters.follow(std::array{this_thread(), started.get_future().get()});
      EXPECT_EQ(open_files(), files + 4);
      counters.begin();
      go.set_value();
      other.join();
      touch_pages();
      const double faults = counters.end()[0];  // of the thread that has ended, too
      EXPECT_GE(faults, 2 * kPages);
      EXPECT_LT(faults, 2.5 * kPages);
    }
    counters.follow(std::array{this_thread()});
    EXPECT_EQ(open_files(), files + 2);
    std::thread unknown([] { touch_pages(); });
    counters.begin();
    unknown.join();
    EXPECT_LT(counters.end()[0], 0.1 * kPages);
  }
  EXPECT_EQ(open_files(), files);
}

TEST_F(HostCountersTest, LeavesOutUnavailableEventsAndThreadsThatHaveEnded) {
  std::promise<int> id;
  std::thread([&] { id.set_value(this_thread()); }).join();
  HostCounters counters(std::array{kPageFaults, kUnavailable, kTaskClock});
  counters.follow(std::array{this_thread(), id.get_future().get()});
  counters.begin();
  touch_pages();
  const std::vector<double> counts = counters.end();
  EXPECT_GE(counts[0], kPages);
  EXPECT_TRUE(std::isnan(counts[1]));
  EXPECT_GT(counts[2], 0);
  EXPECT_EQ(counters.reason(), "");
}

TEST_F(HostCountersTest, GivesUpWhereFilesRunOut) {
  const std::ptrdiff_t files = open_files();
  HostCounters counters(std::array{kPageFaults, kTaskClock});
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit limit = before;
  const int next = ::dup(0);  // the lowest free descriptor: one more can be opened
  ::close(next);
  limit.rlim_cur = static_cast<rlim_t>(next) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  counters.follow(std::array{this_thread()});
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(contains(counters.reason(), "ulimit -n"));
  EXPECT_EQ(open_files(), files);
  counters.begin();
  EXPECT_TRUE(std::isnan(counters.end()[0]));
}

TEST_F(HostCountersTest, AreThoseOfAProbesReadings) {
  const std::ptrdiff_t files = open_files();
  {
    HostProbe probe("/proc", "/sys/fs/cgroup",
                    {kPageFaults, kTaskClock, kUnavailable, kPageFaults});
    if (!probe.missing().empty()) {
      GTEST_SKIP() << probe.missing();
    }
    std::promise<void> go;
    std::thread later([&, waiting = go.get_future()] {
      waiting.wait();
      touch_pages();
    });
    probe.begin(0);
    go.set_value();
    later.join();
    const HostReading reading = probe.end();
    EXPECT_GE(reading.instructions, kPages);
    EXPECT_NEAR(reading.instructions, static_cast<double>(reading.minor_faults), 0.1 * kPages);
    EXPECT_GT(reading.cycles, 0);
    EXPECT_TRUE(std::isnan(reading.cache_misses));
    EXPECT_GE(reading.tlb_misses, kPages);
    EXPECT_EQ(probe.counters_reason(), "");
  }
  EXPECT_EQ(open_files(), files);
}

TEST(HostCounters, SaysWhyItCountsNothing) {
  const std::ptrdiff_t files = open_files();
  HostCounters counters(std::array{kUnavailable, kPageFaults});
  EXPECT_TRUE(contains(counters.reason(), "perf_event_open failed with '"));
  counters.follow(std::array{this_thread()});
  counters.begin();
  EXPECT_TRUE(std::isnan(counters.end()[0]));
  EXPECT_TRUE(std::isnan(counters.end()[1]));
  EXPECT_EQ(open_files(), files);
}

}  // namespace
}  // namespace convtime
