#include "timing/counters/passes.h"

#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

namespace convtime {
namespace {

constexpr std::size_t kRoomBeside = 16;  // kernels

/// By kernel, in the order of launches.
using Rows = std::vector<std::vector<double>>;

void count_call(Callable& call, RangeProfiler& profiler, const CountingHooks& hooks) {
  const auto wait = [&hooks](const std::function<void()>& blocking) { hooks.host.wait(blocking); };
  call.prepare();
  wait(hooks.synchronize);  // the preparation of the call must not be counted
  wait([&] { profiler.start(); });
  call.call();
  wait([&] {
    hooks.synchronize();
    profiler.stop();
  });
  call.discard_result();
}

Rows read_rows(const ScheduledMetrics& part, const RangeProfiler& profiler) {
  std::map<std::size_t, std::vector<double>> by_launch;
  const std::vector<std::size_t> launches = profiler.launches();
  for (std::size_t range = 0; range < launches.size(); ++range) {
    by_launch[launches[range]] = part.host->evaluate(part.names, profiler.counter_data(), range);
  }
  Rows rows;
  for (auto& [launch, of_launch] : by_launch) {
    rows.push_back(std::move(of_launch));
  }
  return rows;
}

Rows count_part(const CountedCall& counted, const ScheduledMetrics& part, RangeProfiler& profiler,
                const CountingHooks& hooks) {
  hooks.host.poll();
  hooks.require_turn();
  // The additional room shows whether kernels of other threads ran, too.
  profiler.configure(part.schedule.config_image, part.names, counted.most + kRoomBeside);
  count_call(counted.call, profiler, hooks);
  std::size_t dropped = 0;
  Rows rows;
  hooks.host.wait([&] {
    dropped = profiler.decode();
    rows = read_rows(part, profiler);
  });
  if (rows.size() + dropped > counted.most) {
    throw std::runtime_error(std::to_string(rows.size() + dropped) +
                             " kernels ran, but the call was seen to launch " +
                             std::to_string(counted.most) +
                             ": no other thread of this process may use the GPU while counting");
  }
  if (rows.size() < counted.fewest) {
    throw uncounted("CUPTI counted " + std::to_string(rows.size()) + " of the " +
                    std::to_string(counted.fewest) + " kernels that the call launches");
  }
  return rows;
}

/// Append a part's values to those of the previous parts.
void append(Rows part, Rows& rows) {
  if (rows.empty()) {
    rows = std::move(part);
    return;
  }
  for (std::size_t kernel = 0; kernel < rows.size(); ++kernel) {
    rows[kernel].insert(rows[kernel].end(), part[kernel].begin(), part[kernel].end());
  }
}

}  // namespace

CuptiError uncounted(const std::string& seen) {
  return {"kernels uncounted",
          seen +
              ", and CUPTI's range profiler does not count the nodes of a CUDA graph one by one; "
              "count the call that was captured, not the graph's replay"};
}

std::vector<Rows> count_calls(const CountedCall& counted, const ProfilerApi& api, CUcontext context,
                              const CountingHooks& hooks) {
  std::vector<Rows> values(counted.repeats);
  for (const ScheduledMetrics& part : counted.parts) {
    std::optional<RangeProfiler> profiler;
    hooks.host.wait([&] { profiler.emplace(api, context); });
    for (Rows& rows : values) {
      append(count_part(counted, part, *profiler, hooks), rows);
    }
    hooks.host.wait([&] { profiler.reset(); });
  }
  return values;
}

}  // namespace convtime
