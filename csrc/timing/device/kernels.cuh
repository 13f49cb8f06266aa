#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device_clocks.cuh"
#include "timing/device/parameters.h"

namespace convtime {

// --- Conditions

/// Read a buffer, so that it replaces what the cache holds. The compiler would remove loads whose
/// results are unused, so a store depends on the loaded values. Zeros never trigger it, and other
/// values do in one of 2^32 threads.
__global__ void read_kernel(const uint4* data, std::size_t words, std::uint32_t* rarely) {
  constexpr std::uint32_t kUnlikely = 0x9e3779b9;
  const std::size_t first =
      static_cast<std::size_t>(blockIdx.x) * kReadThreads * kReadWords + threadIdx.x;
  std::uint32_t seen = 0;
#pragma unroll
  for (unsigned i = 0; i < kReadWords; ++i) {
    const std::size_t word = first + i * kReadThreads;
    if (word < words) {
      const uint4 value = data[word];
      seen ^= value.x ^ value.y ^ value.z ^ value.w;
    }
  }
  if (seen == kUnlikely) {
    *rarely = seen;
  }
}

/// Hold the stream until the host opens the gate, or until the deadline.
__global__ void gate_kernel(const volatile int* open, volatile int* timed_out,
                            std::uint64_t deadline_ns) {
  const std::uint64_t start = globaltimer_ns();
  while (*open == 0) {
    if (globaltimer_ns() - start >= deadline_ns) {
      *timed_out = 1;
      __threadfence_system();
      return;
    }
  }
}

// --- The clock of multiprocessors

__global__ void probe_clock_kernel(ClockStamp* stamps, double random_range) {
  const ClockStamp stamp = read_clocks();
  stamps[blockIdx.x] = stamp;
  if (blockIdx.x == 0) {  // clocks are read at a tick, and the following work would start close to
                          // one
    spin_cycles(random_cycles(stamp.nanoseconds, random_range));
  }
}

/// Like probe_clock_kernel, but at least kClockWindowNs after each of the first stamps, because
/// this block may share its multiprocessor with any of the first blocks.
__global__ void finish_probe_kernel(ClockStamp* stamps, const ClockStamp* first) {
  std::uint64_t latest = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) {
    latest = max(latest, first[i].nanoseconds);
  }
  spin_until(globaltimer_ns(), latest + kClockWindowNs);
  stamps[blockIdx.x] = read_clocks();
}

/// Take two stamps of the same multiprocessor, in one thread.
__global__ void probe_window_kernel(ClockStamp* stamps) {
  stamps[0] = read_clocks();
  spin_until(globaltimer_ns(), stamps[0].nanoseconds + kClockWindowNs);
  stamps[1] = read_clocks();
}

// --- Timers

/// One kernel for opening and closing stamps, so that a closing stamp's code is cached, even if the
/// caches were flushed before the opening stamp.
__global__ void stamp_kernel(std::uint64_t* count_and_stamps, std::uint64_t capacity, bool open,
                             double least_cycles, double random_range) {
  const std::uint64_t count = *static_cast<volatile std::uint64_t*>(count_and_stamps);
  const std::uint64_t cycles =
      open ? static_cast<std::uint64_t>(least_cycles) + random_cycles(count, random_range) : 0;
  const std::uint64_t now = spin_cycles(cycles);
  if (count < capacity) {
    count_and_stamps[1 + count] = now;
  }
  *count_and_stamps = count + 1;
}

__global__ void spin_cycles_kernel(std::uint64_t cycles) {
  const std::uint64_t start = sm_cycles();
  while (sm_cycles() - start < cycles) {
  }
}

/// Record times at which %globaltimer changes.
__global__ void watch_globaltimer_kernel(std::uint64_t* times) {
  std::uint64_t last = globaltimer_ns();
  for (unsigned step = 0; step <= kGlobaltimerSteps; ++step) {
    std::uint64_t now = last;
    while (now == last) {
      now = globaltimer_ns();
    }
    times[step] = last = now;
  }
}

/// Like many kernels, it fills the device and ends with a store, which an event waits for.
__global__ void reference_kernel(ReferenceParameters, std::uint64_t* result) {
  const std::uint64_t start = globaltimer_ns();
  result[blockIdx.x] = spin_until(start, start + kReferenceNs);
}

}  // namespace convtime
