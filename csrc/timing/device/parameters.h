#pragma once

#include <cstdint>

// What the kernels that measure share with the host.
namespace convtime {

/// Threads of read_kernel, and words of 16 bytes that each of them reads.
inline constexpr unsigned kReadThreads = 256;
inline constexpr unsigned kReadWords = 8;

/// Steps of %globaltimer that watch_globaltimer_kernel sees.
inline constexpr unsigned kGlobaltimerSteps = 16;

/// The duration of reference_kernel: long enough to hide the launch of the following work, as most
/// kernels do.
inline constexpr std::uint64_t kReferenceNs = 2000;

/// As large as the parameters of a matmul, because the device's launch time depends on them.
struct ReferenceParameters {
  std::uint64_t unused[256];
};

}  // namespace convtime
