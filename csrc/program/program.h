#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda.h"
#include "core/export.h"
#include "program/nvrtc.h"

namespace convtime {

/// A kernel on the device that was current when it was compiled. Valid for the life of the process.
class Kernel {
 public:
  Kernel() = default;
  explicit Kernel(const void* function) : function_(function) {}

  /// For the CUDA runtime's functions that take a kernel.
  const void* function() const { return function_; }

  /// Launch the kernel. The arguments must have exactly the types of the kernel's parameters, which
  /// nothing checks: pass structs that both sides include, and explicit types otherwise. Throws
  /// CudaError.
  template <typename... Arguments>
  void launch(dim3 blocks, dim3 threads, std::size_t shared_bytes, cudaStream_t stream,
              const Arguments&... arguments) const {
    const void* pointers[] = {&arguments..., nullptr};  // not empty without arguments
    CONVTIME_CUDA_CHECK(cudaLaunchKernel(function_, blocks, threads, const_cast<void**>(pointers),
                                         shared_bytes, stream));
  }

 private:
  const void* function_ = nullptr;
};

/// Return the kernels of source.names for the current device, compiled if neither this process nor
/// the cache on disk has them, and loaded. Thread-safe: threads that need the same program wait for
/// one compilation. Call it outside of timed regions. Throws CompileError or CudaError.
CONVTIME_API std::vector<Kernel> load_kernels(const ProgramSource& source);

/// Return the seconds that this process has spent compiling or loading kernels.
CONVTIME_API double kernel_loading_seconds();

/// Set a function that calls its argument, which compiles or waits for another thread's
/// compilation: an interpreter lets its other threads run in the meantime. Set it before kernels
/// are loaded.
CONVTIME_API void set_compilation_scope(
    std::function<void(const std::function<void()>& compile)> scope);

/// The state of the compiler and of the cache on disk.
struct KernelCacheState {
  std::string compiler;         ///< such as "NVRTC 13.2"; empty if it is unavailable
  std::string compiler_reason;  ///< why it is unavailable
  std::string folder;           ///< empty if the user has none
  std::int64_t files = 0;
  std::int64_t bytes = 0;
  std::string problem;  ///< why compiled programs cannot be stored; empty if they can
};
CONVTIME_API KernelCacheState kernel_cache_state();

/// The kernels that a function launches, by the constants they are compiled for. Thread-safe. Make
/// it static and never destroy it: threads may launch while the process ends.
template <typename Key>
class KernelTable {
 public:
  /// Return the current device's kernel for the key; describe(key) returns the ProgramSource, with
  /// one name, of a kernel that is not known yet. `Key` has operator<.
  template <typename Describe>
  Kernel get(const Key& key, const Describe& describe) {
    const std::pair<int, Key> place(current_device(), key);
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = kernels_.find(place); found != kernels_.end()) {
        return found->second;
      }
    }
    const Kernel kernel = load_kernels(describe(key)).front();
    const std::unique_lock lock(mutex_);
    return kernels_.emplace(place, kernel).first->second;
  }

 private:
  std::shared_mutex mutex_;
  std::map<std::pair<int, Key>, Kernel> kernels_;
};

/// The sizes that kernels are compiled for: the first few of each kernel that is otherwise equal.
/// Compiling for each of ever new sizes would take longer than their calls gain. Thread-safe. Make
/// it static and never destroy it.
template <typename Others, typename Size>
class KnownSizes {
 public:
  /// Return whether a kernel may be compiled for this size; `others` is all else that it is
  /// compiled for.
  bool admit(const Others& others, const Size& size) {
    constexpr std::size_t kMost = 16;
    const std::lock_guard lock(mutex_);
    std::set<Size>& known = sizes_[others];
    return known.contains(size) || (known.size() < kMost && known.insert(size).second);
  }

 private:
  std::mutex mutex_;
  std::map<Others, std::set<Size>> sizes_;
};

}  // namespace convtime
