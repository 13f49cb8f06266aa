#include "timing/trace/attribution.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

namespace convtime {

std::vector<std::vector<DeviceActivity>> attribute(std::span<const Window> windows,
                                                   std::span<const ApiCall> api_calls,
                                                   std::vector<DeviceActivity> activities) {
  std::unordered_map<std::uint32_t, std::uint64_t> issued_at;
  for (const ApiCall& call : api_calls) {
    // A runtime call and the driver call inside of it share their correlation: the earlier counts.
    const auto [found, added] = issued_at.emplace(call.correlation, call.start);
    if (!added) {
      found->second = std::min(found->second, call.start);
    }
  }
  std::vector<std::vector<DeviceActivity>> result(windows.size());
  for (DeviceActivity& activity : activities) {
    const auto issued = issued_at.find(activity.correlation);
    if (issued == issued_at.end()) {
      continue;  // issued before the windows were watched
    }
    const auto after = std::upper_bound(
        windows.begin(), windows.end(), issued->second,
        [](std::uint64_t time, const Window& window) { return time < window.begin; });
    if (after == windows.begin() || issued->second > std::prev(after)->end) {
      continue;  // issued between two windows: not by the call that is timed
    }
    result[static_cast<std::size_t>(std::prev(after) - windows.begin())].push_back(
        std::move(activity));
  }
  for (auto& issued_in_window : result) {
    std::sort(
        issued_in_window.begin(), issued_in_window.end(),
        [](const DeviceActivity& a, const DeviceActivity& b) { return a.start_ns < b.start_ns; });
  }
  return result;
}

}  // namespace convtime
