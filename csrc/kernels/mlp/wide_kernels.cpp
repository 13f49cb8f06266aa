#include "kernels/mlp/wide_kernels.h"

#include <algorithm>
#include <compare>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/elements.h"
#include "program/program.h"

namespace convtime::mlp {
namespace {

using elements::is_aligned;
using elements::lanes_of;
using elements::name_of;

constexpr std::int64_t kMostBlocks = 2048;

/// A kernel with its template arguments.
struct WideProgram {
  std::string_view kernel;
  ElementType type;
  std::optional<ElementType> stored = {};
  std::optional<int> lanes = {};
  std::optional<MlpActivation> activation = {};
  std::optional<MlpOptimizer> optimizer = {};

  friend auto operator<=>(const WideProgram&, const WideProgram&) = default;
};

ProgramSource source_of(const WideProgram& program) {
  std::string arguments = name_of(program.type);
  if (program.stored) {
    arguments += ", " + name_of(*program.stored);
  }
  if (program.lanes) {
    arguments += ", " + std::to_string(*program.lanes);
  }
  if (program.activation) {
    arguments += ", convtime::MlpActivation(" + std::to_string(int(*program.activation)) + ")";
  }
  if (program.optimizer) {
    arguments += ", convtime::MlpOptimizer(" + std::to_string(int(*program.optimizer)) + ")";
  }
  return {"kernels/mlp/wide_kernels.cuh",
          {"convtime::mlp::" + std::string(program.kernel) + "<" + arguments + ">"}};
}

Kernel kernel_of(const WideProgram& program) {
  static auto* const kernels = new KernelTable<WideProgram>;
  return kernels->get(program, source_of);
}

unsigned blocks_for(std::int64_t count, std::int64_t of_block, std::int64_t most) {
  return static_cast<unsigned>(std::min((count + of_block - 1) / of_block, most));
}

}  // namespace

std::vector<ProgramSource> wide_programs(const MlpNet& net, ElementType stored, MlpLoss loss,
                                         MlpOptimizer optimizer) {
  const ElementType type = net.type;
  std::vector<WideProgram> programs{
      {.kernel = "activation_kernel", .type = type, .activation = net.activation},
      {.kernel = "activation_backward_kernel", .type = type, .activation = net.activation},
      {.kernel = "bias_kernel", .type = type, .stored = stored},
      {.kernel = "find_overflow_kernel", .type = stored},
      {.kernel = "learn_flat_kernel", .type = type, .stored = stored, .optimizer = optimizer},
  };
  for (const int lanes : {1, lanes_of(type)}) {
    programs.push_back({.kernel = "copy_rows_kernel", .type = type, .lanes = lanes});
    if (loss == MlpLoss::kMse) {
      programs.push_back({.kernel = "mse_kernel", .type = type, .lanes = lanes});
    }
  }
  if (loss == MlpLoss::kCrossEntropy) {
    programs.push_back({.kernel = "cross_entropy_kernel", .type = type});
  }
  std::vector<ProgramSource> sources;
  std::transform(programs.begin(), programs.end(), std::back_inserter(sources), source_of);
  return sources;
}

void launch_copy_rows(ElementType type, const void* from, std::int64_t from_ld, void* to,
                      std::int64_t to_ld, int columns, int padded, std::int64_t rows,
                      const BatchChoice& choice, cudaStream_t stream) {
  const int lanes = lanes_of(type);
  const auto is_whole = [&](std::int64_t n) { return n % lanes == 0; };
  const bool in_vectors = is_aligned(from) && is_aligned(to) && is_whole(from_ld) &&
                          is_whole(to_ld) && is_whole(columns) && is_whole(padded);
  const CopyArguments<void> arguments{from, from_ld, to, to_ld, columns, padded, rows, choice};
  kernel_of({.kernel = "copy_rows_kernel", .type = type, .lanes = in_vectors ? lanes : 1})
      .launch(blocks_for(rows, kWarps, kMostBlocks), kThreads, 0, stream, arguments);
}

void launch_activation(ElementType type, MlpActivation activation, void* values, std::int64_t count,
                       cudaStream_t stream) {
  const ActivationArguments<void> arguments{values, nullptr, count / lanes_of(type)};
  kernel_of({.kernel = "activation_kernel", .type = type, .activation = activation})
      .launch(blocks_for(arguments.packs, kThreads, kMostBlocks), kThreads, 0, stream, arguments);
}

void launch_activation_backward(ElementType type, MlpActivation activation, void* gradients,
                                const void* activated, std::int64_t count, cudaStream_t stream) {
  const ActivationArguments<void> arguments{gradients, activated, count / lanes_of(type)};
  kernel_of({.kernel = "activation_backward_kernel", .type = type, .activation = activation})
      .launch(blocks_for(arguments.packs, kThreads, kMostBlocks), kThreads, 0, stream, arguments);
}

void launch_loss(const MlpNet& net, const MlpData& data, const MlpScaling& scaling,
                 const MlpState& state, void* outputs, std::int64_t ld, int padded, WideLoss* loss,
                 cudaStream_t stream) {
  const bool is_mse = data.loss == MlpLoss::kMse;
  const float numbers =
      static_cast<float>(data.batch) * static_cast<float>(is_mse ? net.outputs : 1);
  const LossArguments<void> arguments{outputs,
                                      ld,
                                      net.outputs,
                                      padded,
                                      data.targets,
                                      data.batch,
                                      {state.counters, data.batches},
                                      scaling.enabled ? state.rates + 1 : nullptr,
                                      1 / numbers,
                                      state.losses,
                                      state.losses_kept,
                                      loss};
  const int lanes = lanes_of(net.type);
  const bool in_vectors = is_aligned(data.targets) && net.outputs % lanes == 0;
  const WideProgram mse{.kernel = "mse_kernel", .type = net.type, .lanes = in_vectors ? lanes : 1};
  const WideProgram cross_entropy{.kernel = "cross_entropy_kernel", .type = net.type};
  kernel_of(is_mse ? mse : cross_entropy)
      .launch(blocks_for(data.batch, kWarps, WideLoss::kMostBlocks), kThreads, 0, stream,
              arguments);
}

void launch_bias_gradients(const MlpNet& net, ElementType stored, const void* deltas,
                           std::int64_t rows, int last_columns, void* gradients,
                           cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>((net.width + kBiasColumns - 1) / kBiasColumns),
                    static_cast<unsigned>(net.layers));
  const BiasArguments<void, void> arguments{deltas,     rows,         net.width,
                                            net.layers, last_columns, gradients};
  kernel_of({.kernel = "bias_kernel", .type = net.type, .stored = stored})
      .launch(blocks, kBiasThreads, 0, stream, arguments);
}

void launch_learn(const MlpNet& net, const MlpRule& rule, const MlpScaling& scaling,
                  const MlpState& state, const void* gradients, WideLoss* loss,
                  cudaStream_t stream) {
  const ElementType stored = state.master != nullptr ? ElementType::kFloat : net.type;
  const LearnArguments<void> arguments{
      {state, rule, scaling}, gradients, weight_count(net) / lanes_of(stored), loss};
  const unsigned blocks = blocks_for(arguments.packs, kThreads, kMostBlocks);
  if (scaling.enabled) {
    kernel_of({.kernel = "find_overflow_kernel", .type = stored})
        .launch(blocks, kThreads, 0, stream, arguments);
  }
  kernel_of({.kernel = "learn_flat_kernel",
             .type = net.type,
             .stored = stored,
             .optimizer = rule.optimizer})
      .launch(blocks, kThreads, 0, stream, arguments);
}

}  // namespace convtime::mlp
