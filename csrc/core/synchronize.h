#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/cuda.h"

namespace convtime {

/// Wait until the current device and `others` are idle.
inline void synchronize(std::span<const int> others) {
  CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
  for (const int device : others) {
    const CurrentDevice current(device);
    CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
  }
}

/// Like synchronize(), but waits at most that long; return whether the devices are idle. CUDA has
/// no wait with a timeout, so a thread waits instead. It keeps running until the devices are idle,
/// and uses no data of the caller.
inline bool synchronize_within(std::span<const int> others, double seconds) {
  struct Wait {
    std::mutex mutex;
    std::condition_variable ended;
    bool over = false;
    cudaError_t status = cudaSuccess;
  };
  std::vector<int> devices(others.begin(), others.end());
  devices.push_back(current_device());
  const auto wait = std::make_shared<Wait>();
  std::thread([wait, devices] {
    cudaError_t status = cudaSuccess;
    for (const int device : devices) {
      status = status == cudaSuccess ? cudaSetDevice(device) : status;
      status = status == cudaSuccess ? cudaDeviceSynchronize() : status;
    }
    const std::lock_guard lock(wait->mutex);
    wait->status = status;
    wait->over = true;
    wait->ended.notify_all();
  }).detach();
  std::unique_lock lock(wait->mutex);
  const bool over = wait->ended.wait_for(lock, std::chrono::duration<double>(seconds),
                                         [&] { return wait->over; });
  if (over) {
    CONVTIME_CUDA_CHECK(wait->status);
  }
  return over;
}

}  // namespace convtime
