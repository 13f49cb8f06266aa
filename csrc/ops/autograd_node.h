#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace convtime::ops {

/// torch owns nodes by a std::shared_ptr up to some version, later by a c10::intrusive_ptr.
template <typename T, typename... Arguments>
auto make_node(Arguments&&... arguments) {
  using torch::autograd::Node;
  if constexpr (std::is_same_v<decltype(torch::autograd::Edge::function), std::shared_ptr<Node>>) {
    // Not plain delete, which recurses as deep as the graph.
    return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                              [](T* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
  }
}

/// Of the only level that torch has.
inline void set_tangent(const at::Tensor& result, const at::Tensor& tangent) {
  if (result.defined() && tangent.defined()) {
    result._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  }
}

}  // namespace convtime::ops
