#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "timing/counters/profiler_api.h"

namespace convtime {

/// CUPTI's description of a metric.
struct MetricInfo {
  std::string description;
  std::string unit;           ///< for example "byte", "percent" or "byte/second"
  std::string hardware_unit;  ///< the unit that counts it, for example "dram"
};

/// CUPTI's plan for counting metrics.
struct CounterSchedule {
  std::vector<std::uint8_t> config_image;
  std::size_t passes = 0;  ///< several, because few counters fit in the hardware at a time
};

/// CUPTI's knowledge of a chip's metrics. It does not access a device.
class MetricHost {
 public:
  /// `availability` is the device's counter availability; without it, all counters of the chip are
  /// known. All functions throw CuptiError.
  MetricHost(const ProfilerApi& api, std::string chip, std::vector<std::uint8_t> availability = {});
  ~MetricHost();
  MetricHost(const MetricHost&) = delete;
  MetricHost& operator=(const MetricHost&) = delete;

  /// Return the names of metrics that are counted per context, such as "dram__bytes_read". Each has
  /// its most common suffix: ".sum", ".ratio" or ".avg.pct_of_peak_sustained_elapsed".
  std::vector<std::string> metrics() const;

  /// Return nothing for a name that the chip does not have.
  std::optional<MetricInfo> describe(const std::string& metric) const;

  /// Schedule one set of metrics. Call this once: CUPTI would add a second set to the first.
  CounterSchedule schedule(std::span<const char* const> metrics);

  /// Return values in the metrics' own units for one range of decoded counters; NaN if a value is
  /// missing.
  std::vector<double> evaluate(std::span<const char* const> metrics,
                               std::span<const std::uint8_t> counter_data, std::size_t range) const;

 private:
  const ProfilerApi& api_;
  std::string chip_;
  std::vector<std::uint8_t> availability_;  // CUPTI keeps reading it
  CUpti_Profiler_Host_Object* host_ = nullptr;
};

/// Metrics that are counted together, and how.
struct ScheduledMetrics {
  std::vector<const char*> names;
  std::unique_ptr<MetricHost> host;
  CounterSchedule schedule;
};

/// Creates a host without metrics.
using MakeHost = std::function<std::unique_ptr<MetricHost>()>;

/// Schedule all metrics together, in as many passes as needed. Throws CuptiError, like all
/// functions here.
ScheduledMetrics schedule_together(const MakeHost& make_host, std::span<const char* const> names);

/// Schedule the metrics in order, as many together as fit in one pass. A metric that needs several
/// passes is separate.
std::vector<ScheduledMetrics> schedule_by_pass(const MakeHost& make_host,
                                               std::span<const char* const> names);

}  // namespace convtime
