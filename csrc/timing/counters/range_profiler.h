#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "timing/counters/profiler_api.h"

namespace convtime {

/// CUPTI's profiler, from its initialization to its end. While it exists, kernels of the whole
/// process may take twice as long.
class ProfilerLibrary {
 public:
  /// Throws CuptiError.
  explicit ProfilerLibrary(const ProfilerApi& api);
  ~ProfilerLibrary();
  ProfilerLibrary(const ProfilerLibrary&) = delete;
  ProfilerLibrary& operator=(const ProfilerLibrary&) = delete;

  /// Return the chip name of a device by CUDA's number, for example "GH100".
  std::string chip_name(int device) const;

  /// Return the counter availability of the context's device, for MetricHost.
  std::vector<std::uint8_t> counter_availability(CUcontext context) const;

 private:
  const ProfilerApi& api_;
};

/// Counts events in each kernel of a context between start() and stop(): one range per kernel, in
/// launch order. Each launch waits for its kernel. If several passes are needed, CUPTI repeats the
/// kernel and restores the memory that it wrote.
class RangeProfiler {
 public:
  /// A ProfilerLibrary must outlive this object. All functions throw CuptiError.
  RangeProfiler(const ProfilerApi& api, CUcontext context);
  ~RangeProfiler();
  RangeProfiler(const RangeProfiler&) = delete;
  RangeProfiler& operator=(const RangeProfiler&) = delete;

  /// Begin a new count of up to `ranges` kernels. CUPTI keeps using the config image.
  void configure(std::span<const std::uint8_t> config_image, std::span<const char* const> metrics,
                 std::size_t ranges);

  void start();
  void stop();

  /// Read the counts from the device. Returns the number of kernels that did not fit.
  std::size_t decode();

  /// Return the launch index of each counted kernel.
  std::vector<std::size_t> launches() const;

  std::span<const std::uint8_t> counter_data() const { return counter_data_; }

 private:
  void make_counter_data(std::span<const char* const> metrics, std::size_t ranges);

  const ProfilerApi& api_;
  CUpti_RangeProfiler_Object* profiler_ = nullptr;
  std::vector<std::uint8_t> counter_data_;
  bool started_ = false;
};

}  // namespace convtime
