#include "timing/conditions/thread_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "helpers.h"
#include "timing/conditions/host_probe.h"

namespace convtime {
namespace {

constexpr std::chrono::milliseconds kLong(150);

/// What the calling thread is found to do during an action.
template <typename Action>
ThreadActivity watch(Action&& action) {
  ThreadWatch watch;
  action();
  return watch.stop();
}

class ThreadWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    ThreadWatch probe;
    if (!probe.missing().empty()) {
      GTEST_SKIP() << probe.missing();
    }
  }
};

void expect_mostly(std::size_t part, const ThreadActivity& found) {
  EXPECT_GE(found.looks, 20u);
  EXPECT_GE(part, 9 * found.looks / 10);
}

TEST_F(ThreadWatchTest, SeesAThreadSleepAndRun) {
  const ThreadActivity asleep = watch([] { std::this_thread::sleep_for(kLong); });
  expect_mostly(asleep.sleeping, asleep);
  const ThreadActivity running = watch([] { spin(kLong); });
  expect_mostly(running.ready, running);
}

TEST_F(ThreadWatchTest, SeesAWaitForAPipe) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  std::thread writer([&] {
    std::this_thread::sleep_for(kLong);
    EXPECT_EQ(::write(pipe[1], "x", 1), 1);
  });
  const ThreadActivity found = watch([&] {
    char byte = 0;
    EXPECT_EQ(::read(pipe[0], &byte, 1), 1);
  });
  writer.join();
  ::close(pipe[0]);
  ::close(pipe[1]);
  expect_mostly(found.files, found);
}

/// Waits for a lock that another thread gives back after it has done something.
template <typename Action>
ThreadActivity watch_behind_lock(Action&& action) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::thread other([&] {
    action();
    const std::lock_guard lock(mutex);
    done = true;
    changed.notify_one();
  });
  const ThreadActivity found = watch([&] {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done; });
  });
  other.join();
  return found;
}

TEST_F(ThreadWatchTest, TellsALockOfASleepingThreadFromThatOfARunningOne) {
  const ThreadActivity asleep = watch_behind_lock([] { std::this_thread::sleep_for(kLong); });
  expect_mostly(asleep.locks, asleep);
  const ThreadActivity running = watch_behind_lock([] { spin(kLong); });
  expect_mostly(running.other_threads, running);
}

TEST(ThreadWatch, SaysWhatASystemDoesNotTell) {
  ThreadWatch watch(std::filesystem::temp_directory_path() / "no such proc");
  EXPECT_TRUE(contains(watch.missing(), "does not report the system call"));
  EXPECT_EQ(watch.stop().looks, 0u);
  EXPECT_EQ(watch.stop().looks, 0u);  // once more
}

TEST(CoreClock, IsThatOfACore) {
  const double hz = core_clock_hz();
  if (std::isnan(hz)) {
    GTEST_SKIP() << "this architecture has no such clock";
  }
  EXPECT_GT(hz, 0.4e9);
  EXPECT_LT(hz, 8e9);
}

}  // namespace
}  // namespace convtime
