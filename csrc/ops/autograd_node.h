#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace convtime::ops {

/// Older torch versions own nodes by std::shared_ptr, newer ones by c10::intrusive_ptr.
using NodePointer = decltype(torch::autograd::Edge::function);

template <typename T, typename... Arguments>
auto make_node(Arguments&&... arguments) {
  using torch::autograd::Node;
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<Node>>) {
    // Not plain delete, whose recursion is as deep as the graph.
    return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                              [](T* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
  }
}

/// Return an owning pointer to a node that make_node() created, of the pointer type that torch
/// uses.
template <typename T, typename Pointer = NodePointer>
Pointer pointer_to(T& node) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return node.shared_from_this();
  } else {
    return Pointer::reclaim_copy(&node);
  }
}

/// Set the tangent at level 0, the only level in torch.
inline void set_tangent(const at::Tensor& result, const at::Tensor& tangent) {
  if (result.defined() && tangent.defined()) {
    result._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  }
}

template <typename... Tensors>
bool has_tangents(const Tensors&... tensors) {
  return (torch::autograd::isFwGradDefined(tensors) || ...);
}

/// The saved values that a formula needs in addition to the incoming gradients.
template <typename Settings>
struct Saved {
  torch::autograd::variable_list tensors;  ///< inputs, then outputs
  Settings settings;
  std::vector<bool> wanted;  ///< which gradients are needed
};

/// A node's saved tensors and settings, where FormulaNode finds them.
template <typename Settings>
class SavedValues : public torch::autograd::Node {
 public:
  explicit SavedValues(Settings settings) : settings_(std::move(settings)) {}

  template <typename... Tensors>
  void save_inputs(const Tensors&... tensors) {
    inputs_.reserve(sizeof...(tensors));
    (inputs_.emplace_back(tensors, /*is_output=*/false), ...);
  }

  /// Save an output of the node itself; call this after its history is set.
  void save_output(const at::Tensor& tensor) { outputs_.emplace_back(tensor, /*is_output=*/true); }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for_each_tensor(*this, [](torch::autograd::SavedVariable& tensor, bool /*is_output*/) {
      tensor.reset_data();
    });
  }

 protected:
  /// Call the function with each saved tensor of `self`, and whether it is an output of the node.
  template <typename Self, typename Function>
  static void for_each_tensor(Self& self, const Function& function) {
    for (auto& tensor : self.inputs_) {
      function(tensor, /*is_output=*/false);
    }
    for (auto& tensor : self.outputs_) {
      function(tensor, /*is_output=*/true);
    }
  }

  template <typename Self>
  static auto fields(Self& self) {
    return Settings::fields(self.settings_);
  }

 private:
  std::vector<torch::autograd::SavedVariable> inputs_;
  std::vector<torch::autograd::SavedVariable> outputs_;
  Settings settings_;
};

/// A node of the autograd graph that is computed by a formula. Not a torch::autograd::Function:
/// torch.func refuses it, and its lookup of saved values by name costs more than a whole node of
/// PyTorch.
///
/// A formula has a kName, a `compute` that returns gradients from the incoming gradients, of which
/// one or more are defined, and Saved<Settings>, and Settings, whose fields Settings::fields
/// returns as references, like std::tie. `Base` is a Node with the members of SavedValues.
template <typename Formula, typename Base = SavedValues<typename Formula::Settings>>
class FormulaNode final : public Base {
 public:
  using Settings = typename Formula::Settings;
  using variable_list = torch::autograd::variable_list;

  using Base::Base;

  std::string name() const override { return Formula::kName; }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard lock(this->mutex_);
    return compute(grads, unpack());
  }

  // Compiled autograd: trace the formula in the same way as torch's own nodes.

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    Base::for_each_tensor(
        *this, [&](const auto& tensor, bool is_output) { args.collect(tensor, is_output); });
    std::apply([&](const auto&... fields) { (args.collect(fields), ...); }, Base::fields(*this));
  }

  variable_list apply_with_saved(const variable_list& grads,
                                 torch::dynamo::autograd::SwapSavedVariables& swap) override {
    using torch::dynamo::autograd::IValuePacker;
    Base::for_each_tensor(*this, [&](auto& tensor, bool /*is_output*/) { swap.before(tensor); });
    std::apply([&](auto&... fields) { (swap.before(fields), ...); }, Base::fields(*this));
    Saved<Settings> saved = unpack();
    torch::dynamo::autograd::PackedArgs packed;
    packed.pack(saved.tensors);
    std::apply([&](const auto&... fields) { (packed.pack(fields), ...); },
               Settings::fields(saved.settings));
    packed.pack(saved.wanted);
    const auto& interface = torch::dynamo::autograd::getPyCompilerInterface();
    // Once per process: binding the same name again is an error. The prefix is for nodes that have
    // the name of one of torch's.
    static const std::string function = interface->bind_function(
        swap.get_py_compiler(), "convtime_" + name(), compute_packed, packed_types(saved.settings));
    variable_list results = interface->call_function(
        swap.get_py_compiler(), "apply_functional", function, grads, std::move(packed).vec(),
        IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
            torch::dynamo::autograd::get_input_metadata(this->next_edges())));
    Base::for_each_tensor(*this, [&](auto& tensor, bool /*is_output*/) { swap.after(tensor); });
    std::apply([&](auto&... fields) { (swap.after(fields), ...); }, Base::fields(*this));
    return results;
  }

 private:
  Saved<Settings> unpack() {
    Saved<Settings> saved;
    Settings::fields(saved.settings) = Base::fields(*this);
    Base::for_each_tensor(*this, [&](const torch::autograd::SavedVariable& tensor, bool is_output) {
      saved.tensors.push_back(is_output ? tensor.unpack(pointer_to(*this)) : tensor.unpack());
    });
    for (std::size_t i = 0; i < this->num_outputs(); ++i) {
      saved.wanted.push_back(this->task_should_compute_output(i));
    }
    return saved;
  }

  static std::vector<at::TypePtr> packed_types(const Settings& settings) {
    using torch::dynamo::autograd::IValuePacker;
    std::vector<at::TypePtr> types = {IValuePacker<variable_list>::packed_type()};
    std::apply(
        [&](const auto&... fields) {
          (types.push_back(IValuePacker<std::decay_t<decltype(fields)>>::packed_type()), ...);
        },
        Settings::fields(settings));
    types.push_back(IValuePacker<std::vector<bool>>::packed_type());
    return types;
  }

  static variable_list compute_packed(const variable_list& grads,
                                      const std::vector<at::IValue>& args) {
    torch::dynamo::autograd::PackedArgs packed(args);
    Saved<Settings> saved;
    saved.tensors = packed.unpack<variable_list>();
    std::apply(
        [&](auto&... fields) { ((fields = packed.unpack<std::decay_t<decltype(fields)>>()), ...); },
        Settings::fields(saved.settings));
    saved.wanted = packed.unpack<std::vector<bool>>();
    return compute(grads, saved);
  }

  static variable_list compute(const variable_list& grads, const Saved<Settings>& saved) {
    const bool has_gradient =
        std::ranges::any_of(grads, [](const at::Tensor& grad) { return grad.defined(); });
    return has_gradient ? Formula::compute(grads, saved) : variable_list(saved.wanted.size());
  }
};

}  // namespace convtime::ops
