#include "timing/trace/device_activity.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace convtime {
namespace {

double seconds_of(const DeviceActivity& activity) {
  return static_cast<double>(activity.end_ns - activity.start_ns) * 1e-9;
}

/// The columns of one activity: the n-th column is for its n-th occurrence in a call.
struct Occurrences {
  std::vector<std::size_t> columns;
  std::size_t call = 0;  ///< the last call processed
  std::size_t seen = 0;  ///< occurrences in that call
};

void add_stream(std::uint32_t stream, std::vector<std::uint32_t>& streams) {
  const auto place = std::lower_bound(streams.begin(), streams.end(), stream);
  if (place == streams.end() || *place != stream) {
    streams.insert(place, stream);
  }
}

}  // namespace

std::size_t HashActivityInfo::operator()(const ActivityInfo& info) const {
  std::size_t hash = std::hash<std::string_view>{}(info.name);
  const auto mix = [&hash](std::uint64_t value) {
    hash ^= std::hash<std::uint64_t>{}(value) + 0x9e3779b97f4a7c15U + (hash << 6) + (hash >> 2);
  };
  mix(static_cast<std::uint64_t>(info.kind));
  for (const std::int32_t size : info.grid) {
    mix(static_cast<std::uint64_t>(size));
  }
  for (const std::int32_t size : info.block) {
    mix(static_cast<std::uint64_t>(size));
  }
  mix(info.bytes);
  return hash;
}

std::string demangle(std::string_view name) {
  const std::string mangled(name);
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? readable.get() : mangled;
}

std::string_view interned(std::string_view name) {
  // Never destroyed: activities may be read while the process ends.
  static auto* const mutex = new std::mutex;
  static auto* const names = new std::unordered_set<std::string>;
  const std::lock_guard lock(*mutex);
  return *names->emplace(name).first;
}

std::vector<ActivityColumn> tabulate(std::span<const std::vector<DeviceActivity>> calls) {
  std::vector<ActivityColumn> columns;
  std::unordered_map<ActivityInfo, Occurrences, HashActivityInfo> occurrences_of;
  for (std::size_t call = 0; call < calls.size(); ++call) {
    for (const DeviceActivity& activity : calls[call]) {
      Occurrences& occurrences = occurrences_of[activity.info];
      if (occurrences.call != call) {
        occurrences.call = call;
        occurrences.seen = 0;
      }
      if (occurrences.seen == occurrences.columns.size()) {
        occurrences.columns.push_back(columns.size());
        columns.push_back({.info = activity.info,
                           .name = demangle(activity.info.name),
                           .streams = {},
                           .seconds = std::vector<double>(
                               calls.size(), std::numeric_limits<double>::quiet_NaN())});
      }
      ActivityColumn& column = columns[occurrences.columns[occurrences.seen++]];
      column.seconds[call] = seconds_of(activity);
      add_stream(activity.stream, column.streams);
    }
  }
  return columns;
}

double busy_seconds(std::span<const DeviceActivity> activities) {
  std::uint64_t nanoseconds = 0;
  std::uint64_t done_until = 0;
  for (const DeviceActivity& activity : activities) {
    const std::uint64_t start = std::max(activity.start_ns, done_until);
    if (activity.end_ns > start) {
      nanoseconds += activity.end_ns - start;
      done_until = activity.end_ns;
    }
  }
  return static_cast<double>(nanoseconds) * 1e-9;
}

double span_seconds(std::span<const DeviceActivity> activities) {
  if (activities.empty()) {
    return 0;
  }
  const auto last = std::ranges::max_element(
      activities,
      [](const DeviceActivity& a, const DeviceActivity& b) { return a.end_ns < b.end_ns; });
  return static_cast<double>(last->end_ns - activities.front().start_ns) * 1e-9;
}

double sum_seconds(std::span<const DeviceActivity> activities) {
  std::uint64_t nanoseconds = 0;
  for (const DeviceActivity& activity : activities) {
    nanoseconds += activity.end_ns - activity.start_ns;
  }
  return static_cast<double>(nanoseconds) * 1e-9;
}

double seconds_by(Metric metric, std::span<const DeviceActivity> activities) {
  switch (metric) {
    case Metric::kBusy:
      return busy_seconds(activities);
    case Metric::kSpan:
      return span_seconds(activities);
    case Metric::kSum:
      return sum_seconds(activities);
  }
  return 0;
}

}  // namespace convtime
