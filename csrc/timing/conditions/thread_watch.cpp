#include "timing/conditions/thread_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <string_view>
#include <system_error>

namespace convtime {
namespace {

/// The interval between two looks. Random, so that looks do not synchronize with calls.
constexpr int kShortestMicroseconds = 200;
constexpr int kLongestMicroseconds = 600;

int thread_id() { return static_cast<int>(::syscall(SYS_gettid)); }

/// The cause of a thread's wait in a system call, as a counter of ThreadActivity.
using Kind = std::size_t ThreadActivity::*;

bool is_one_of(std::initializer_list<long> calls, long call) {
  return std::ranges::find(calls, call) != calls.end();
}

bool waits_for_time_or_files(long call) {
#ifdef SYS_select
  return is_one_of({SYS_pselect6, SYS_select}, call);
#else
  return call == SYS_pselect6;
#endif
}

bool waits_for_processes(long call) {
#ifdef SYS_vfork
  if (is_one_of({SYS_vfork, SYS_fork}, call)) {
    return true;
  }
#endif
  return is_one_of({SYS_wait4, SYS_waitid, SYS_clone, SYS_clone3, SYS_execve}, call);
}

bool waits_for_files(long call) {
#ifdef SYS_poll
  if (is_one_of({SYS_poll, SYS_epoll_wait, SYS_open, SYS_stat, SYS_unlink, SYS_rename}, call)) {
    return true;
  }
#endif
  return is_one_of(
      {SYS_ppoll,     SYS_epoll_pwait,     SYS_read,         SYS_readv,          SYS_pread64,
       SYS_preadv,    SYS_write,           SYS_writev,       SYS_pwrite64,       SYS_pwritev,
       SYS_sendfile,  SYS_splice,          SYS_openat,       SYS_close,          SYS_unlinkat,
       SYS_ftruncate, SYS_fsync,           SYS_fdatasync,    SYS_fallocate,      SYS_sync,
       SYS_syncfs,    SYS_sync_file_range, SYS_msync,        SYS_flock,          SYS_fcntl,
       SYS_connect,   SYS_accept,          SYS_accept4,      SYS_sendto,         SYS_sendmsg,
       SYS_recvfrom,  SYS_recvmsg,         SYS_io_getevents, SYS_copy_file_range},
      call);
}

/// `first` is the system call's first argument.
Kind kind_of(long call, unsigned long first) {
  if (call == SYS_futex) {
    return &ThreadActivity::locks;
  }
  if (is_one_of({SYS_nanosleep, SYS_clock_nanosleep}, call) ||
      (waits_for_time_or_files(call) && first == 0)) {
    return &ThreadActivity::sleeping;
  }
  if (waits_for_time_or_files(call) || waits_for_files(call)) {
    return &ThreadActivity::files;
  }
  if (waits_for_processes(call)) {
    return &ThreadActivity::processes;
  }
  // -1: not in a system call, so that the thread waits for a page.
  return call == -1 ? &ThreadActivity::pages : &ThreadActivity::elsewhere;
}

bool is_ready(std::string_view text) { return text.starts_with("running"); }

}  // namespace

ThreadWatch::ThreadWatch(const std::filesystem::path& proc)
    : tasks_(proc / "self" / "task"), watched_(thread_id()) {
  const std::filesystem::path path = tasks_ / std::to_string(watched_) / "syscall";
  file_ = TextFile(path);
  std::array<char, 256> buffer{};
  if (file_.read(buffer).empty()) {
    missing_ = path.string() + " does not report the system call of a waiting thread";
    return;
  }
  thread_ = std::thread([this] { watch(); });
}

ThreadWatch::~ThreadWatch() { stop(); }

ThreadActivity ThreadWatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
  return activity_;
}

void ThreadWatch::watch() {
  own_ = thread_id();
  std::minstd_rand chance(static_cast<unsigned>(own_));
  std::uniform_int_distribution<int> microseconds(kShortestMicroseconds, kLongestMicroseconds);
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, std::chrono::microseconds(microseconds(chance)),
                             [this] { return stopped_; })) {
    look();
  }
}

void ThreadWatch::look() {
  std::array<char, 256> buffer{};
  const std::string_view text = file_.read(buffer);
  if (text.empty()) {
    return;
  }
  ++activity_.looks;
  if (is_ready(text)) {
    ++activity_.ready;
    return;
  }
  char* next = buffer.data();
  const long call = std::strtol(next, &next, 10);
  Kind kind = kind_of(call, std::strtoul(next, nullptr, 16));
  if (kind == &ThreadActivity::locks && another_is_ready()) {
    kind = &ThreadActivity::other_threads;
  }
  ++(activity_.*kind);
}

bool ThreadWatch::another_is_ready() const {
  std::error_code failure;
  for (std::filesystem::directory_iterator entry(tasks_, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const int id = std::atoi(entry->path().filename().c_str());
    if (id == watched_ || id == own_) {
      continue;
    }
    const TextFile file(entry->path() / "syscall");
    std::array<char, 256> buffer{};
    const bool ready = is_ready(file.read(buffer));
    if (ready) {
      return true;
    }
  }
  return false;
}

}  // namespace convtime
