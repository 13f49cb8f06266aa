#include "kernels/relu_max_pool2d/relu_max_pool2d.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "kernels/elements.h"
#include "kernels/relu_max_pool2d/choice.h"
#include "kernels/relu_max_pool2d/tiling.h"
#include "kernels/relu_max_pool2d/windows.h"
#include "program/program.h"

namespace convtime {
namespace {

using namespace elements;
using namespace pool;

constexpr std::size_t kNumbers = sizeof(Problem) / sizeof(int);
using Key = std::array<int, kNumbers + 3>;

Key key_of(const Choice& choice) {
  Key key{static_cast<int>(choice.family), static_cast<int>(choice.type),
          static_cast<int>(choice.winner)};
  const auto numbers = std::bit_cast<std::array<int, kNumbers>>(choice.problem);
  std::copy(numbers.begin(), numbers.end(), key.begin() + 3);
  return key;
}

/// Return the program of a choice that is new.
ProgramSource admitted_source(const Choice& choice) {
  if (!choice.problem.has_sizes()) {
    return source_of(choice);
  }
  static auto* const sizes = new KnownSizes<Key, std::array<int, 4>>;
  const Axis& h = choice.problem.h;
  const Axis& w = choice.problem.w;
  const Choice others = without_sizes(choice);
  const bool admitted = sizes->admit(key_of(others), {h.input, h.output, w.input, w.output});
  return source_of(admitted ? choice : others);
}

Kernel kernel_of(const Choice& choice) {
  static auto* const kernels = new KernelTable<Key>;
  return kernels->get(key_of(choice), [&](const Key&) { return admitted_source(choice); });
}

/// Return the largest power of two up to 16 so that all tensors begin at a multiple of so many of
/// their elements. Pointers may be null.
int alignment_of(ElementType type, const void* from, const void* to, const void* winners,
                 const PoolGeometry& g) {
  const std::int64_t window = std::int64_t{g.h.kernel} * g.w.kernel;
  const auto address = [](const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
  };
  const std::uintptr_t elements = (address(from) | address(to)) / bytes_of(type);
  const std::uintptr_t others = address(winners) / (winners_are_bytes(window) ? 1 : 4);
  return 1 << std::countr_zero(elements | others | 16);
}

/// Launch a kernel that writes `to`, or the winners too. Each of the forward pass's threads has
/// outputs, each of the backward pass's has inputs.
void launch(const Choice& choice, bool is_backward, const PoolGeometry& g, const void* from,
            std::int64_t from_bytes, void* to, std::int64_t to_bytes, void* winners,
            cudaStream_t stream) {
  const Kernel kernel = kernel_of(choice);
  const std::int64_t channels = g.channels_last ? g.channels : 1;
  const std::int64_t planes = g.channels_last ? g.batch : g.batch * g.channels;
  const std::int64_t inputs = g.h.input * g.w.input * channels;  // of a plane
  const std::int64_t outputs = g.h.output * g.w.output * channels;
  // As many planes at a time as 32-bit indices allow
  const Problem& p = choice.problem;
  const Tasks tasks = tasks_of(choice.family, p);
  const std::int64_t threads = threads_of_plane(choice);
  const std::int64_t most = std::max<std::int64_t>(1, (kMax32 - kThreads) / threads);
  const std::int64_t winner_bytes = choice.winner == WinnerType::kWord ? 4 : 1;
  for (std::int64_t first = 0; first < planes; first += most) {
    const std::int64_t count = std::min(most, planes - first) * threads;
    const auto at = [&](const void* pointer, std::int64_t plane_bytes) {
      const auto address = reinterpret_cast<std::uintptr_t>(pointer);
      return reinterpret_cast<void*>(pointer == nullptr ? 0 : address + first * plane_bytes);
    };
    const Call call{at(from, (is_backward ? outputs : inputs) * from_bytes),
                    at(to, (is_backward ? inputs : outputs) * to_bytes),
                    at(winners, outputs * winner_bytes),
                    static_cast<int>(count),
                    Division(tasks.rows),
                    Division(tasks.columns),
                    {p.h.input, p.h.output},
                    {p.w.input, p.w.output}};
    kernel.launch(static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0, stream, call);
  }
}

}  // namespace

bool launch_relu_max_pool2d(ElementType type, const void* input, void* output, void* winners,
                            const PoolGeometry& g, cudaStream_t stream) {
  const auto choice =
      choose_forward(type, g, winners != nullptr, alignment_of(type, input, output, winners, g));
  if (choice) {
    launch(*choice, false, g, input, bytes_of(type), output, bytes_of(type), winners, stream);
  }
  return choice.has_value();
}

bool launch_relu_max_pool2d_backward(ElementType type, const void* grad_output, const void* winners,
                                     void* grad_input, const PoolGeometry& g, cudaStream_t stream) {
  const auto choice =
      choose_backward(type, g, alignment_of(type, grad_output, grad_input, winners, g));
  if (choice && choice->family == Family::kBackwardTiles) {
    TiledLaunch tiled = tile_backward(g, bytes_of(type));
    tiled.call.grad_output = grad_output;
    tiled.call.winners = winners;
    tiled.call.grad_input = grad_input;
    kernel_of(*choice).launch(tiled.blocks, tiled.threads, tiled.shared_bytes, stream, tiled.call);
  } else if (choice) {
    launch(*choice, true, g, grad_output, bytes_of(type), grad_input, bytes_of(type),
           const_cast<void*>(winners), stream);
  }
  return choice.has_value();
}

bool launch_relu_max_pool2d_indices(const void* winners, std::int64_t* indices,
                                    const PoolGeometry& g, cudaStream_t stream) {
  const auto choice = choose_indices(g);
  if (choice) {
    launch(*choice, false, g, nullptr, 0, indices, sizeof(*indices), const_cast<void*>(winners),
           stream);
  }
  return choice.has_value();
}

}  // namespace convtime
