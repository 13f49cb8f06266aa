#include "timing/conditions/thread_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
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

/// `first` is the system call's first argument.
Kind kind_of(long call, unsigned long first) {
  switch (call) {
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
      return &ThreadActivity::sleeping;
    case SYS_pselect6:
#ifdef SYS_select
    case SYS_select:
#endif
      return first == 0 ? &ThreadActivity::sleeping : &ThreadActivity::files;
    case SYS_futex:
      return &ThreadActivity::locks;
    case SYS_wait4:
    case SYS_waitid:
    case SYS_clone:
    case SYS_clone3:
    case SYS_execve:
#ifdef SYS_vfork
    case SYS_vfork:
    case SYS_fork:
#endif
      return &ThreadActivity::processes;
#ifdef SYS_poll
    case SYS_poll:
    case SYS_epoll_wait:
    case SYS_open:
    case SYS_stat:
    case SYS_unlink:
    case SYS_rename:
#endif
    case SYS_ppoll:
    case SYS_epoll_pwait:
    case SYS_read:
    case SYS_readv:
    case SYS_pread64:
    case SYS_preadv:
    case SYS_write:
    case SYS_writev:
    case SYS_pwrite64:
    case SYS_pwritev:
    case SYS_sendfile:
    case SYS_splice:
    case SYS_copy_file_range:
    case SYS_openat:
    case SYS_close:
    case SYS_unlinkat:
    case SYS_ftruncate:
    case SYS_fallocate:
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_sync:
    case SYS_syncfs:
    case SYS_sync_file_range:
    case SYS_msync:
    case SYS_flock:
    case SYS_fcntl:
    case SYS_connect:
    case SYS_accept:
    case SYS_accept4:
    case SYS_sendto:
    case SYS_sendmsg:
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_io_getevents:
      return &ThreadActivity::files;
    case -1:  // not in a system call: the thread waits for a page
      return &ThreadActivity::pages;
    default:
      return &ThreadActivity::elsewhere;
  }
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
