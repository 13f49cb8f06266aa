#include "timing/trace/device_activity.h"

#include <cxxabi.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

namespace convtime {
namespace {

std::string demangle(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? readable.get() : name;
}

double seconds_of(const DeviceActivity& activity) {
  return static_cast<double>(activity.end_ns - activity.start_ns) * 1e-9;
}

}  // namespace

const char* to_string(ActivityKind kind) {
  switch (kind) {
    case ActivityKind::kKernel:
      return "kernel";
    case ActivityKind::kMemcpy:
      return "memcpy";
    case ActivityKind::kMemset:
      return "memset";
  }
  return "unknown";
}

std::vector<ActivityColumn> tabulate(std::span<const std::vector<DeviceActivity>> calls) {
  std::vector<ActivityColumn> columns;
  const std::vector<double> absent(calls.size(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t call = 0; call < calls.size(); ++call) {
    for (const DeviceActivity& activity : calls[call]) {
      const auto is_free = [&](const ActivityColumn& column) {
        return std::isnan(column.seconds[call]) && column.info == activity.info;
      };
      auto column = std::find_if(columns.begin(), columns.end(), is_free);
      if (column == columns.end()) {
        columns.push_back({activity.info, absent});
        column = std::prev(columns.end());
      }
      column->seconds[call] = seconds_of(activity);
    }
  }
  for (ActivityColumn& column : columns) {
    column.info.name = demangle(column.info.name);
  }
  return columns;
}

double busy_seconds(std::span<const DeviceActivity> activities) {
  std::uint64_t nanoseconds = 0;
  for (const DeviceActivity& activity : activities) {
    nanoseconds += activity.end_ns - activity.start_ns;
  }
  return static_cast<double>(nanoseconds) * 1e-9;
}

double span_seconds(std::span<const DeviceActivity> activities) {
  if (activities.empty()) {
    return 0;
  }
  const auto last = std::max_element(
      activities.begin(), activities.end(),
      [](const DeviceActivity& a, const DeviceActivity& b) { return a.end_ns < b.end_ns; });
  return static_cast<double>(last->end_ns - activities.front().start_ns) * 1e-9;
}

}  // namespace convtime
