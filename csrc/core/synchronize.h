#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
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

/// Waits for devices with a time limit. CUDA has no such wait, so a thread waits instead. It is
/// started once, so that a wait within a sample starts none. If a device is still busy in the end,
/// the thread keeps running until it is idle, and uses no data of the caller.
class DeviceWaiter {
 public:
  using Clock = std::chrono::steady_clock;

  DeviceWaiter() { std::thread(serve, state_).detach(); }
  ~DeviceWaiter() {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
    state_->changed.notify_all();
  }
  DeviceWaiter(const DeviceWaiter&) = delete;
  DeviceWaiter& operator=(const DeviceWaiter&) = delete;

  /// Wait like synchronize(), but at most that long. Returns when the devices were idle, read
  /// before this thread continues; nothing if they are still busy.
  std::optional<Clock::time_point> wait(std::span<const int> others, double seconds) {
    constexpr double kLongestSeconds = 1e8;  // the clock's range is 292 years
    const auto limit = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(std::clamp(seconds, 0.0, kLongestSeconds)));
    const Clock::time_point end = Clock::now() + limit;
    std::vector<int> devices(others.begin(), others.end());
    devices.push_back(current_device());
    std::unique_lock lock(state_->mutex);
    const auto is_done = [this] { return !state_->requested; };
    if (!state_->changed.wait_until(lock, end, is_done)) {
      return std::nullopt;  // an earlier wait is not over
    }
    state_->devices = std::move(devices);
    state_->requested = true;
    state_->changed.notify_all();
    if (!state_->changed.wait_until(lock, end, is_done)) {
      return std::nullopt;
    }
    CONVTIME_CUDA_CHECK(state_->status);
    return state_->idle_at;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<int> devices;
    bool requested = false;
    bool ends = false;
    cudaError_t status = cudaSuccess;
    Clock::time_point idle_at;
  };

  static void serve(const std::shared_ptr<State>& state) {
    std::unique_lock lock(state->mutex);
    for (;;) {
      state->changed.wait(lock, [&] { return state->requested || state->ends; });
      if (!state->requested) {
        return;
      }
      const std::vector<int> devices = state->devices;
      lock.unlock();
      cudaError_t status = cudaSuccess;
      for (const int device : devices) {
        status = status == cudaSuccess ? cudaSetDevice(device) : status;
        status = status == cudaSuccess ? cudaDeviceSynchronize() : status;
      }
      const Clock::time_point idle_at = Clock::now();
      lock.lock();
      state->status = status;
      state->idle_at = idle_at;
      state->requested = false;
      state->changed.notify_all();
    }
  }

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// Like synchronize(), but waits at most that long; return whether the devices are idle.
inline bool synchronize_within(std::span<const int> others, double seconds) {
  return DeviceWaiter().wait(others, seconds).has_value();
}

}  // namespace convtime
