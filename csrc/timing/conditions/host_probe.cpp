#include "timing/conditions/host_probe.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "timing/clock.h"

namespace convtime {
namespace {

/// What a running thread has computed is accounted for at the scheduler's ticks only, which are 10
/// ms apart at most: until the next ones, its state tells that it computes.
constexpr double kTicksSeconds = 0.03;
/// A thread that ran less than this between two looks was woken up for something else.
constexpr double kComputedSeconds = 20e-6;

double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// The calling thread's core; -1 where that is not known.
int current_core() {
#ifdef __linux__
  return ::sched_getcpu();
#else
  return -1;
#endif
}

std::vector<int> allowed_cores() {
  std::vector<int> cores;
#ifdef __linux__
  // The kernel refuses sets that are too small for the machine. One holds 1024 CPUs.
  constexpr std::size_t kMostSets = 64;
  for (std::vector<cpu_set_t> sets(1); sets.size() <= kMostSets; sets.resize(2 * sets.size())) {
    const std::size_t bytes = sets.size() * sizeof(cpu_set_t);
    if (::sched_getaffinity(0, bytes, sets.data()) != 0) {
      continue;
    }
    for (std::size_t core = 0; core < 8 * bytes; ++core) {
      if (CPU_ISSET_S(core, bytes, sets.data())) {
        cores.push_back(static_cast<int>(core));
      }
    }
    break;
  }
#endif
  return cores;
}

/// The number after a word of a file such as cpu.stat; NaN where there is none.
double number_after(std::string_view text, std::string_view word) {
  const std::size_t at = text.find(word);
  if (at == std::string_view::npos) {
    return HostReading::kUnknown;
  }
  return std::strtod(text.data() + at + word.size(), nullptr);
}

constexpr int kAdditionsAtOnce = 16;
constexpr int kAdditions = 200'000;
/// The fastest repeat counts: the others may have been interrupted.
constexpr int kRepeats = 5;

// Adds registers, because some cores add constants without latency.
#if defined(__x86_64__)
#define CONVTIME_ADD "addq %1, %0\n\t"
#elif defined(__aarch64__)
#define CONVTIME_ADD "add %0, %0, %1\n\t"
#endif

#ifdef CONVTIME_ADD
#define CONVTIME_ADD_4 CONVTIME_ADD CONVTIME_ADD CONVTIME_ADD CONVTIME_ADD

std::uint64_t add_in_sequence(std::uint64_t sum, std::uint64_t step) {
  for (int i = 0; i < kAdditions; i += kAdditionsAtOnce) {
    asm volatile(CONVTIME_ADD_4 CONVTIME_ADD_4 CONVTIME_ADD_4 CONVTIME_ADD_4
                 : "+r"(sum)
                 : "r"(step));
  }
  return sum;
}
#endif

}  // namespace

HostProbe::HostProbe(const std::filesystem::path& proc, const std::filesystem::path& cgroups,
                     const std::array<PerfEvent, 4>& events)
    : proc_(proc), allowed_cores_(allowed_cores()), counters_(events) {
  cores_ =
      static_cast<double>(allowed_cores_.empty() ? std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))
                                                 : static_cast<long>(allowed_cores_.size()));
  tasks_ = TextFile(proc_ / "self" / "task");
  load_ = TextFile(proc_ / "loadavg");
  stat_ = TextFile(proc_ / "stat");
  find_quotas(cgroups);
  find_threads();
  read_threads();
  for (Thread& thread : threads_) {
    thread.last_computed = -1;  // what they did before is nobody's reading
  }
  std::string missing = threads_.empty() ? "how long threads wait for a core" : "";
  if (!load_.is_open() || !stat_.is_open()) {
    missing += missing.empty() ? "what other processes do" : ", what other processes do";
  }
  if (!missing.empty()) {
    missing_ = proc_.string() + " does not tell " + missing;
  }
  read_seconds_ = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) {
    const double start = now_seconds();
    begin(0);
    end();
    read_seconds_ = std::min(read_seconds_, now_seconds() - start);
  }
  made_ = look(true);
}

void HostProbe::begin(double expected_seconds) {
  counted_ = expected_seconds >= kCountedSeconds;
  struct stat status{};
  const bool known = tasks_.is_open() && ::fstat(tasks_.descriptor(), &status) == 0;
  if (known && status.st_nlink != task_links_) {
    find_threads();
    task_links_ = status.st_nlink;
  }
  if (!read_threads()) {
    find_threads();
    read_threads();
  }
  // Outside of the looks, so that reading the counters takes none of the reading's time.
  counters_.begin();
  began_ = look(counted_);
}

HostReading HostProbe::end() {
  const Moment now = look(counted_);
  const std::vector<double>& counts = counters_.end();
  HostReading reading = between(began_, now);
  reading.instructions = counts[0];
  reading.cycles = counts[1];
  reading.cache_misses = counts[2];
  reading.tlb_misses = counts[3];
  read_threads();
  if (!threads_.empty()) {
    reading.waiting_seconds = 0;
    reading.longest_wait_seconds = 0;
    reading.threads = 0;
    for (const Thread& thread : threads_) {
      reading.waiting_seconds += thread.waited;
      reading.longest_wait_seconds = std::max(reading.longest_wait_seconds, thread.waited);
      reading.threads += thread.computes ? 1 : 0;
    }
  }
  if (std::isnan(reading.others_seconds)) {
    const double own = std::isnan(reading.threads) ? 1 : std::max(1.0, reading.threads);
    reading.others_seconds = running_others(own) * reading.seconds;
  }
  return reading;
}

HostReading HostProbe::since_made() { return between(made_, look(true)); }

std::string HostProbe::missing() const {
  if (allowed_cores() == allowed_cores_) {
    return missing_;
  }
  return missing_ + (missing_.empty() ? "" : "; ") +
         "the cores that this process may use changed during the run, and other processes were "
         "looked for on the earlier ones";
}

std::vector<int> HostProbe::used_cores() const {
  std::set<int> cores;
  for (const Thread& thread : threads_) {
    if (thread.last_computed < 0) {
      continue;
    }
    // The core is the 36th number after the state.
    std::istringstream fields{state_of(thread)};
    std::string field;
    for (int i = 0; i < 37; ++i) {
      fields >> field;
    }
    if (fields) {
      cores.insert(std::atoi(field.c_str()));
    }
  }
  return {cores.begin(), cores.end()};
}

TextFile HostProbe::open(int thread, const char* name) const {
  return TextFile(proc_ / "self" / "task" / std::to_string(thread) / name);
}

/// What follows the name in "7 (a name) S 1 …": how it runs, and numbers; empty if unknown.
std::string HostProbe::state_of(const Thread& thread) const {
  std::array<char, 1024> buffer{};
  const TextFile& stat = thread.stat;
  const std::string_view text =
      stat.is_open() ? stat.read(buffer) : open(thread.id, "stat").read(buffer);
  const std::size_t name = text.rfind(") ");
  return name == std::string_view::npos ? "" : std::string(text.substr(name + 2));
}

HostProbe::Moment HostProbe::look(bool counts_cores) {
  Moment moment;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  moment.voluntary_switches = usage.ru_nvcsw;
  moment.involuntary_switches = usage.ru_nivcsw;
  moment.minor_faults = usage.ru_minflt;
  moment.major_faults = usage.ru_majflt;
  moment.core = current_core();
  moment.throttled_seconds = throttled_seconds();
  if (counts_cores) {
    add_times_of_cores(moment);
  }
  moment.cpu_seconds = cpu_seconds();
  moment.nanoseconds = now_nanoseconds();
  return moment;
}

/// From "cpu3 user nice system idle iowait irq softirq steal …", whose lines come first.
void HostProbe::add_times_of_cores(Moment& moment) {
  constexpr std::string_view kName = "cpu";
  const double per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  std::string_view rest = stat_.read(stat_text_);
  for (; rest.starts_with(kName);
       rest.remove_prefix(std::min(rest.find('\n'), rest.size() - 1) + 1)) {
    char* next = stat_text_.data() + (rest.data() - stat_text_.data()) + kName.size();
    const bool is_sum = *next == ' ';
    if (is_sum || !std::ranges::binary_search(allowed_cores_, std::strtol(next, &next, 10))) {
      continue;
    }
    std::array<double, 8> ticks{};
    for (double& value : ticks) {
      value = std::strtod(next, &next);
    }
    const double busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6];
    moment.busy_seconds =
        (std::isnan(moment.busy_seconds) ? 0 : moment.busy_seconds) + busy / per_second;
    moment.stolen_seconds =
        (std::isnan(moment.stolen_seconds) ? 0 : moment.stolen_seconds) + ticks[7] / per_second;
  }
}

HostReading HostProbe::between(const Moment& before, const Moment& after) {
  HostReading reading;
  reading.seconds = 1e-9 * static_cast<double>(after.nanoseconds - before.nanoseconds);
  reading.cpu_seconds = after.cpu_seconds - before.cpu_seconds;
  reading.voluntary_switches = after.voluntary_switches - before.voluntary_switches;
  reading.involuntary_switches = after.involuntary_switches - before.involuntary_switches;
  reading.minor_faults = after.minor_faults - before.minor_faults;
  reading.major_faults = after.major_faults - before.major_faults;
  reading.migrated = before.core >= 0 && after.core != before.core;
  reading.throttled_seconds = after.throttled_seconds - before.throttled_seconds;
  reading.stolen_seconds = after.stolen_seconds - before.stolen_seconds;
  reading.others_seconds =
      std::isnan(after.busy_seconds - before.busy_seconds)
          ? HostReading::kUnknown
          : std::max(0.0, after.busy_seconds - before.busy_seconds - reading.cpu_seconds);
  return reading;
}

/// False where a thread has ended, or there is none.
bool HostProbe::read_threads() {
  bool complete = true;
  const double now = now_seconds();
  for (Thread& thread : threads_) {
    std::array<char, 96> buffer{};
    const TextFile& schedstat = thread.schedstat;
    const std::string_view text =
        schedstat.is_open() ? schedstat.read(buffer) : open(thread.id, "schedstat").read(buffer);
    if (text.empty()) {
      complete = false;
      thread.waited = 0;
      thread.computes = false;
      continue;
    }
    char* next = buffer.data();
    const double run = 1e-9 * std::strtod(next, &next);
    const double wait = 1e-9 * std::strtod(next, &next);
    thread.computes =
        run - thread.run_seconds > kComputedSeconds ||
        (thread.last_computed >= now - kTicksSeconds && state_of(thread).starts_with('R'));
    if (thread.computes) {
      thread.last_computed = now;
    }
    thread.waited = wait - thread.wait_seconds;
    thread.run_seconds = run;
    thread.wait_seconds = wait;
  }
  return complete;
}

void HostProbe::find_threads() {
  std::map<int, Thread> known;
  for (Thread& thread : threads_) {
    known.emplace(thread.id, std::move(thread));
  }
  threads_.clear();
  const std::size_t most_open = most_open_files() / 2;  // each has two
  std::error_code failure;
  const std::filesystem::path tasks = proc_ / "self" / "task";
  for (std::filesystem::directory_iterator entry(tasks, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const int id = std::atoi(entry->path().filename().c_str());
    if (auto node = known.extract(id)) {
      threads_.push_back(std::move(node.mapped()));
    } else if (threads_.size() >= most_open) {
      threads_.push_back({id});
    } else if (TextFile schedstat = open(id, "schedstat"); schedstat.is_open()) {
      threads_.push_back({id, std::move(schedstat), open(id, "stat")});
    }
  }
  std::vector<int> ids;
  for (const Thread& thread : threads_) {
    ids.push_back(thread.id);
  }
  counters_.follow(ids);
}

void HostProbe::find_quotas(const std::filesystem::path& cgroups) {
  std::ifstream groups(proc_ / "self" / "cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    std::istringstream fields(line);
    std::string number;
    std::string controllers;
    std::string group;
    std::getline(fields, number, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, group);
    if (controllers.empty()) {
      const bool is_hybrid = std::filesystem::exists(cgroups / "unified");
      watch_quotas(is_hybrid ? cgroups / "unified" : cgroups, group, true);
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      const bool is_joint_mount = std::filesystem::exists(cgroups / controllers);
      watch_quotas(cgroups / (is_joint_mount ? controllers : "cpu"), group, false);
    }
  }
}

/// How many threads of other processes run or wait for a core at this moment, where so many of this
/// one do.
double HostProbe::running_others(double own) const {
  std::array<char, 128> buffer{};
  const std::string_view load = load_.read(buffer);  // "0.20 0.18 0.12 3/80 11206": three run
  const std::size_t slash = load.find('/');
  if (slash == std::string_view::npos) {
    return HostReading::kUnknown;
  }
  const std::size_t space = load.rfind(' ', slash);
  return std::max(0.0, std::strtod(load.data() + space, nullptr) - own);
}

/// A quota of a group holds for all groups in it.
void HostProbe::watch_quotas(const std::filesystem::path& mount, const std::string& group,
                             bool unified) {
  std::filesystem::path inner = std::filesystem::path(group).relative_path();
  if (!std::filesystem::exists(mount / inner)) {
    inner.clear();  // a container sees its own group as the root
  }
  for (;;) {
    const std::filesystem::path folder = mount / inner;
    std::ifstream limit(folder / (unified ? "cpu.max" : "cpu.cfs_quota_us"));
    std::string quota;
    if (limit >> quota && quota != "max" && quota != "-1") {
      if (TextFile file(folder / "cpu.stat"); file.is_open()) {
        throttled_.push_back(std::move(file));
      }
    }
    if (inner.empty()) {
      return;
    }
    inner = inner.parent_path();
  }
}

double HostProbe::throttled_seconds() const {
  double sum = 0;  // without a quota, nothing is throttled
  for (const TextFile& file : throttled_) {
    std::array<char, 512> buffer{};
    const std::string_view text = file.read(buffer);
    const double microseconds = number_after(text, "throttled_usec ");
    const double seconds = std::isnan(microseconds) ? 1e-9 * number_after(text, "throttled_time ")
                                                    : 1e-6 * microseconds;
    sum += std::isnan(seconds) ? 0 : seconds;
  }
  return sum;
}

double core_clock_hz() {
#ifdef CONVTIME_ADD
  std::int64_t fastest = std::numeric_limits<std::int64_t>::max();
  std::uint64_t sum = 0;
  for (int i = 0; i < kRepeats; ++i) {
    const std::int64_t start = now_nanoseconds();
    sum = add_in_sequence(sum, 1);
    fastest = std::min(fastest, now_nanoseconds() - start);
  }
  return 1e9 * kAdditions / static_cast<double>(std::max<std::int64_t>(fastest, 1));
#else
  return std::numeric_limits<double>::quiet_NaN();
#endif
}

}  // namespace convtime
