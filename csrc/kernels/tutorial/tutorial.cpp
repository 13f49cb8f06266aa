#include "kernels/tutorial/tutorial.h"

#include <algorithm>
#include <compare>
#include <cstddef>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/elements.h"
#include "program/program.h"

namespace convtime::tutorial {
namespace {

using elements::kThreads;

std::string scoped(const std::string& name) { return "convtime::tutorial::" + name; }

/// Return the program of a step's kernel with parameters of these types.
ProgramSource source_of(const char* header, Build build, const std::string& step,
                        const std::string& parameters) {
  ProgramSource source{header, {scoped(to_string(build)) + "<" + step + ", " + parameters + ">"}};
  if (build == Build::kFastMath) {
    source.options = {"--use_fast_math"};
  }
  return source;
}

struct Grid {
  std::size_t blocks;
  std::size_t shared_bytes = 0;
};

std::size_t divided(std::size_t count, std::size_t of) { return (count + of - 1) / of; }

KernelFacts facts_of(const Kernel& kernel, const Grid& grid) {
  cudaFuncAttributes attributes{};
  CONVTIME_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel.function()));
  int blocks = 0;
  CONVTIME_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, kernel.function(), static_cast<int>(kThreads), grid.shared_bytes));
  return {attributes.numRegs, static_cast<std::int64_t>(attributes.localSizeBytes),
          static_cast<std::int64_t>(attributes.sharedSizeBytes + grid.shared_bytes),
          static_cast<int>(kThreads), blocks};
}

// --- ReLU and max-pooling -----------------------------------------------------------------------

bool has_compiled_window(PoolStep step) {
  return step == PoolStep::kUnrolled || step == PoolStep::kVectorised;
}

Grid grid_of(const PoolCall& call) {
  const PoolSizes& s = call.sizes;
  const auto batch = static_cast<std::size_t>(s.batch);
  const std::size_t lanes = elements::lanes_of(call.type);
  const auto tiles = [&](auto tile) {
    return Grid{
        batch * divided(s.channels, tile.kChannels) * divided(s.out_height, tile.kRows) *
            divided(s.out_width, tile.kColumns),
        static_cast<std::size_t>(tile.bytes(s.kernel, s.stride, elements::bytes_of(call.type)))};
  };
  if (call.step == PoolStep::kSharedMemory) {
    return s.channels_last ? tiles(Tile<true>()) : tiles(Tile<false>());
  }
  std::size_t channels = s.channels;
  std::size_t columns = s.out_width;
  if (call.step == PoolStep::kVectorised && s.channels_last) {
    channels = divided(channels, lanes);
  } else if (call.step == PoolStep::kVectorised) {
    columns = divided(columns, lanes / 2);  // a thread has half as many outputs as inputs
  }
  return {divided(batch * channels * s.out_height * columns, kThreads)};
}

/// The constants that a kernel is compiled for.
struct PoolKey {
  PoolStep step;
  Build build;
  ElementType type;
  bool channels_last;
  int window;  // 0 if it is not among them

  auto operator<=>(const PoolKey&) const = default;
};

Kernel kernel_of(const PoolCall& call) {
  static auto* const kernels = new KernelTable<PoolKey>;  // never destroyed
  return kernels->get({call.step, call.build, call.type, call.sizes.channels_last,
                       has_compiled_window(call.step) ? call.sizes.kernel : 0},
                      [&](const PoolKey&) { return pool_source(call); });
}

/// Return the index of the sizes in the constant memory of the kernel's program. They are never
/// removed, because pending kernels may still read them.
int place_in_constant_memory(const Kernel& kernel, const PoolSizes& sizes) {
  static std::mutex mutex;
  static auto* const known = new std::map<const void*, std::vector<PoolSizes>>;  // per kernel
  const std::lock_guard lock(mutex);
  std::vector<PoolSizes>& places = (*known)[kernel.function()];
  const auto found = std::find(places.begin(), places.end(), sizes);
  const auto place = static_cast<int>(found - places.begin());
  if (found == places.end()) {
    if (place == kKnownSizes) {
      throw std::runtime_error(
          "step 'constant_memory' keeps at most 256 geometries per kernel and process, got one "
          "more: use another step, or start a new process");
    }
    CONVTIME_CUDA_CHECK(cudaMemcpy(static_cast<PoolSizes*>(kernel.variable("known_sizes")) + place,
                                   &sizes, sizeof(sizes), cudaMemcpyHostToDevice));
    // The copy is asynchronous, and PyTorch's streams do not wait for it.
    CONVTIME_CUDA_CHECK(cudaStreamSynchronize(cudaStreamLegacy));
    places.push_back(sizes);
  }
  return place;
}

// --- Activations --------------------------------------------------------------------------------

int elements_per_thread(const ActivationCall& call) {
  return call.step == ActivationStep::kNaive ? 1 : elements::lanes_of(call.type);
}

Grid grid_of(const ActivationCall& call) {
  return {divided(static_cast<std::size_t>(call.count),
                  std::size_t{kThreads} * elements_per_thread(call))};
}

struct ActivationKey {
  ActivationStep step;
  Build build;
  Activation activation;
  ElementType type;
  bool is_gradient;

  auto operator<=>(const ActivationKey&) const = default;
};

Kernel kernel_of(const ActivationCall& call) {
  static auto* const kernels = new KernelTable<ActivationKey>;  // never destroyed
  return kernels->get({call.step, call.build, call.activation, call.type, call.is_gradient},
                      [&](const ActivationKey&) { return activation_source(call); });
}

}  // namespace

ProgramSource pool_source(const PoolCall& call) {
  const std::string type = elements::name_of(call.type);
  const bool channels_last = call.sizes.channels_last;
  const std::string window = std::to_string(call.sizes.kernel);
  std::string step;
  std::string geometry = scoped("PoolSizes");
  if (call.step == PoolStep::kVectorised) {
    step = (channels_last ? "ChannelsPerThread<" : "ColumnsPerThread<") + type + ", " + window;
  } else if (call.step == PoolStep::kSharedMemory) {
    step = "SharedTile<" + type + ", " + (channels_last ? "true" : "false");
  } else {
    const bool is_coalesced = call.step != PoolStep::kNaive;
    std::string source = "Parameters";
    if (call.step == PoolStep::kConstantMemory) {
      source = "ConstantMemory";
      geometry = "int";
    } else if (call.step == PoolStep::kUnrolled) {
      source = "CompiledWindow<" + window + ">";
    }
    step =
        "OutputPerThread<" + type + ", " +
        scoped(channels_last == is_coalesced ? "Neighbours::kChannels" : "Neighbours::kColumns") +
        ", " + scoped(source);
  }
  return source_of("kernels/tutorial/pool_steps.cuh", call.build, scoped(step) + ">",
                   "const " + type + "*, " + type + "*, " + geometry);
}

void launch_pool(const PoolCall& call, cudaStream_t stream) {
  const Kernel kernel = kernel_of(call);
  const Grid grid = grid_of(call);
  const auto launch = [&](const auto& geometry) {
    kernel.launch(static_cast<unsigned>(grid.blocks), kThreads, grid.shared_bytes, stream,
                  call.input, call.output, geometry);
  };
  if (call.step == PoolStep::kConstantMemory) {
    launch(place_in_constant_memory(kernel, call.sizes));
  } else {
    launch(call.sizes);
  }
}

KernelFacts pool_facts(const PoolCall& call) { return facts_of(kernel_of(call), grid_of(call)); }

ProgramSource activation_source(const ActivationCall& call) {
  if (call.activation != Activation::kRelu && call.activation != Activation::kGelu &&
      call.activation != Activation::kGeluTanh) {
    throw std::invalid_argument("the tutorial only supports relu, gelu and gelu_tanh");
  }
  const std::string type = elements::name_of(call.type);
  return source_of("kernels/tutorial/activation_steps.cuh", call.build,
                   scoped("ElementsPerThread<") + type + ", " +
                       std::to_string(elements_per_thread(call)) + ", convtime::Activation(" +
                       std::to_string(static_cast<int>(call.activation)) + "), " +
                       (call.is_gradient ? "true>" : "false>"),
                   "const " + type + "*, const " + type + "*, " + type + "*, std::size_t");
}

void launch_activation(const ActivationCall& call, cudaStream_t stream) {
  kernel_of(call).launch(static_cast<unsigned>(grid_of(call).blocks), kThreads, 0, stream,
                         call.input, call.grad_output, call.output,
                         static_cast<std::size_t>(call.count));
}

KernelFacts activation_facts(const ActivationCall& call) {
  return facts_of(kernel_of(call), grid_of(call));
}

}  // namespace convtime::tutorial
