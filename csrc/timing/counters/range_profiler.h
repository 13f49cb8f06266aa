#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "timing/counters/profiler_api.h"

namespace convtime {

/// CUPTI's profiler, from initialisation to the end of it. While it lives, kernels of the whole
/// process may take twice as long.
class ProfilerLibrary {
 public:
  /// Throws CuptiError.
  explicit ProfilerLibrary(const ProfilerApi& api);
  ~ProfilerLibrary();
  ProfilerLibrary(const ProfilerLibrary&) = delete;
  ProfilerLibrary& operator=(const ProfilerLibrary&) = delete;

  /// Of a device by CUDA's number, for example "GH100".
  std::string chip_name(int device) const;

  /// What MetricHost is told of the context's device.
  std::vector<std::uint8_t> counter_availability(CUcontext context) const;

 private:
  const ProfilerApi& api_;
};

/// Counts what each kernel of a context does between start() and stop(): one range for each, in the
/// order of their launches. Each launch waits for its kernel meanwhile. Where that takes several
/// passes, CUPTI repeats the kernel, and restores the memory that it wrote.
class RangeProfiler {
 public:
  /// For a ProfilerLibrary that outlives it. Throws CuptiError, as everything here does.
  RangeProfiler(const ProfilerApi& api, CUcontext context);
  ~RangeProfiler();
  RangeProfiler(const RangeProfiler&) = delete;
  RangeProfiler& operator=(const RangeProfiler&) = delete;

  /// Begins a new count of up to `ranges` kernels. CUPTI goes on using the config image.
  void configure(std::span<const std::uint8_t> config_image, std::span<const char* const> metrics,
                 std::size_t ranges);

  void start();
  void stop();

  /// Reads what was counted from the device. Returns how many kernels there was no room for.
  std::size_t decode();

  /// Of the kernels that were counted, the place of each in the order of launches.
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
