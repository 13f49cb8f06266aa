#include "timing/conditions/thread_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string_view>
#include <system_error>

#include "timing/conditions/text_file.h"

namespace convtime {
namespace {

/// The interval between two looks. Random, so that looks do not synchronize with calls.
constexpr int kShortestMicroseconds = 200;
constexpr int kLongestMicroseconds = 600;

int thread_id() { return static_cast<int>(::syscall(SYS_gettid)); }

/// The cause of a thread's wait in a system call, as a counter of ThreadActivity.
using Kind = std::size_t ThreadActivity::*;

constexpr long kProcessCalls[] = {
    SYS_wait4, SYS_waitid, SYS_clone, SYS_clone3, SYS_execve,
#ifdef SYS_vfork
    SYS_vfork, SYS_fork,
#endif
};
constexpr long kFileCalls[] = {
#ifdef SYS_poll
    SYS_poll,
    SYS_epoll_wait,
    SYS_open,
    SYS_stat,
    SYS_unlink,
    SYS_rename,
#endif
    SYS_ppoll,
    SYS_epoll_pwait,
    SYS_read,
    SYS_readv,
    SYS_pread64,
    SYS_preadv,
    SYS_write,
    SYS_writev,
    SYS_pwrite64,
    SYS_pwritev,
    SYS_sendfile,
    SYS_splice,
    SYS_copy_file_range,
    SYS_openat,
    SYS_close,
    SYS_unlinkat,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_fsync,
    SYS_fdatasync,
    SYS_sync,
    SYS_syncfs,
    SYS_sync_file_range,
    SYS_msync,
    SYS_flock,
    SYS_fcntl,
    SYS_connect,
    SYS_accept,
    SYS_accept4,
    SYS_sendto,
    SYS_sendmsg,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_io_getevents};

bool is_select(long call) {
#ifdef SYS_select
  return call == SYS_pselect6 || call == SYS_select;
#else
  return call == SYS_pselect6;
#endif
}

/// `first` is the system call's first argument.
Kind kind_of(long call, unsigned long first) {
  if (call == SYS_futex) {
    return &ThreadActivity::locks;
  }
  if (call == SYS_nanosleep || call == SYS_clock_nanosleep || (is_select(call) && first == 0)) {
    return &ThreadActivity::sleeping;
  }
  if (is_select(call) || std::ranges::find(kFileCalls, call) != std::end(kFileCalls)) {
    return &ThreadActivity::files;
  }
  if (std::ranges::find(kProcessCalls, call) != std::end(kProcessCalls)) {
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
  file_ = open_text_file(path);
  std::array<char, 256> buffer{};
  if (read_text(file_, buffer).empty()) {
    missing_ = path.string() + " does not report the system call of a waiting thread";
    return;
  }
  thread_ = std::thread([this] { watch(); });
}

ThreadWatch::~ThreadWatch() {
  stop();
  close_file(file_);
}

ThreadActivity ThreadWatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
  return found_;
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
  const std::string_view text = read_text(file_, buffer);
  if (text.empty()) {
    return;
  }
  ++found_.looks;
  if (is_ready(text)) {
    ++found_.ready;
    return;
  }
  char* next = buffer.data();
  const long call = std::strtol(next, &next, 10);
  Kind kind = kind_of(call, std::strtoul(next, nullptr, 16));
  if (kind == &ThreadActivity::locks && another_is_ready()) {
    kind = &ThreadActivity::other_threads;
  }
  ++(found_.*kind);
}

bool ThreadWatch::another_is_ready() const {
  std::error_code failure;
  for (std::filesystem::directory_iterator entry(tasks_, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const int id = std::atoi(entry->path().filename().c_str());
    if (id == watched_ || id == own_) {
      continue;
    }
    const int file = open_text_file(entry->path() / "syscall");
    std::array<char, 256> buffer{};
    const bool ready = is_ready(read_text(file, buffer));
    close_file(file);
    if (ready) {
      return true;
    }
  }
  return false;
}

}  // namespace convtime
