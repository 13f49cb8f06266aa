#include "program/program.h"

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>

#include "core/cuda.h"
#include "program/image_cache.h"
#include "program/sources.h"

namespace convtime {
namespace {

/// A function of the CUDA driver, found by the runtime: linked, it would keep convtime from being
/// imported on a machine without a GPU.
template <typename Function>
Function* driver_function(const char* name) {
  constexpr unsigned kSince = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  CONVTIME_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion(name, &function, kSince, cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess || function == nullptr) {
    throw std::runtime_error(std::string("the GPU's driver has no function ") + name +
                             ", which convtime needs: install a driver for CUDA 12 or later");
  }
  return reinterpret_cast<Function*>(function);
}

void check_driver(CUresult status, const char* call) {
  if (status != CUDA_SUCCESS) {
    const char* name = nullptr;
    driver_function<decltype(cuGetErrorName)>("cuGetErrorName")(status, &name);
    throw std::runtime_error(std::string("CUDA call failed: ") + call + " returned " +
                             (name == nullptr ? std::to_string(status) : name));
  }
}

int capability_of(int device) {
  int major = 0;
  int minor = 0;
  CONVTIME_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  CONVTIME_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return 10 * major + minor;
}

const ImageCache& image_cache() {
  static const auto* const cache = new ImageCache(ImageCache::default_folder());
  return *cache;
}

/// Everything that a program's image depends on.
std::string key_of(const ProgramSource& source, const Target& target) {
  std::string key = "nvrtc " + Nvrtc::instance().version() + "\ntarget " + target.name() +
                    "\nsources " + std::string(Sources::embedded().digest) + "\nheader " +
                    source.header;
  for (const std::string& name : source.names) {
    key += "\nname " + name;
  }
  return key;
}

class Programs {
 public:
  static Programs& instance() {
    static auto* const programs = new Programs;  // never destroyed: kernels are never unloaded
    return *programs;
  }

  std::vector<Kernel> load(const ProgramSource& source) {
    const int device = current_device();
    const Target target = Nvrtc::instance().target_for(capability_of(device));
    const std::string key = key_of(source, target);
    std::promise<std::vector<Kernel>> promise;
    std::unique_lock lock(mutex_);
    const auto [place, is_first] = loaded_.try_emplace({device, key});
    if (!is_first) {
      const std::shared_future<std::vector<Kernel>> other = place->second;
      lock.unlock();
      run_timed([&] { other.wait(); });
      return other.get();
    }
    place->second = promise.get_future().share();
    lock.unlock();
    try {
      std::vector<Kernel> kernels;
      run_timed([&] { kernels = load_now(source, target, key); });
      promise.set_value(kernels);
      return kernels;
    } catch (...) {
      promise.set_exception(std::current_exception());
      lock.lock();
      loaded_.erase({device, key});  // the next call tries again
      throw;
    }
  }

  /// Only before kernels are loaded.
  void set_scope(std::function<void(const std::function<void()>&)> scope) {
    scope_ = std::move(scope);
  }

  double seconds() const { return nanoseconds_.load() * 1e-9; }

 private:
  void run_timed(const std::function<void()>& work) {
    const auto start = std::chrono::steady_clock::now();
    scope_(work);
    nanoseconds_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
  }

  std::vector<Kernel> load_now(const ProgramSource& source, const Target& target,
                               const std::string& key) {
    const std::optional<Image> stored = image_cache().read(key);
    std::optional<std::vector<Kernel>> kernels = stored ? try_loading(*stored) : std::nullopt;
    if (!kernels) {
      const Image compiled = Nvrtc::instance().compile(source, target);
      kernels = load_image(compiled);
      (void)image_cache().write(key, compiled);  // kernel_cache_state() says why it cannot
    }
    return *kernels;
  }

  /// Load an image that may be damaged in a way that its checksum does not show.
  std::optional<std::vector<Kernel>> try_loading(const Image& image) {
    try {
      return load_image(image);
    } catch (const std::runtime_error&) {
      (void)cudaGetLastError();
      return std::nullopt;
    }
  }

  std::vector<Kernel> load_image(const Image& image) {
    static const auto load = driver_function<decltype(cuLibraryLoadData)>("cuLibraryLoadData");
    static const auto find = driver_function<decltype(cuLibraryGetKernel)>("cuLibraryGetKernel");
    const RelaxedCapture relaxed;
    CUlibrary library = nullptr;
    check_driver(load(&library, image.code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
                 "cuLibraryLoadData");
    std::vector<Kernel> kernels;
    for (const std::string& symbol : image.symbols) {
      CUkernel kernel = nullptr;
      check_driver(find(&kernel, library, symbol.c_str()), "cuLibraryGetKernel");
      // CUDA loads code when it is first used, and may wait for the device then. Do that now.
      cudaFuncAttributes attributes{};
      CONVTIME_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
      kernels.emplace_back(kernel);
    }
    return kernels;
  }

  std::mutex mutex_;
  std::map<std::pair<int, std::string>, std::shared_future<std::vector<Kernel>>> loaded_;
  std::function<void(const std::function<void()>&)> scope_ = [](const auto& work) { work(); };
  std::atomic<std::int64_t> nanoseconds_ = 0;
};

}  // namespace

std::vector<Kernel> load_kernels(const ProgramSource& source) {
  return Programs::instance().load(source);
}

double kernel_loading_seconds() { return Programs::instance().seconds(); }

void set_compilation_scope(std::function<void(const std::function<void()>&)> scope) {
  Programs::instance().set_scope(std::move(scope));
}

KernelCacheState kernel_cache_state() {
  KernelCacheState state;
  try {
    state.compiler = "NVRTC " + Nvrtc::instance().version();
  } catch (const CompileError& error) {
    state.compiler_reason = error.what();
  }
  const ImageCache::Size size = image_cache().size();
  state.folder = image_cache().folder();
  state.files = size.files;
  state.bytes = size.bytes;
  state.problem = image_cache().problem();
  return state;
}

}  // namespace convtime
