#pragma once

#include <optional>

#include "core/export.h"
#include "kernels/element_type.h"
#include "kernels/relu_max_pool2d/relu_max_pool2d.h"
#include "kernels/relu_max_pool2d/windows.h"
#include "program/nvrtc.h"

// Which kernel pools a problem. Nothing here needs a GPU.
namespace convtime::pool {

enum class WinnerType : int { kNone, kByte, kWord };

/// A kernel and its constants. The problem has sizes, except in a kernel for images of any size.
struct Choice {
  Family family;
  ElementType type;  ///< of no meaning to kernels that read winners only
  WinnerType winner;
  Problem problem;
};

/// Return the kernel of a pass whose tensors all begin at a multiple of `aligned` elements of
/// theirs, which is a power of two. There is none where 32 bits do not hold a plane's indices.
CONVTIME_API std::optional<Choice> choose_forward(ElementType type, const PoolGeometry& geometry,
                                                  bool has_winners, int aligned);
CONVTIME_API std::optional<Choice> choose_backward(ElementType type, const PoolGeometry& geometry,
                                                   int aligned);
CONVTIME_API std::optional<Choice> choose_indices(const PoolGeometry& geometry);

/// Return the kernel for images of any size.
CONVTIME_API Choice without_sizes(const Choice& choice);

CONVTIME_API ProgramSource source_of(const Choice& choice);

/// Return the number of threads that a plane has, or an image if channels are last.
std::int64_t threads_of_plane(const Choice& choice);

}  // namespace convtime::pool
