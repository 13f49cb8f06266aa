#include "kernels/mlp/mlp.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/cuda.h"
#include "kernels/mlp/programs.h"
#include "kernels/mlp/step.h"
#include "program/program.h"

namespace convtime {
namespace {

using namespace mlp;

constexpr std::array<int, 4> kTileRows = {kMostTileRows, 64, 32, 16};
// Sizes in between let several blocks share a multiprocessor's memory without waste.
constexpr std::array<int, 6> kNarrowTileRows = {128, 96, 64, 48, 32, 16};
constexpr int kMostTilesInCluster = 2;  // per block; with more, using all multiprocessors is faster
constexpr int kValueBytes = 2;
constexpr int kVector = 8;  // values of 16 bytes

/// How the work is divided.
struct Plan {
  int tile_rows;
  int blocks;
  bool one_cluster;
  bool spilled;  // otherwise everything is on chip
  bool gradients_on_chip;
  std::size_t shared_bytes;
  bool overlapped = false;  // launch the second kernel while the first one runs

  friend bool operator==(const Plan&, const Plan&) = default;
};

struct Device {
  std::int64_t multiprocessors;
  int cluster_blocks;        // size of the largest cluster; 0: no clusters
  std::size_t shared_bytes;  // that a block can have
  std::size_t multiprocessor_bytes;
  std::size_t reserved_bytes;  // that each block takes in addition
  int capability;              // 90 for compute capability 9.0
};

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  CONVTIME_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

/// Return the size of the largest cluster of blocks that each fill a multiprocessor.
int find_cluster_blocks(std::size_t shared_bytes) {
  const void* const kernel = load_kernels(fill_source()).front().function();
  CONVTIME_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  CONVTIME_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(shared_bytes)));
  for (const unsigned blocks : {16U, 8U}) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {blocks, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = blocks;
    config.blockDim = kThreads;
    config.dynamicSmemBytes = shared_bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
      (void)cudaGetLastError();  // the device does not support clusters of this size
    } else if (clusters > 0) {
      return static_cast<int>(blocks);
    }
  }
  return 0;
}

/// Return the properties of the current device, queried once.
const Device& device_in_use() {
  static std::array<Device, 64> devices;
  static std::array<std::once_flag, 64> known;
  const int index = current_device();
  Device& device = devices.at(static_cast<std::size_t>(index));
  std::call_once(known.at(static_cast<std::size_t>(index)), [&] {
    device.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, index);
    device.shared_bytes =
        static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
    device.multiprocessor_bytes =
        static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, index));
    device.reserved_bytes =
        static_cast<std::size_t>(attribute(cudaDevAttrReservedSharedMemoryPerBlock, index));
    device.capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor, index) +
                        attribute(cudaDevAttrComputeCapabilityMinor, index);
    const bool has_clusters =
        device.capability >= kClusterCapability && attribute(cudaDevAttrClusterLaunch, index) != 0;
    device.cluster_blocks = has_clusters ? find_cluster_blocks(device.shared_bytes) : 0;
  });
  return device;
}

/// Return the size of Shared.
std::size_t shared_bytes(const MlpNet& net, int tile_rows, bool keeps, bool gradients_on_chip) {
  const std::size_t weights = std::size_t(net.layers) * net.width * net.width;
  const std::size_t tiles = keeps ? 2 * std::size_t(net.layers) : 1;
  return kValueBytes * (weights + tiles * tile_rows * net.width) +
         (gradients_on_chip ? weights * sizeof(float) : 0) + sizeof(Report) +
         kWarps * sizeof(float);
}

/// Return whether that many values can be read at once from there.
bool is_aligned(const void* pointer, int values) {
  return reinterpret_cast<std::uintptr_t>(pointer) %
             static_cast<std::uintptr_t>(values * kValueBytes) ==
         0;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

bool is_narrow(const MlpNet& net) { return most_resident(net.width) > 1; }

std::span<const int> tile_rows_of(const MlpNet& net) {
  return is_narrow(net) ? std::span<const int>(kNarrowTileRows) : std::span<const int>(kTileRows);
}

/// Return how many blocks with that much shared memory a multiprocessor runs at once.
std::int64_t resident_blocks(const MlpNet& net, std::size_t bytes) {
  constexpr std::size_t kUnit = 128;  // shared memory is allocated in multiples of this
  const Device& device = device_in_use();
  const std::size_t taken = (bytes + device.reserved_bytes + kUnit - 1) / kUnit * kUnit;
  const auto fit = static_cast<std::int64_t>(device.multiprocessor_bytes / taken);
  return std::clamp<std::int64_t>(fit, 1, most_resident(net.width));
}

/// Plan one cluster with one tile or a few tiles per block; returns a plan with zero blocks if that
/// is impossible.
Plan cluster_of(const MlpNet& net, std::int64_t batch, int rows, int blocks) {
  const std::size_t most = device_in_use().shared_bytes;
  // More than half, so that each block has a multiprocessor for itself.
  const std::size_t bytes = std::max(shared_bytes(net, rows, true, true), most / 2 + 1);
  const bool fits = blocks > 0 && bytes <= most &&
                    ceil_div(batch, std::int64_t{rows} * blocks) <= kMostTilesInCluster;
  return fits ? Plan{rows, blocks, true, false, true, bytes} : Plan{};
}

/// Plan the largest cluster, with the smallest tiles for which no block needs a second tile.
Plan plan_cluster(const MlpNet& net, std::int64_t batch) {
  const int blocks = device_in_use().cluster_blocks;
  Plan best{};
  for (const int rows : tile_rows_of(net)) {
    const Plan plan = cluster_of(net, batch, rows, blocks);
    if (plan.blocks > 0 && (best.blocks == 0 || std::int64_t{rows} * blocks >= batch)) {
      best = plan;
    }
  }
  return best;
}

/// Plan all multiprocessors, one layer at a time; returns a plan with zero blocks if the GPU or the
/// kernel does not support the net.
Plan plan_spilled(const MlpNet& net, std::int64_t batch) {
  const SpilledSizes& sizes = kSpilledSizes;
  const Device& device = device_in_use();
  if (net.width != sizes.width || device.capability != kSpilledCapability) {
    return {};
  }
  const std::int64_t rounds = ceil_div(batch, device.multiprocessors * sizes.state_rows);
  const std::int64_t tiles =
      ceil_div(ceil_div(batch, device.multiprocessors * rounds), sizes.tile_rows);
  const std::int64_t rows = tiles * sizes.tile_rows;
  const std::int64_t blocks = ceil_div(ceil_div(batch, rows), rounds);
  return {static_cast<int>(rows), static_cast<int>(blocks), false, true, false, sizes.shared_bytes};
}

/// Plan all multiprocessors, with tiles of `rows` rows; returns a plan with zero blocks if they do
/// not fit on chip.
Plan grid_of(const MlpNet& net, std::int64_t batch, int rows, bool keeps) {
  const Device& device = device_in_use();
  const std::int64_t tiles = ceil_div(batch, rows);
  const auto plan_with = [&](bool gradients_on_chip) -> Plan {
    const std::size_t bytes = shared_bytes(net, rows, keeps, gradients_on_chip);
    if (bytes > device.shared_bytes) {
      return {};
    }
    const std::int64_t rounds =
        ceil_div(tiles, device.multiprocessors * resident_blocks(net, bytes));
    return {rows, static_cast<int>(ceil_div(tiles, rounds)), false, false, gradients_on_chip,
            bytes};
  };
  const Plan plan = plan_with(false);
  const bool adds_up = keeps && plan.blocks < tiles;  // a block sums the gradients of several tiles
  const Plan on_chip = adds_up ? plan_with(true) : Plan{};
  return on_chip.blocks > 0 ? on_chip : plan;
}

/// Estimate the time of a grid's tiles, in rows that a multiprocessor could take without waiting.
std::int64_t rows_of(const Plan& plan, std::int64_t batch) {
  constexpr std::int64_t kLatencyRows = 128;  // of one tile, whatever its size
  const std::int64_t rounds = ceil_div(batch, std::int64_t{plan.blocks} * plan.tile_rows);
  const std::int64_t resident = ceil_div(plan.blocks, device_in_use().multiprocessors);
  return rounds * (kLatencyRows + resident * plan.tile_rows);
}

/// Plan all multiprocessors for a narrow net, of which several blocks may share one; returns a plan
/// with zero blocks if the net is too deep.
Plan plan_narrow_grid(const MlpNet& net, std::int64_t batch, bool keeps) {
  Plan best{};
  for (const int rows : kNarrowTileRows) {
    const Plan plan = grid_of(net, batch, rows, keeps);
    if (plan.blocks > 0 && (best.blocks == 0 || rows_of(plan, batch) < rows_of(best, batch))) {
      best = plan;
    }
  }
  return best;
}

/// Plan all multiprocessors, with the largest tiles that keep them busy; returns a plan with zero
/// blocks if the net is too large.
Plan plan_grid(const MlpNet& net, std::int64_t batch, bool keeps) {
  if (is_narrow(net)) {
    return plan_narrow_grid(net, batch, keeps);
  }
  const std::int64_t multiprocessors = device_in_use().multiprocessors;
  const Plan spilled = plan_spilled(net, batch);
  for (const int rows : kTileRows) {
    const bool is_busy = ceil_div(batch, rows) >= multiprocessors || rows == kTileRows.back();
    const Plan plan = is_busy ? grid_of(net, batch, rows, keeps) : Plan{};
    if (plan.blocks == 0) {
      continue;
    }
    const bool wastes = net.width == kSpilledSizes.width && !plan.gradients_on_chip;
    if (keeps && std::int64_t{rows} * multiprocessors < batch && (spilled.blocks > 0 || wastes)) {
      break;  // otherwise gradients would be written to and read from device memory for each tile
    }
    return plan;
  }
  return spilled;
}

Plan plan_training(const MlpNet& net, std::int64_t batch) {
  const Plan cluster = plan_cluster(net, batch);
  return cluster.blocks > 0 ? cluster : plan_grid(net, batch, true);
}

/// Return all plans that may be the fastest, starting with plan_training()'s.
std::vector<Plan> training_plans(const MlpNet& net, std::int64_t batch) {
  std::vector<Plan> plans;
  const auto add = [&](const Plan& plan) {
    if (plan.blocks > 0 && std::find(plans.begin(), plans.end(), plan) == plans.end()) {
      plans.push_back(plan);
    }
  };
  add(plan_training(net, batch));
  const int most = device_in_use().cluster_blocks;
  const auto add_both = [&](Plan plan) {
    add(plan);
    plan.overlapped = most > 0;  // kernels with cluster support also support early launch
    add(plan);
  };
  for (const int rows : tile_rows_of(net)) {
    add(cluster_of(net, batch, rows, most));
    add(cluster_of(net, batch, rows, most / 2));
    add_both(grid_of(net, batch, rows, true));
  }
  add_both(plan_spilled(net, batch));
  return plans;
}

std::string describe(const Plan& plan) {
  return (plan.one_cluster ? "a cluster of " : "") + std::to_string(plan.blocks) + " blocks, " +
         (plan.spilled ? "layer by layer over " : "tiles of ") + std::to_string(plan.tile_rows) +
         " rows" + (plan.overlapped ? ", with the update launched ahead" : "");
}

void check_fits(const Plan& plan) {
  if (plan.blocks == 0) {
    throw std::runtime_error("the net does not fit in the shared memory of a multiprocessor");
  }
}

/// Return how many rows of each layer's inputs are kept.
std::size_t spilled_rows(std::int64_t batch) {
  return static_cast<std::size_t>(ceil_div(batch, kSpilledSizes.tile_rows) *
                                  kSpilledSizes.tile_rows);
}

/// How scratch memory is divided.
struct Scratch {
  Progress* progress;
  void* spilled;
  float4* gradients;
  Report* reports;
  std::size_t bytes;

  Scratch(const MlpNet& net, const Plan& plan, std::int64_t batch, void* memory) {
    static_assert(sizeof(Progress) % sizeof(float4) == 0, "the memory after it must be aligned");
    const std::size_t blocks = plan.one_cluster ? 0 : std::size_t(plan.blocks);
    const std::size_t slot = std::size_t(net.layers) * net.width * net.width / 4;
    const std::size_t spilled_bytes =
        plan.spilled ? kValueBytes * std::size_t(net.layers - 1) * spilled_rows(batch) * net.width
                     : 0;
    progress = static_cast<Progress*>(memory);
    spilled = progress + 1;
    gradients = reinterpret_cast<float4*>(static_cast<char*>(spilled) + spilled_bytes);
    reports = reinterpret_cast<Report*>(gradients + blocks * slot);
    bytes = sizeof(Progress) + spilled_bytes + blocks * (slot * sizeof(float4) + sizeof(Report));
  }
};

Step<void> step_of(const MlpNet& net, const Plan& plan, const void* weights, const void* inputs,
                   std::int64_t batch) {
  Step<void> step{};
  step.layers = net.layers;
  step.inputs = net.inputs;
  step.outputs = net.outputs;
  step.tile_rows = plan.tile_rows;
  step.steps = 1;
  step.slots = plan.blocks;
  step.batch = batch;
  step.batches = 1;
  step.loss_factor = 1;
  step.weights = weights;
  step.data = inputs;
  return step;
}

void set_targets(Step<void>& step, Objective objective, const void* targets) {
  step.targets = targets;
  step.target_bytes =
      has_value_targets(objective) ? step.outputs * kValueBytes : int{sizeof(std::int64_t)};
}

void set_scratch(Step<void>& step, const Scratch& scratch) {
  step.spilled = scratch.spilled;
  step.gradients = scratch.gradients;
  step.reports = scratch.reports;
  step.progress = scratch.progress;
}

/// Return the program of a plan that is no cluster.
StepProgram program_of(const MlpNet& net, const Plan& plan, Objective objective,
                       const Step<void>& step) {
  const StepKernel kernel = plan.spilled ? StepKernel::kSpilled : StepKernel::kOnChip;
  const int lanes = has_value_targets(objective) ? most_target_lanes(kernel) : 1;
  const bool has_lanes = net.outputs % lanes == 0 && is_aligned(step.targets, lanes);
  return {kernel,
          net.type,
          net.width,
          net.activation,
          objective,
          net.inputs % kVector == 0 && is_aligned(step.data, kVector),
          has_lanes ? lanes : 1,
          plan.gradients_on_chip ? Gathering::kChip : Gathering::kDevice};
}

/// Return a step's kernel, which may use all of a multiprocessor's shared memory.
Kernel kernel_of(const StepProgram& program) {
  static auto* const kernels = new KernelTable<StepProgram>;
  static auto* const ready = new std::set<const void*>;
  static std::mutex mutex;
  const Kernel kernel =
      kernels->get(program, [](const StepProgram& missing) { return source_of(missing); });
  const std::lock_guard lock(mutex);
  if (!ready->contains(kernel.function())) {
    CONVTIME_CUDA_CHECK(cudaFuncSetAttribute(kernel.function(),
                                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(device_in_use().shared_bytes)));
    if (program.gathering == Gathering::kCluster) {
      CONVTIME_CUDA_CHECK(cudaFuncSetAttribute(kernel.function(),
                                               cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    }
    ready->insert(kernel.function());
  }
  return kernel;
}

Kernel kernel_of(const SlotsProgram& program) {
  static auto* const kernels = new KernelTable<SlotsProgram>;
  return kernels->get(program, [](const SlotsProgram& missing) { return source_of(missing); });
}

/// Launch a kernel with blocks of kThreads threads, and with an attribute if `has_attribute`.
void launch(const Kernel& kernel, const Step<void>& step, unsigned blocks, std::size_t shared_bytes,
            cudaLaunchAttribute attribute, bool has_attribute, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = has_attribute ? 1 : 0;
  const void* arguments[] = {&step};
  CONVTIME_CUDA_CHECK(
      cudaLaunchKernelExC(&config, kernel.function(), const_cast<void**>(arguments)));
}

void launch_step(const Kernel& kernel, const Step<void>& step, const Plan& plan,
                 cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(plan.blocks);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {blocks, 1, 1};
  launch(kernel, step, blocks, plan.shared_bytes, cluster, plan.one_cluster, stream);
}

/// Launch one of the kernels that sum the slots.
void launch_slots(const Kernel& kernel, const Step<void>& step, const Plan& plan, int width,
                  cudaStream_t stream) {
  const int places = step.layers * width * width / 4;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  launch(kernel, step, static_cast<unsigned>(places / places_of_block(width)),
         kThreads * sizeof(float4), early, plan.overlapped, stream);
}

}  // namespace

bool mlp_fits(const MlpNet& net, std::int64_t batch) {
  return plan_grid(net, batch, true).blocks > 0;
}

std::size_t mlp_scratch_bytes(const MlpNet& net, std::int64_t batch) {
  std::size_t bytes = Scratch(net, plan_grid(net, batch, true), batch, nullptr).bytes;
  for (const Plan& plan : training_plans(net, batch)) {
    bytes = std::max(bytes, Scratch(net, plan, batch, nullptr).bytes);
  }
  return bytes;
}

std::vector<std::string> mlp_plans(const MlpNet& net, std::int64_t batch) {
  std::vector<std::string> described;
  for (const Plan& plan : training_plans(net, batch)) {
    described.push_back(describe(plan));
  }
  return described;
}

void launch_mlp_steps(const MlpNet& net, const MlpData& data, const MlpRule& rule,
                      const MlpScaling& scaling, const MlpState& state, void* scratch, int steps,
                      int which, cudaStream_t stream) {
  const auto plans = training_plans(net, data.batch);
  if (which < 0 || static_cast<std::size_t>(which) >= plans.size()) {
    throw std::runtime_error("plan must be an index into the " + std::to_string(plans.size()) +
                             " plans of mlp_path, got " + std::to_string(which));
  }
  const Plan plan = plans[static_cast<std::size_t>(which)];
  const Objective objective = objective_of(data.loss);
  const bool has_master = state.master != nullptr;
  Step<void> step = step_of(net, plan, state.weights, data.inputs, data.batch);
  step.batches = data.batches;
  step.loss_factor = 1 / static_cast<float>(data.batch);
  if (objective == Objective::kMse) {
    step.loss_factor = 1 / (static_cast<float>(data.batch) * static_cast<float>(net.outputs));
  }
  set_targets(step, objective, data.targets);
  set_scratch(step, Scratch(net, plan, data.batch, scratch));
  step.learning = {state, rule, scaling};
  StepProgram program = program_of(net, plan, objective, step);
  if (plan.one_cluster) {
    step.steps = steps;
    program.gathering = Gathering::kCluster;
    program.optimizer = rule.optimizer;
    program.has_master = has_master;
    launch_step(kernel_of(program), step, plan, stream);
    return;
  }
  const Kernel kernel = kernel_of(program);
  const Kernel learn =
      kernel_of(SlotsProgram{net.type, net.width, true, rule.optimizer, has_master});
  for (int i = 0; i < steps; ++i) {
    launch_step(kernel, step, plan, stream);
    launch_slots(learn, step, plan, net.width, stream);
  }
}

void launch_mlp_forward(const MlpNet& net, const void* weights, const void* inputs, void* outputs,
                        std::int64_t rows, cudaStream_t stream) {
  const Plan plan = plan_grid(net, rows, false);
  check_fits(plan);
  Step<void> step = step_of(net, plan, weights, inputs, rows);
  step.results = outputs;
  launch_step(kernel_of(program_of(net, plan, Objective::kNone, step)), step, plan, stream);
}

void launch_mlp_backward(const MlpNet& net, const void* weights, const void* inputs,
                         const void* grad_outputs, void* grad_inputs, void* grad_weights,
                         std::int64_t rows, void* scratch, cudaStream_t stream) {
  const Plan plan = plan_grid(net, rows, true);
  check_fits(plan);
  Step<void> step = step_of(net, plan, weights, inputs, rows);
  set_targets(step, Objective::kGradient, grad_outputs);
  set_scratch(step, Scratch(net, plan, rows, scratch));
  step.results = grad_inputs;
  step.grad_weights = grad_weights;
  launch_step(kernel_of(program_of(net, plan, Objective::kGradient, step)), step, plan, stream);
  launch_slots(kernel_of(SlotsProgram{net.type, net.width, false}), step, plan, net.width, stream);
}

}  // namespace convtime
