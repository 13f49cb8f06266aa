#include "timing/trace/attribution.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

namespace convtime {
namespace {

/// API calls with one correlation ID: a runtime call and the driver calls inside it.
struct Issue {
  ApiCall call;  ///< the earliest call
  std::size_t activities = 0;
  std::uint32_t graph = 0;  ///< the graph of the activities
};

using Issues = std::unordered_map<std::uint32_t, Issue>;

Issues merge(std::span<const ApiCall> api_calls) {
  Issues issues;
  for (const ApiCall& call : api_calls) {
    const auto [found, added] = issues.try_emplace(call.correlation, Issue{.call = call});
    if (added) {
      continue;
    }
    ApiCall& first = found->second.call;
    const bool failed = first.failed || call.failed;
    const ApiKind kind = first.kind == ApiKind::kOther ? call.kind : first.kind;
    if (call.start < first.start) {
      first = call;
    }
    first.failed = failed;
    first.kind = kind;
  }
  return issues;
}

bool gives_work(const ApiCall& call) {
  const bool can = call.kind == ApiKind::kLaunch || call.kind == ApiKind::kGraphLaunch ||
                   call.kind == ApiKind::kTransfer;
  return can && !call.failed;
}

/// The time intervals in which a thread's calls are captured and not executed.
class Captures {
 public:
  explicit Captures(std::span<const ApiCall> api_calls) {
    for (const ApiCall& call : api_calls) {
      if (call.kind == ApiKind::kBeginCapture || call.kind == ApiKind::kEndCapture) {
        of_thread_[call.thread].push_back({call.start, call.kind == ApiKind::kBeginCapture});
      }
    }
    for (auto& [thread, changes] : of_thread_) {
      std::ranges::sort(changes);
    }
  }

  bool contain(const ApiCall& call) const {
    const auto found = of_thread_.find(call.thread);
    if (found == of_thread_.end()) {
      return false;
    }
    const auto& changes = found->second;
    const auto after = std::upper_bound(changes.begin(), changes.end(), Change{call.start, true});
    return after != changes.begin() && std::prev(after)->second;
  }

 private:
  using Change = std::pair<std::uint64_t, bool>;  // time, and whether a capture begins

  std::unordered_map<std::uint32_t, std::vector<Change>> of_thread_;
};

/// The position of a time within the windows.
struct WindowPosition {
  std::size_t window = 0;
  bool in_call = false;  ///< false in the preparation
};

std::optional<WindowPosition> find_window(std::span<const Window> windows, std::uint64_t time) {
  const auto after = std::upper_bound(
      windows.begin(), windows.end(), time,
      [](std::uint64_t tick, const Window& window) { return tick < window.prepare; });
  if (after == windows.begin() || time > std::prev(after)->end) {
    return std::nullopt;
  }
  const auto window = std::prev(after);
  return WindowPosition{static_cast<std::size_t>(window - windows.begin()), time >= window->begin};
}

/// Find threads that issue work while no call is prepared or made.
void add_other_threads(std::span<const Window> windows, std::span<const ApiCall> api_calls,
                       const TraceContext& context, std::unordered_set<std::uint32_t>& others) {
  if (context.every_thread) {
    return;
  }
  for (const ApiCall& call : api_calls) {
    if (call.thread != context.own_thread && gives_work(call) &&
        !find_window(windows, call.start).has_value()) {
      others.insert(call.thread);
    }
  }
}

/// By correlation, the step of an API call within its call: a hash of the function, and of the
/// functions before it.
using Steps = std::unordered_map<std::uint32_t, std::uint64_t>;

Steps steps_of(std::span<const Window> windows, const Issues& issues,
               const std::unordered_set<std::uint32_t>& other_threads) {
  std::vector<std::vector<const ApiCall*>> issued(windows.size());
  for (const auto& [correlation, issue] : issues) {
    const std::optional<WindowPosition> position = find_window(windows, issue.call.start);
    if (position.has_value() && position->in_call && gives_work(issue.call) &&
        !other_threads.contains(issue.call.thread)) {
      issued[position->window].push_back(&issue.call);
    }
  }
  Steps steps;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    std::ranges::sort(issued[i],
                      [](const ApiCall* a, const ApiCall* b) { return a->start < b->start; });
    constexpr std::uint64_t kFnvBasis = 0xcbf29ce484222325;
    constexpr std::uint64_t kFnvPrime = 0x100000001b3;
    std::uint64_t step = kFnvBasis ^ std::hash<const void*>{}(windows[i].of);
    for (const ApiCall* call : issued[i]) {
      step = (step ^ call->function) * kFnvPrime;
      steps.emplace(call->correlation, step);
    }
  }
  return steps;
}

/// Add steps whose activities show that they transferred bytes.
void add_filled(const TraceRecords& records, const Issues& issues, const Steps& steps,
                std::unordered_set<std::uint64_t>& filled) {
  for (const DeviceActivity& activity : records.activities) {
    const auto step = steps.find(activity.correlation);
    if (step != steps.end() && issues.at(activity.correlation).call.kind == ApiKind::kTransfer) {
      filled.insert(step->second);
    }
  }
}

/// The device work that a call's preparation issued. The call comes after its last part.
struct Mark {
  std::uint64_t first_start = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t issued = 0;  ///< issue time of the last part
  std::uint64_t end = 0;     ///< end of the last part
  std::uint32_t device = 0;
  std::uint32_t stream = 0;
};

class Marks {
 public:
  void add(const DeviceActivity& activity, std::uint64_t issued) {
    const auto same = [&](const Mark& mark) { return mark.device == activity.info.device; };
    auto mark = std::ranges::find_if(marks_, same);
    if (mark == marks_.end()) {
      mark = marks_.insert(marks_.end(), Mark{.device = activity.info.device});
    }
    mark->first_start = std::min(mark->first_start, activity.start_ns);
    if (issued >= mark->issued) {
      mark->issued = issued;
      mark->end = activity.end_ns;
      mark->stream = activity.stream;
    }
  }

  /// Return whether the call's activity started before its preparation was done.
  bool ran_ahead(const DeviceActivity& activity) const {
    const Mark* mark = mark_for(activity);
    return mark != nullptr && activity.start_ns < mark->end;
  }

  /// Return whether an activity of the previous call was still running when this preparation
  /// started.
  bool outlasted_by(const DeviceActivity& activity) const {
    const Mark* mark = mark_for(activity);
    return mark != nullptr && activity.end_ns > mark->first_start;
  }

 private:
  /// Null for activities that their stream orders.
  const Mark* mark_for(const DeviceActivity& activity) const {
    if (marks_.empty()) {
      return nullptr;
    }
    const auto same = [&](const Mark& mark) { return mark.device == activity.info.device; };
    const auto found = std::ranges::find_if(marks_, same);
    if (found == marks_.end()) {
      return &marks_.front();  // on the calls' own device: nothing is prepared on others
    }
    return activity.stream == found->stream ? nullptr : &*found;
  }

  std::vector<Mark> marks_;
};

class Attributing {
 public:
  Attributing(std::span<const Window> windows, const TraceRecords& records,
              const TraceContext& context, const TraceMemory& before)
      : windows_(windows),
        records_(records),
        context_(context),
        tolerance_(static_cast<std::uint64_t>(kStampToleranceNs * context.clock.ticks_per_ns)),
        read_up_to_(before.read_up_to),
        issues_(merge(records.api_calls)),
        captures_(records.api_calls),
        other_threads_(before.other_threads),
        filled_(before.filled),
        marks_(windows.size()) {
    result_.calls.resize(windows.size());
    add_other_threads(windows, records.api_calls, context, other_threads_);
    steps_ = steps_of(windows, issues_, other_threads_);
    add_filled(records, issues_, steps_, filled_);
  }

  Attribution run() {
    for (const DeviceActivity& activity : records_.activities) {
      assign(activity);
    }
    find_unrecorded();
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      finish(result_.calls[i], marks_[i], i + 1 < marks_.size() ? marks_[i + 1] : Marks{});
    }
    count_missing();
    result_.faults.lost = records_.lost;
    return std::move(result_);
  }

 private:
  void assign(const DeviceActivity& activity) {
    const auto found = issues_.find(activity.correlation);
    if (found == issues_.end()) {
      result_.faults.unissued += activity.correlation > read_up_to_ ? 1 : 0;
      return;
    }
    Issue& issue = found->second;
    if (is_of_another_thread(issue.call)) {
      ++result_.of_other_threads;
      return;
    }
    const std::optional<WindowPosition> position = find_window(windows_, issue.call.start);
    if (!position.has_value()) {
      return;  // the queue's hold, or the clock's last stamp
    }
    if (!position->in_call) {
      marks_[position->window].add(activity, issue.call.start);
      return;
    }
    ++issue.activities;
    issue.graph = activity.graph;
    if (has_sound_times(activity, issue.call)) {
      DeviceActivity& added = result_.calls[position->window].emplace_back(activity);
      added.issued_ns = issue.call.start;
      added.issued_by = issue.call.thread;
    }
  }

  bool has_sound_times(const DeviceActivity& activity, const ApiCall& call) {
    TraceFaults& faults = result_.faults;
    if (activity.start_ns == 0 || activity.end_ns == 0) {
      ++faults.uncollected;
    } else if (activity.end_ns < activity.start_ns) {
      ++faults.reversed;
    } else if (activity.start_ns + tolerance_ < call.start) {
      ++faults.early;
    } else if (activity.end_ns > context_.read_at + tolerance_) {
      ++faults.late;
    } else {
      return true;
    }
    return false;
  }

  void finish(std::vector<DeviceActivity>& activities, const Marks& marks,
              const Marks& next) const {
    std::ranges::sort(activities, [](const DeviceActivity& a, const DeviceActivity& b) {
      return a.start_ns < b.start_ns;
    });
    for (DeviceActivity& activity : activities) {
      activity.unordered = marks.ran_ahead(activity) || next.outlasted_by(activity);
      activity.start_ns = context_.clock.nanoseconds(activity.start_ns);
      activity.end_ns = context_.clock.nanoseconds(activity.end_ns);
      activity.issued_ns = context_.clock.nanoseconds(activity.issued_ns);
    }
  }

  void find_unrecorded() {
    for (const auto& [correlation, issue] : issues_) {
      const ApiCall& call = issue.call;
      if (call.kind != ApiKind::kUnrecorded || call.failed || is_of_another_thread(call) ||
          captures_.contain(call)) {
        continue;
      }
      const std::optional<WindowPosition> position = find_window(windows_, call.start);
      if (position.has_value() && position->in_call) {
        result_.unrecorded.push_back({position->window, call.function});
      }
    }
  }

  void count_missing() {
    std::unordered_map<std::uint32_t, std::size_t> nodes_of;
    for (const auto& [correlation, issue] : issues_) {
      if (issue.call.kind == ApiKind::kGraphLaunch) {
        std::size_t& nodes = nodes_of[issue.graph];
        nodes = std::max(nodes, issue.activities);
      }
    }
    for (const auto& [correlation, issue] : issues_) {
      if (!gives_work(issue.call) || is_of_another_thread(issue.call) ||
          captures_.contain(issue.call)) {
        continue;
      }
      const std::optional<WindowPosition> position = find_window(windows_, issue.call.start);
      if (!position.has_value() || !position->in_call) {
        continue;
      }
      if (issue.activities == 0) {
        result_.faults.missing += had_nothing_to_do(issue.call, position->window) ? 0 : 1;
      } else if (issue.call.kind == ApiKind::kGraphLaunch && issue.graph != 0) {
        result_.faults.missing += nodes_of[issue.graph] - issue.activities;
      }
    }
  }

  bool had_nothing_to_do(const ApiCall& call, std::size_t window) const {
    return call.kind == ApiKind::kTransfer && !filled_.contains(steps_.at(call.correlation)) &&
           !result_.calls[window].empty();
  }

  bool is_of_another_thread(const ApiCall& call) const {
    return other_threads_.contains(call.thread);
  }

  std::span<const Window> windows_;
  const TraceRecords& records_;
  const TraceContext& context_;
  std::uint64_t tolerance_;
  std::uint32_t read_up_to_;
  Issues issues_;
  Captures captures_;
  std::unordered_set<std::uint32_t> other_threads_;
  std::unordered_set<std::uint64_t> filled_;
  Steps steps_;
  std::vector<Marks> marks_;
  Attribution result_;
};

}  // namespace

std::string TraceFaults::describe() const {
  std::string text;
  const auto add = [&text](std::size_t count, const char* one, const char* several) {
    if (count > 0) {
      text += (text.empty() ? "" : ", ") + std::to_string(count) + (count == 1 ? one : several);
    }
  };
  add(missing, " launch without its record", " launches without their records");
  add(unissued, " record without its launch", " records without their launches");
  add(uncollected, " record without times", " records without times");
  add(reversed, " record that ends before it begins", " records that end before they begin");
  add(early, " record that begins before its launch", " records that begin before their launches");
  add(late, " record that ends after it was read", " records that end after they were read");
  add(lost, " buffer of records that was lost", " buffers of records that were lost");
  return text;
}

Attribution attribute(std::span<const Window> windows, const TraceRecords& records,
                      const TraceContext& context, const TraceMemory& before) {
  return Attributing(windows, records, context, before).run();
}

void remember(std::span<const Window> windows, const TraceRecords& records,
              const TraceContext& context, TraceMemory& memory) {
  for (const ApiCall& call : records.api_calls) {
    memory.read_up_to = std::max(memory.read_up_to, call.correlation);
  }
  add_other_threads(windows, records.api_calls, context, memory.other_threads);
  const Issues issues = merge(records.api_calls);
  add_filled(records, issues, steps_of(windows, issues, memory.other_threads), memory.filled);
}

}  // namespace convtime
