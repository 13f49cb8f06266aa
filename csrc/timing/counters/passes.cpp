#include "timing/counters/passes.h"

#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace convtime {
namespace {

/// Returns whether it was the last one.
bool make_pass(const CountedCall& counted, RangeProfiler& profiler, const CountingHooks& hooks) {
  const auto wait = [&hooks](const std::function<void()>& blocking) { hooks.host.wait(blocking); };
  counted.call.prepare();
  wait(hooks.synchronize);  // what prepares the call is not counted
  wait([&] { profiler.start(); });
  counted.call.call();
  bool done = false;
  wait([&] {
    hooks.synchronize();
    done = profiler.stop();
  });
  counted.call.discard_result();
  return done;
}

std::vector<std::vector<double>> read_values(const CountedCall& counted,
                                             const RangeProfiler& profiler,
                                             const MetricHost& host) {
  std::map<std::size_t, std::vector<double>> by_launch;
  const std::vector<std::size_t> launches = profiler.launches();
  for (std::size_t range = 0; range < launches.size(); ++range) {
    by_launch[launches[range]] = host.evaluate(counted.metrics, profiler.counter_data(), range);
  }
  std::vector<std::vector<double>> values;
  for (auto& [launch, of_launch] : by_launch) {
    values.push_back(std::move(of_launch));
  }
  return values;
}

}  // namespace

std::vector<std::vector<double>> count_passes(const CountedCall& counted, RangeProfiler& profiler,
                                              const MetricHost& host, const CountingHooks& hooks) {
  profiler.configure(counted.schedule.config_image, counted.metrics, counted.launches,
                     counted.replay);
  // CUPTI may divide a pass that has no room for all kernels, and says when it has them all.
  const std::size_t most = 4 * counted.schedule.passes + 4;
  bool done = false;
  for (std::size_t pass = 0; !done; ++pass) {
    if (pass == most) {
      throw std::runtime_error("CUPTI asks for more than " + std::to_string(most) +
                               " passes, and had announced " +
                               std::to_string(counted.schedule.passes));
    }
    hooks.host.poll();
    hooks.require_turn();
    done = make_pass(counted, profiler, hooks);
  }
  std::size_t dropped = 0;
  std::vector<std::vector<double>> values;
  hooks.host.wait([&] {
    dropped = profiler.decode();
    values = read_values(counted, profiler, host);
  });
  if (dropped > 0) {
    throw std::runtime_error(std::to_string(dropped) + " kernels ran beside the " +
                             std::to_string(counted.launches) +
                             " that the call launches: let no other thread of this process use "
                             "the GPU meanwhile");
  }
  return values;
}

}  // namespace convtime
