#pragma once

#include <condition_variable>
#include <cstddef>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "core/export.h"
#include "timing/conditions/text_file.h"

namespace convtime {

/// How often a thread was found in each state.
struct ThreadActivity {
  std::size_t looks = 0;          ///< total
  std::size_t ready = 0;          ///< it ran, or waited for a core
  std::size_t sleeping = 0;       ///< until some time
  std::size_t files = 0;          ///< it waited for a file, a pipe or a socket
  std::size_t pages = 0;          ///< it waited for a page from a disk
  std::size_t processes = 0;      ///< it waited for another process to start or end
  std::size_t locks = 0;          ///< it waited for a lock, while no other thread of this process
                                  ///< was ready
  std::size_t other_threads = 0;  ///< it waited for a lock, while another thread was ready
  std::size_t elsewhere = 0;      ///< it waited for something else
};

/// Samples the state of a thread of this process, some thousand times per second, from another
/// thread. The operating system reports the system call in which a thread waits
/// (proc_pid_syscall(5)).
class CONVTIME_API ThreadWatch {
 public:
  /// Watches the thread that constructs it. `proc` is the mount point of that file system.
  explicit ThreadWatch(const std::filesystem::path& proc = "/proc");
  ~ThreadWatch();
  ThreadWatch(const ThreadWatch&) = delete;
  ThreadWatch& operator=(const ThreadWatch&) = delete;

  /// Stop watching and return the result.
  ThreadActivity stop();

  /// Return the states that this system does not report; empty if it reports all.
  const std::string& missing() const { return missing_; }

 private:
  void watch();
  void look();
  bool another_is_ready() const;

  std::filesystem::path tasks_;
  int watched_;
  int own_ = -1;  ///< the thread that samples
  TextFile file_;
  std::string missing_;
  ThreadActivity activity_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace convtime
