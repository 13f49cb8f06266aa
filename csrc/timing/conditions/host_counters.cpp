#include "timing/conditions/host_counters.h"

#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "timing/conditions/text_file.h"

namespace convtime {
namespace {

constexpr double kUnknownCount = std::numeric_limits<double>::quiet_NaN();
/// Before the counts that read(2) gives of a group.
constexpr std::size_t kGroupHeader = 3;

/// A file descriptor, or -1 and errno. `thread` 0 is the calling one.
int open_event(const PerfEvent& event, int thread, int leader) {
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.type = event.type;
  attributes.config = event.config;
  attributes.read_format =
      PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  // A group is enabled as a whole: an event that joins one that runs is counted only after the
  // scheduler's next tick.
  attributes.disabled = leader < 0 ? 1 : 0;
  attributes.exclude_kernel = 1;  // allowed up to perf_event_paranoid 2
  attributes.exclude_hv = 1;
  return static_cast<int>(
      ::syscall(SYS_perf_event_open, &attributes, thread, -1, leader, PERF_FLAG_FD_CLOEXEC));
}

const char* advice(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
      return "set the sysctl kernel.perf_event_paranoid to 2 or less, and start a container with "
             "--cap-add PERFMON";
    case ENOENT:
    case ENODEV:
    case EOPNOTSUPP:
      return "the virtual machine has to expose the CPU's performance counters (vPMU)";
    case ENOSYS:
      return "the kernel has to be built with CONFIG_PERF_EVENTS";
    case EMFILE:
    case ENFILE:
      return "raise the limit of open files (ulimit -n): each thread needs a file per event";
    default:
      return "see perf_event_open(2)";
  }
}

std::string describe_failure(int error) {
  return "perf_event_open failed with '" + std::generic_category().message(error) +
         "': " + advice(error);
}

}  // namespace

HostCounters::Group::~Group() {
  for (const int file : files) {
    ::close(file);
  }
}

HostCounters::HostCounters(std::span<const PerfEvent> events)
    : events_(events.begin(), events.end()), counts_(events.size(), kUnknownCount) {
  Group trial;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const int file = open_event(events_[i], 0, i == 0 ? -1 : trial.files.front());
    if (file >= 0) {
      trial.files.push_back(file);
      available_.push_back(i);
    } else if (i == 0) {
      give_up(describe_failure(errno));
      return;
    }
  }
}

HostCounters::~HostCounters() = default;

void HostCounters::follow(std::span<const int> threads) {
  if (!counts()) {
    return;
  }
  if (threads.empty()) {
    give_up("the threads of this process are not listed in /proc");
    return;
  }
  if (const std::size_t files = threads.size() * available_.size(); files > most_open_files()) {
    give_up("counting " + std::to_string(threads.size()) + " threads needs " +
            std::to_string(files) +
            " open files, which is more than a quarter of the limit: raise " +
            "it (ulimit -n), or use fewer threads");
    return;
  }
  std::map<int, Group> followed;
  for (const int thread : threads) {
    if (auto known = groups_.extract(thread)) {
      followed.insert(std::move(known));
      continue;
    }
    const int error = open_group(thread, followed[thread]);
    if (error == ESRCH) {  // it has ended
      followed.erase(thread);
    } else if (error != 0) {
      give_up(describe_failure(error));
      return;
    }
  }
  groups_ = std::move(followed);
}

void HostCounters::begin() {
  for (auto& [thread, group] : groups_) {
    if (!read_group(group, group.began)) {
      group.began.clear();
    }
  }
}

const std::vector<double>& HostCounters::end() {
  if (!counts()) {
    return counts_;
  }
  for (const std::size_t event : available_) {
    counts_[event] = 0;
  }
  for (const auto& [thread, group] : groups_) {
    if (!add_counts(group)) {
      std::ranges::fill(counts_, kUnknownCount);
      reason_ = "no performance counter of the CPU was free: stop perf and other profilers";
      break;
    }
  }
  return counts_;
}

/// False if the group was not counted although its thread ran.
bool HostCounters::add_counts(const Group& group) {
  if (group.began.empty() || !read_group(group, now_)) {
    return false;
  }
  const auto since = [&](std::size_t i) { return static_cast<double>(now_[i] - group.began[i]); };
  const double enabled = since(1);
  const double running = since(2);
  if (running == 0) {
    return enabled == 0;
  }
  for (std::size_t i = 0; i < available_.size(); ++i) {
    counts_[available_[i]] += since(kGroupHeader + i) * (enabled / running);
  }
  return true;
}

/// 0, or the error that kept an event from being opened.
int HostCounters::open_group(int thread, Group& group) const {
  for (const std::size_t event : available_) {
    const int file =
        open_event(events_[event], thread, group.files.empty() ? -1 : group.files.front());
    if (file < 0) {
      return errno;
    }
    group.files.push_back(file);
  }
  return ::ioctl(group.files.front(), PERF_EVENT_IOC_ENABLE, 0) == 0 ? 0 : errno;
}

bool HostCounters::read_group(const Group& group, Values& values) const {
  values.resize(kGroupHeader + available_.size());
  const std::size_t bytes = values.size() * sizeof values.front();
  return ::read(group.files.front(), values.data(), bytes) == static_cast<ssize_t>(bytes);
}

void HostCounters::give_up(std::string reason) {
  reason_ = std::move(reason);
  available_.clear();
  groups_.clear();
  std::ranges::fill(counts_, kUnknownCount);
}

}  // namespace convtime
