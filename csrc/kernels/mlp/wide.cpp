#include "kernels/mlp/wide.h"

#include <set>

#include "kernels/mlp/matmul.h"
#include "kernels/mlp/wide_kernels.h"

// A step of a wide net, one layer after the other. Layer inputs and outputs are in slots of rows ×
// width. The slots of all layers' inputs are adjacent, and so are the slots of their outputs'
// gradients. One cuBLASLt product then computes the weight gradients of all square layers.

namespace convtime {
namespace {

using namespace mlp;

constexpr std::int64_t kMemoryAlignment = 256;
constexpr std::int64_t kVector = 8;  // elements; products of whole vectors are faster

std::int64_t round_up(std::int64_t count, std::int64_t to) { return (count + to - 1) / to * to; }

std::int64_t bytes_of(ElementType type) { return type == ElementType::kFloat ? 4 : 2; }

void* at(const void* memory, std::int64_t bytes) {
  return const_cast<char*>(static_cast<const char*>(memory)) + bytes;
}

/// How scratch memory is divided.
struct Scratch {
  void* inputs;  // one slot per layer; for the forward pass alone, two alternating slots
  void* deltas;  // one slot per layer for the gradient of its output before the activation; or the
                 // output
  void* gradients;  // of the weights
  WideLoss* loss;
  void* workspace;
  std::size_t bytes;

  Scratch(const MlpNet& net, std::int64_t rows, MlpWork work, void* memory) {
    std::int64_t taken = 0;
    const auto take = [&](std::int64_t bytes_wanted) {
      void* const part = at(memory, taken);
      taken += round_up(bytes_wanted, kMemoryAlignment);
      return part;
    };
    const bool keeps = work != MlpWork::kForward;
    const bool trains = work == MlpWork::kTraining;
    const std::int64_t slot = bytes_of(net.type) * rows * net.width;
    inputs = take(slot * (keeps ? net.layers : 2));
    deltas = take(slot * (keeps ? net.layers : 1));
    gradients = take(trains ? static_cast<std::int64_t>(sizeof(float)) * weight_count(net) : 0);
    loss = static_cast<WideLoss*>(take(trains ? sizeof(WideLoss) : 0));
    workspace = take(BlasLt::kWorkspaceBytes);
    bytes = static_cast<std::size_t>(taken);
  }
};

/// Describes the products of a net to cuBLASLt.
class Products {
 public:
  Products(const MlpNet& net, std::int64_t rows, ElementType stored)
      : net_(net), rows_(rows), stored_(stored) {}

  /// Return the padded number of columns of a layer's input or output in products.
  std::int64_t columns_in(int layer) const {
    return layer == 0 ? round_up(net_.inputs, kVector) : net_.width;
  }
  std::int64_t columns_out(int layer) const {
    return layer == net_.layers - 1 ? round_up(net_.outputs, kVector) : net_.width;
  }

  /// From a layer's input to its output before the activation, or after it if the activation is
  /// fused.
  Matmul forward(int layer, bool fused) const {
    Matmul matmul{net_.type,  net_.type,          net_.tf32, true,
                  false,      columns_out(layer), rows_,     columns_in(layer),
                  net_.width, net_.width,         net_.width};
    const bool activates = fused && layer < net_.layers - 1;
    matmul.epilogue = activates ? (net_.bias ? Epilogue::kReluBias : Epilogue::kRelu)
                                : (net_.bias ? Epilogue::kBias : Epilogue::kNone);
    return matmul;
  }

  /// From the gradient of a layer's output to the gradient of its input, after the activation of
  /// the previous layer. cuBLASLt can also apply a ReLU's derivative, but its kernels for that take
  /// longer than plain products followed by our own kernel: on an H200, 27 µs versus 14 + 6 µs at
  /// 1024 × 1024 and 4096 rows.
  Matmul backward(int layer) const {
    return {net_.type, net_.type,          net_.tf32,  false,      false,     columns_in(layer),
            rows_,     columns_out(layer), net_.width, net_.width, net_.width};
  }

  /// Weight gradients of `count` identical layers, starting with `layer`.
  Matmul gradients(int layer, int count) const {
    Matmul matmul{net_.type,          stored_, net_.tf32,  false,      true,      columns_in(layer),
                  columns_out(layer), rows_,   net_.width, net_.width, net_.width};
    matmul.count = count;
    if (count > 1) {
      matmul.stride_a = slot();
      matmul.stride_b = slot();
      matmul.stride_d = matrix();
    }
    return matmul;
  }

  /// Number of elements of a slot, and of a layer's weights and biases.
  std::int64_t slot() const { return rows_ * net_.width; }
  std::int64_t matrix() const {
    return std::int64_t{net_.width + (net_.bias ? 1 : 0)} * net_.width;
  }

  /// Return whether cuBLASLt can fuse the activation of all layers into its products.
  bool fuses(cublasLtContext* cublas) const {
    if (net_.activation != MlpActivation::kRelu) {
      return false;
    }
    for (int layer = 0; layer < net_.layers - 1; ++layer) {
      if (!BlasLt::can_multiply(cublas, forward(layer, true))) {
        return false;
      }
    }
    return true;
  }

 private:
  const MlpNet& net_;
  std::int64_t rows_;
  ElementType stored_;
};

/// Takes rows forward and back through a net.
class Pass {
 public:
  Pass(const MlpWide& wide, const MlpNet& net, const void* weights, std::int64_t rows, MlpWork work,
       ElementType stored, void* scratch, Choosing choosing, std::vector<Product>* seen = nullptr)
      : net_(net),
        weights_(weights),
        rows_(rows),
        keeps_(work != MlpWork::kForward),
        stored_(stored),
        stream_(wide.stream),
        scratch_(net, rows, work, scratch),
        products_(net, rows, stored),
        cublas_(wide.cublas, scratch_.workspace, choosing, wide.stream, seen),
        fused_(products_.fuses(wide.cublas)) {}

  const Scratch& scratch() const { return scratch_; }
  void* outputs() const { return deltas(net_.layers - 1); }
  int padded_outputs() const { return static_cast<int>(products_.columns_out(net_.layers - 1)); }

  /// Copy rows of an array, dense, to the first layer's slot.
  void take_inputs(const void* from, const BatchChoice& choice) const {
    launch_copy_rows(net_.type, from, net_.inputs, inputs(0), net_.width, net_.inputs,
                     static_cast<int>(products_.columns_in(0)), rows_, choice, stream_);
  }

  /// From the first layer's inputs to outputs().
  void forward() const {
    for (int layer = 0; layer < net_.layers; ++layer) {
      const bool is_last = layer == net_.layers - 1;
      void* const output = is_last ? outputs() : inputs(layer + 1);
      cublas_.multiply(products_.forward(layer, fused_),
                       {weights(layer), inputs(layer), output, biases(layer)});
      if (!is_last && !fused_) {
        launch_activation(net_.type, net_.activation, output, products_.slot(), stream_);
      }
    }
  }

  /// From the outputs' gradient, which has replaced the outputs, to the gradient of each layer's
  /// output.
  void backward() const {
    for (int layer = net_.layers - 1; layer > 0; --layer) {
      void* const result = deltas(layer - 1);
      cublas_.multiply(products_.backward(layer), {weights(layer), deltas(layer), result});
      launch_activation_backward(net_.type, net_.activation, result, inputs(layer),
                                 products_.slot(), stream_);
    }
  }

  /// From the gradients of all layers' outputs to the gradients of weights and biases.
  void differentiate_weights(void* gradients) const {
    for (int layer = 0; layer < net_.layers;) {
      int count = 1;
      while (is_square(layer) && layer + count < net_.layers && is_square(layer + count)) {
        ++count;
      }
      cublas_.multiply(products_.gradients(layer, count),
                       {inputs(layer), deltas(layer),
                        at(gradients, bytes_of(stored_) * layer * products_.matrix())});
      layer += count;
    }
    if (net_.bias) {
      launch_bias_gradients(net_, stored_, scratch_.deltas, rows_, padded_outputs(), gradients,
                            stream_);
    }
  }

  /// From the gradient of the first layer's output to the gradient of its inputs, which overwrites
  /// the inputs.
  void differentiate_inputs(void* to) const {
    cublas_.multiply(products_.backward(0), {weights(0), deltas(0), inputs(0)});
    launch_copy_rows(net_.type, inputs(0), net_.width, to, net_.inputs, net_.inputs, net_.inputs,
                     rows_, {}, stream_);
  }

 private:
  bool is_square(int layer) const {
    return products_.columns_in(layer) == net_.width && products_.columns_out(layer) == net_.width;
  }

  void* slot(void* slots, int layer) const {
    return at(slots, bytes_of(net_.type) * layer * products_.slot());
  }
  void* inputs(int layer) const { return slot(scratch_.inputs, keeps_ ? layer : layer % 2); }
  void* deltas(int layer) const { return slot(scratch_.deltas, keeps_ ? layer : 0); }
  const void* weights(int layer) const {
    return at(weights_, bytes_of(net_.type) * layer * products_.matrix());
  }
  /// The biases follow the layer's matrix.
  const void* biases(int layer) const {
    return at(weights(layer), bytes_of(net_.type) * net_.width * net_.width);
  }

  const MlpNet& net_;
  const void* weights_;
  std::int64_t rows_;
  bool keeps_;  // keep the data that the backward pass needs
  ElementType stored_;
  cudaStream_t stream_;
  Scratch scratch_;
  Products products_;
  BlasLt cublas_;
  bool fused_;
};

/// Return the type of the gradients, which have the precision of the stored weights.
ElementType stored_type(const MlpNet& net, bool has_master) {
  return has_master ? ElementType::kFloat : net.type;
}

Choosing choosing_of(const MlpWide& wide) {
  return wide.tuned ? Choosing::kTuned : Choosing::kFirst;
}

}  // namespace

std::size_t mlp_wide_scratch_bytes(const MlpNet& net, std::int64_t batch, MlpWork work) {
  return Scratch(net, batch, work, nullptr).bytes;
}

bool mlp_wide_fuses_activation(const MlpNet& net, std::int64_t batch, cublasLtContext* cublas) {
  return Products(net, batch, net.type).fuses(cublas);
}

struct MlpWideProducts::Suggested {
  std::vector<mlp::Suggestions> products;
};

MlpWideProducts::MlpWideProducts(const MlpWide& wide, const MlpNet& net, const void* weights,
                                 const void* inputs, std::int64_t batch, bool has_master,
                                 void* scratch)
    : suggested_(std::make_unique<Suggested>()) {
  std::vector<Product> seen;
  const Pass pass(wide, net, weights, batch, MlpWork::kTraining, stored_type(net, has_master),
                  scratch, Choosing::kTuned, &seen);
  pass.take_inputs(inputs, {});
  pass.forward();
  pass.backward();
  pass.differentiate_weights(pass.scratch().gradients);
  std::set<Matmul> known;
  for (const Product& product : seen) {
    if (known.insert(product.matmul).second) {
      suggested_->products.emplace_back(wide.cublas, product, pass.scratch().workspace);
    }
  }
}

MlpWideProducts::~MlpWideProducts() = default;

std::vector<std::int64_t> MlpWideProducts::algorithms() const {
  std::vector<std::int64_t> counts;
  for (const Suggestions& product : suggested_->products) {
    counts.push_back(product.is_chosen() ? 1 : static_cast<std::int64_t>(product.size()));
  }
  return counts;
}

void MlpWideProducts::run(std::size_t product, std::size_t algorithm, cudaStream_t stream) const {
  suggested_->products.at(product).run(algorithm, stream);
}

void MlpWideProducts::choose(std::size_t product, std::size_t algorithm) const {
  suggested_->products.at(product).choose(algorithm);
}

void launch_mlp_wide_steps(const MlpWide& wide, const MlpNet& net, const MlpData& data,
                           const MlpRule& rule, const MlpScaling& scaling, const MlpState& state,
                           void* scratch, int steps) {
  const Pass pass(wide, net, state.weights, data.batch, MlpWork::kTraining,
                  stored_type(net, state.master != nullptr), scratch, choosing_of(wide));
  void* const gradients = pass.scratch().gradients;
  WideLoss* const loss = pass.scratch().loss;
  for (int i = 0; i < steps; ++i) {
    pass.take_inputs(data.inputs, {state.counters, data.batches});
    pass.forward();
    launch_loss(net, data, scaling, state, pass.outputs(), net.width, pass.padded_outputs(), loss,
                wide.stream);
    pass.backward();
    pass.differentiate_weights(gradients);
    launch_learn(net, rule, scaling, state, gradients, loss, wide.stream);
  }
}

void launch_mlp_wide_forward(const MlpWide& wide, const MlpNet& net, const void* weights,
                             const void* inputs, void* outputs, std::int64_t rows, void* scratch) {
  const Pass pass(wide, net, weights, rows, MlpWork::kForward, net.type, scratch,
                  choosing_of(wide));
  pass.take_inputs(inputs, {});
  pass.forward();
  launch_copy_rows(net.type, pass.outputs(), net.width, outputs, net.outputs, net.outputs,
                   net.outputs, rows, {}, wide.stream);
}

void launch_mlp_wide_backward(const MlpWide& wide, const MlpNet& net, const void* weights,
                              const void* inputs, const void* grad_outputs, void* grad_inputs,
                              void* grad_weights, std::int64_t rows, void* scratch) {
  const Pass pass(wide, net, weights, rows, MlpWork::kBackward, net.type, scratch,
                  choosing_of(wide));
  pass.take_inputs(inputs, {});
  pass.forward();
  launch_copy_rows(net.type, grad_outputs, net.outputs, pass.outputs(), net.width, net.outputs,
                   pass.padded_outputs(), rows, {}, wide.stream);
  pass.backward();
  pass.differentiate_weights(grad_weights);
  if (grad_inputs != nullptr) {
    pass.differentiate_inputs(grad_inputs);
  }
}

}  // namespace convtime
