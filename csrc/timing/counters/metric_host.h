#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "timing/counters/profiler_api.h"

namespace convtime {

/// What CUPTI says of a metric.
struct MetricInfo {
  std::string description;
  std::string unit;           ///< for example "byte", "percent" or "byte/second"
  std::string hardware_unit;  ///< what counts it, for example "dram"
};

/// CUPTI's plan for counting metrics.
struct CounterSchedule {
  std::vector<std::uint8_t> config_image;
  std::size_t passes = 0;  ///< as few counters fit into the hardware at a time
};

/// CUPTI's knowledge of the metrics of a chip. It asks no device.
class MetricHost {
 public:
  /// `availability` is what the device says of its counters; without, all of the chip's are known.
  /// Throws CuptiError, as everything here does.
  MetricHost(const ProfilerApi& api, std::string chip, std::vector<std::uint8_t> availability = {});
  ~MetricHost();
  MetricHost(const MetricHost&) = delete;
  MetricHost& operator=(const MetricHost&) = delete;

  /// The names of what is counted of single contexts, such as "dram__bytes_read", each with the
  /// suffix of the value that is mostly meant: ".sum", ".ratio" or
  /// ".avg.pct_of_peak_sustained_elapsed".
  std::vector<std::string> metrics() const;

  /// Nothing for a name that the chip does not have.
  std::optional<MetricInfo> describe(const std::string& metric) const;

  /// For one set of metrics: CUPTI adds a second one to the first.
  CounterSchedule schedule(std::span<const char* const> metrics);

  /// Values in the metrics' own units of one range of decoded counters; NaN where there is none.
  std::vector<double> evaluate(std::span<const char* const> metrics,
                               std::span<const std::uint8_t> counter_data, std::size_t range) const;

 private:
  const ProfilerApi& api_;
  std::string chip_;
  std::vector<std::uint8_t> availability_;  // CUPTI goes on reading it
  CUpti_Profiler_Host_Object* host_ = nullptr;
};

}  // namespace convtime
