#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/mlp/loss_scale.h"
#include "ops/dispatch.h"
#include "ops/kernels/mlp_layers.h"

#ifdef CONVTIME_WITH_CUDA
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/custom_class.h>

#include <memory>
#include <utility>

#include "kernels/mlp/mlp.h"
#include "kernels/mlp/wide.h"
#include "ops/kernels/element_type.h"
#endif

namespace convtime::ops {
namespace {

/// The sizes of a net whose weights are one tensor; see mlp.h.
struct Net {
  std::int64_t layers;
  std::int64_t width;
  std::int64_t inputs;
  std::int64_t outputs;
  bool tanh;
  bool bias;
};

Net check_net(const char* op, const at::Tensor& weights, std::int64_t inputs, std::int64_t outputs,
              std::string_view activation) {
  const bool has_layers = weights.dim() == 3 && weights.size(0) >= 1 && weights.size(2) >= 1;
  const std::int64_t biases = has_layers ? weights.size(1) - weights.size(2) : -1;
  TORCH_CHECK(
      biases == 0 || biases == 1, op,
      ": weights must have shape (layers, width, width), or (layers, width + 1, width) with "
      "biases, got ",
      weights.sizes());
  TORCH_CHECK(weights.is_contiguous(), op, ": weights must be contiguous, got strides ",
              weights.strides());
  const Net net{weights.size(0), weights.size(2),      inputs,
                outputs,         activation == "tanh", biases == 1};
  TORCH_CHECK(1 <= inputs && inputs <= net.width, op, ": inputs must have between 1 and ",
              net.width, " columns, the width of the weights, got ", inputs);
  TORCH_CHECK(1 <= outputs && outputs <= net.width, op, ": outputs must be between 1 and ",
              net.width, ", the width of the weights, got ", outputs);
  TORCH_CHECK(net.tanh || activation == "relu", op, ": activation must be 'relu' or 'tanh', got '",
              activation, "'");
  return net;
}

void check_rows(const char* op, const char* name, const at::Tensor& rows,
                const at::Tensor& weights) {
  TORCH_CHECK(rows.dim() == 2 && rows.size(0) >= 1, op, ": ", name,
              " must have shape (rows, columns) and at least one row, got ", rows.sizes());
  TORCH_CHECK(rows.scalar_type() == weights.scalar_type(), op, ": ", name,
              " must have the weights' dtype ", weights.scalar_type(), ", got ",
              rows.scalar_type());
  TORCH_CHECK(rows.device() == weights.device(), op, ": ", name, " must be on the weights' device ",
              weights.device(), ", got ", rows.device());
}

Net check_gradient(const at::Tensor& grad_output, const at::Tensor& input,
                   const at::Tensor& weights, std::string_view activation) {
  constexpr const char* kName = "mlp_backward";
  check_rows(kName, "input", input, weights);
  check_rows(kName, "the output's gradient", grad_output, weights);
  TORCH_CHECK(grad_output.size(0) == input.size(0), kName,
              ": the output's gradient must have as many rows as the input, ", input.size(0),
              ", got ", grad_output.size(0));
  return check_net(kName, weights, input.size(1), grad_output.size(1), activation);
}

/// The arguments of mlp_steps.
struct Steps {
  using Signature = void(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const std::optional<at::Tensor>&, const std::optional<at::Tensor>&,
                         const std::optional<at::Tensor>&, const at::Tensor&, const at::Tensor&,
                         const at::Tensor&, const at::Tensor&, std::int64_t, std::int64_t,
                         std::string_view, std::string_view, std::string_view, double, double,
                         double, double, bool, std::int64_t, bool, bool, std::int64_t,
                         std::int64_t);

  at::Tensor inputs;
  at::Tensor targets;
  at::Tensor weights;
  std::optional<at::Tensor> master;
  std::optional<at::Tensor> first;
  std::optional<at::Tensor> second;
  at::Tensor counters;
  at::Tensor rates;
  at::Tensor losses;
  at::Tensor scratch;
  std::int64_t batch;
  std::int64_t outputs;
  std::string_view activation;
  std::string_view loss;
  std::string_view optimizer;
  double momentum;  // Adam's first beta
  double beta2;
  double epsilon;
  double weight_decay;
  bool scaled;
  std::int64_t growth_interval;
  bool tf32;
  bool tuned;
  std::int64_t plan;
  std::int64_t steps;

  bool classifies() const { return loss == "cross_entropy"; }
  bool is_sgd() const { return optimizer == "sgd"; }
  std::int64_t batches() const { return inputs.size(0) / batch; }
};

constexpr const char* kSteps = "mlp_steps";

void check_state(const char* name, const std::optional<at::Tensor>& state, const Steps& s) {
  if (!state) {
    return;
  }
  const at::ScalarType type = s.master ? s.master->scalar_type() : s.weights.scalar_type();
  TORCH_CHECK(state->sizes() == s.weights.sizes() && state->is_contiguous() &&
                  state->scalar_type() == type && state->device() == s.weights.device(),
              kSteps, ": ", name, " must be contiguous, of the weights' shape ", s.weights.sizes(),
              ", of ", type, " and on ", s.weights.device(), ", got shape ", state->sizes(), ", ",
              state->scalar_type(), " on ", state->device());
}

void check_numbers(const char* name, const at::Tensor& numbers, const Steps& s, at::ScalarType type,
                   std::int64_t least) {
  TORCH_CHECK(numbers.dim() == 1 && numbers.size(0) >= least && numbers.is_contiguous() &&
                  numbers.scalar_type() == type && numbers.device() == s.weights.device(),
              kSteps, ": ", name, " must be at least ", least, " contiguous values of ", type,
              " on ", s.weights.device(), ", got shape ", numbers.sizes(), ", ",
              numbers.scalar_type(), " on ", numbers.device());
}

Net check_steps(const Steps& s) {
  check_rows(kSteps, "inputs", s.inputs, s.weights);
  const Net net = check_net(kSteps, s.weights, s.inputs.size(1), s.outputs, s.activation);
  TORCH_CHECK(s.classifies() || s.loss == "mse", kSteps,
              ": loss must be 'mse' or 'cross_entropy', got '", s.loss, "'");
  TORCH_CHECK(s.is_sgd() || s.optimizer == "adam" || s.optimizer == "adamw", kSteps,
              ": optimizer must be 'sgd', 'adam' or 'adamw', got '", s.optimizer, "'");
  if (s.classifies()) {
    TORCH_CHECK(s.targets.dim() == 1 && s.targets.scalar_type() == at::kLong &&
                    s.targets.device() == s.weights.device(),
                kSteps, ": targets must be a 1-D tensor of int64 classes on ", s.weights.device(),
                ", got shape ", s.targets.sizes(), ", ", s.targets.scalar_type(), " on ",
                s.targets.device());
  } else {
    check_rows(kSteps, "targets", s.targets, s.weights);
    TORCH_CHECK(s.targets.size(1) == s.outputs, kSteps, ": targets must have ", s.outputs,
                " columns, as many as the net has outputs, got ", s.targets.size(1));
  }
  TORCH_CHECK(s.targets.size(0) == s.inputs.size(0), kSteps,
              ": targets must have as many rows as inputs, ", s.inputs.size(0), ", got ",
              s.targets.size(0));
  TORCH_CHECK(s.inputs.is_contiguous() && s.targets.is_contiguous(), kSteps,
              ": inputs and targets must be contiguous");
  TORCH_CHECK(1 <= s.batch && s.batch <= s.inputs.size(0), kSteps,
              ": batch must be between 1 and the ", s.inputs.size(0), " rows of inputs, got ",
              s.batch);
  TORCH_CHECK(1 <= s.steps && s.steps <= 1'000'000, kSteps,
              ": steps must be between 1 and 1000000, got ", s.steps);
  TORCH_CHECK(0 <= s.growth_interval && s.growth_interval <= 1'000'000'000, kSteps,
              ": growth_interval must be between 0 and 1000000000, got ", s.growth_interval);
  check_state("master", s.master, s);
  check_state("first", s.first, s);
  check_state("second", s.second, s);
  TORCH_CHECK(s.is_sgd() || (s.first && s.second), kSteps, ": optimizer '", s.optimizer,
              "' needs both moments, first and second");
  TORCH_CHECK(s.first || s.momentum == 0, kSteps, ": momentum ", s.momentum,
              " needs the tensor first, got None");
  check_numbers("counters", s.counters, s, at::kLong, 3);
  check_numbers("rates", s.rates, s, at::kFloat, 2);
  check_numbers("losses", s.losses, s, at::kFloat, 1);
  return net;
}

/// The result of mlp_path.
using Path = std::tuple<std::string, std::string, std::int64_t, std::vector<std::string>>;

// --- CPU: ATen's own kernels, in 32 bits

namespace mlp_cpu {

at::ScalarType wide(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Return each layer's input, followed by the output.
std::vector<at::Tensor> activations(const at::Tensor& input, const at::Tensor& weights,
                                    const Layers& net) {
  std::vector<at::Tensor> values{input};
  for (std::int64_t layer = 0; layer < net.layers; ++layer) {
    const at::Tensor sums = net.apply(weights, layer, values.back());
    values.push_back(layer == net.layers - 1 ? sums : net.activate(sums));
  }
  return values;
}

struct Gradients {
  at::Tensor input;
  at::Tensor weights;
};

/// Return the gradients of the inputs and the weights, given the gradient of the output.
Gradients gradients_of(at::Tensor gradient, const std::vector<at::Tensor>& values,
                       const at::Tensor& weights, const Layers& net) {
  std::vector<at::Tensor> of_weights(static_cast<std::size_t>(net.layers));
  for (std::int64_t layer = net.layers - 1;; --layer) {
    const auto i = static_cast<std::size_t>(layer);
    of_weights[i] = net.pad(layer, gradient.t().mm(values[i]), gradient.sum(0));
    gradient = gradient.mm(net.matrix(weights, layer));
    if (layer == 0) {
      return {gradient, at::stack(of_weights)};
    }
    gradient = net.times_slope(gradient, values[i]);
  }
}

at::Tensor forward(const at::Tensor& input, const at::Tensor& weights, std::int64_t outputs,
                   std::string_view activation) {
  check_rows("mlp", "input", input, weights);
  check_net("mlp", weights, input.size(1), outputs, activation);
  const Layers net(input, weights, outputs, activation);
  const at::ScalarType type = wide(weights);
  return activations(input.to(type), weights.to(type), net).back().to(input.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor& grad_output, const at::Tensor& input,
                                            const at::Tensor& weights,
                                            std::string_view activation) {
  check_gradient(grad_output, input, weights, activation);
  const Layers net(input, weights, grad_output.size(1), activation);
  const auto guard = without_autocast();
  const at::ScalarType type = wide(weights);
  const at::Tensor wide_weights = weights.to(type);
  const Gradients gradients = gradients_of(
      grad_output.to(type), activations(input.to(type), wide_weights, net), wide_weights, net);
  return {gradients.input.to(input.scalar_type()), gradients.weights.to(weights.scalar_type())};
}

/// A step's loss and its gradient.
struct Loss {
  double value;
  at::Tensor gradient;
};

Loss loss_of(const Steps& s, const at::Tensor& output, const at::Tensor& targets) {
  const double rows = static_cast<double>(s.batch);
  if (s.classifies()) {
    const at::Tensor logarithms = at::log_softmax(output, 1);
    const at::Tensor expected = at::one_hot(targets, s.outputs);
    return {at::nll_loss(logarithms, targets).item<double>(), (logarithms.exp() - expected) / rows};
  }
  const at::Tensor error = output - targets;
  return {(error * error).mean().item<double>(),
          error * (2 / (rows * static_cast<double>(s.outputs)))};
}

/// Return the 32-bit weights, except where something other than a step changed their rounded copy.
at::Tensor current_master(const Steps& s) {
  const at::Tensor kept = s.master->to(s.weights.scalar_type()).eq(s.weights);
  return at::where(kept, *s.master, s.weights.to(s.master->scalar_type()));
}

/// Update like torch.optim; `updates` includes this update.
void update(const Steps& s, at::Tensor gradient, std::int64_t updates) {
  const at::Tensor& stored = s.master ? *s.master : s.weights;
  const double rate = s.rates[0].item<double>();
  at::Tensor weights = (s.master ? current_master(s) : s.weights).to(gradient.scalar_type());
  if (s.optimizer == "adamw") {
    weights = weights * (1 - rate * s.weight_decay);
  } else {
    gradient = gradient + weights * s.weight_decay;
  }
  if (s.is_sgd()) {
    if (s.first) {
      gradient = s.first->to(gradient.scalar_type()) * s.momentum + gradient;
      s.first->copy_(gradient);
    }
    weights = weights - gradient * rate;
  } else {
    const at::Tensor first =
        s.first->to(gradient.scalar_type()) * s.momentum + gradient * (1 - s.momentum);
    const at::Tensor second =
        s.second->to(gradient.scalar_type()) * s.beta2 + gradient * gradient * (1 - s.beta2);
    s.first->copy_(first);
    s.second->copy_(second);
    const auto count = static_cast<double>(updates);
    const double gathered = 1 - std::pow(s.momentum, count);
    const double spread = std::sqrt(1 - std::pow(s.beta2, count));
    weights = weights - first * (rate / gathered) / (second.sqrt() / spread + s.epsilon);
  }
  stored.copy_(weights);
  s.weights.copy_(weights);
}

void step(const Steps& s, const Layers& net) {
  auto* const counters = s.counters.mutable_data_ptr<std::int64_t>();
  auto* const rates = s.rates.mutable_data_ptr<float>();
  const at::ScalarType type = wide(s.weights);
  const std::int64_t begin = counters[0] % s.batches() * s.batch;
  const at::Tensor targets = s.targets.narrow(0, begin, s.batch);
  const at::Tensor weights = s.weights.to(type);
  const auto values = activations(s.inputs.narrow(0, begin, s.batch).to(type), weights, net);
  const Loss loss = loss_of(s, values.back(), s.classifies() ? targets : targets.to(type));
  const double scale = s.scaled ? rates[1] : 1;
  // Rounded, so that values that overflow on a GPU also overflow here.
  const at::Tensor scaled = (loss.gradient * scale).to(s.weights.scalar_type()).to(type);
  const at::Tensor gradient = gradients_of(scaled, values, weights, net).weights / scale;
  const bool skipped = s.scaled && !gradient.isfinite().all().item<bool>();
  if (!skipped) {
    update(s, gradient, counters[0] - counters[1] + 1);
  }
  s.losses[counters[0] % s.losses.size(0)].fill_(loss.value);
  ++counters[0];
  counters[1] += skipped ? 1 : 0;
  counters[2] = skipped ? 0 : counters[2] + 1;
  if (s.growth_interval > 0 && skipped) {
    rates[1] = std::max(0.5F * rates[1], kLeastLossScale);
  } else if (s.growth_interval > 0 && counters[2] == s.growth_interval) {
    rates[1] = std::min(2 * rates[1], kMostLossScale);
    counters[2] = 0;
  }
}

void take_steps(const Steps& s) {
  check_steps(s);
  const Layers net(s.inputs, s.weights, s.outputs, s.activation);
  const auto guard = without_autocast();
  for (std::int64_t i = 0; i < s.steps; ++i) {
    step(s, net);
  }
}

/// The CPU needs no scratch memory.
Path path(const at::Tensor& weights, std::int64_t inputs, std::int64_t outputs,
          std::int64_t /*batch*/, std::string_view activation, bool /*tf32*/) {
  check_net("mlp_path", weights, inputs, outputs, activation);
  return {"cpu", "the weights are on a CPU: PyTorch's own kernels, in 32 bits or more", 0, {}};
}

}  // namespace mlp_cpu

#ifdef CONVTIME_WITH_CUDA

namespace mlp_cuda {

void check_aligned(const char* op, const char* name, const at::Tensor& tensor) {
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  TORCH_CHECK(address % 16 == 0, op, ": ", name,
              " must be aligned to 16 bytes on a GPU, got an address ", address % 16,
              " bytes off; clone() it");
}

/// A net in the form that the kernels take, and the kernels to use.
struct Choice {
  MlpNet net;
  std::string why_wide;  // empty: it runs on chip

  bool is_wide() const { return !why_wide.empty(); }
  std::size_t scratch_bytes(std::int64_t batch, MlpWork work) const {
    return is_wide() ? mlp_wide_scratch_bytes(net, batch, work) : mlp_scratch_bytes(net, batch);
  }
};

std::string why_wide(const MlpNet& net, std::int64_t rows) {
  if (net.type == ElementType::kFloat) {
    return "the dtype is float32";
  }
  if (net.bias) {
    return "there are biases";
  }
  if (net.width > 128) {
    return c10::str("a width of ", net.width, " is above 128");
  }
  if (!mlp_fits(net, rows)) {
    return c10::str(net.layers, " layers of width ", net.width, " do not fit, with ", rows,
                    " rows, into this GPU's shared memory");
  }
  return {};
}

/// `rows` are those whose gradients are summed; 1 for a forward pass.
Choice choose(const char* op, const Net& net, const at::Tensor& weights, bool tf32,
              std::int64_t rows) {
  const at::ScalarType type = weights.scalar_type();
  const cudaDeviceProp& gpu = *at::cuda::getDeviceProperties(weights.get_device());
  TORCH_CHECK(gpu.major >= 8, op, ": needs a GPU of compute capability 8.0 or newer, got ",
              gpu.major, ".", gpu.minor, "; use the CPU");
  check_aligned(op, "weights", weights);
  TORCH_CHECK(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat, op,
              ": dtype must be float16, bfloat16 or float32 on a GPU, got ", type);
  const bool has_kernels = net.width == 16 || net.width == 32 || net.width % 64 == 0;
  TORCH_CHECK(has_kernels && net.width <= 65'536 && net.layers <= 1024, op,
              ": weights must be of width 16, 32 or a multiple of 64, padded with zeros, and at "
              "most 65536, and of 1024 layers at most on a GPU, got ",
              net.layers, " of width ", net.width);
  const MlpNet sizes{element_type_of(weights),
                     net.tanh ? MlpActivation::kTanh : MlpActivation::kRelu,
                     static_cast<int>(net.width),
                     static_cast<int>(net.layers),
                     static_cast<int>(net.inputs),
                     static_cast<int>(net.outputs),
                     net.bias,
                     tf32 && type == at::kFloat};
  return {sizes, why_wide(sizes, rows)};
}

MlpWide on_current_stream(bool tuned) {
  return {at::cuda::getCurrentCUDABlasLtHandle(), tuned, at::cuda::getCurrentCUDAStream()};
}

/// As in PyTorch's own matrix products of floats.
bool allows_tf32() { return at::globalContext().allowTF32CuBLAS(); }

Path path(const at::Tensor& weights, std::int64_t inputs, std::int64_t outputs, std::int64_t batch,
          std::string_view activation, bool tf32) {
  constexpr const char* kName = "mlp_path";
  const c10::cuda::CUDAGuard guard(weights.device());
  const Net net = check_net(kName, weights, inputs, outputs, activation);
  TORCH_CHECK(batch >= 1, kName, ": batch must be at least 1, got ", batch);
  const Choice choice = choose(kName, net, weights, tf32, batch);
  const auto bytes = static_cast<std::int64_t>(choice.scratch_bytes(batch, MlpWork::kTraining));
  if (!choice.is_wide()) {
    return {"on-chip", "widths are at most 128, in 16 bits and without biases", bytes,
            mlp_plans(choice.net, batch)};
  }
  const bool is_fused =
      mlp_wide_fuses_activation(choice.net, batch, at::cuda::getCurrentCUDABlasLtHandle());
  const char* const products = choice.net.type != ElementType::kFloat ? ""
                               : choice.net.tf32                      ? " in TF32"
                                                                      : " in 32 bits";
  return {"wide",
          c10::str(choice.why_wide, ": products by cuBLASLt", products, ", with the activation ",
                   is_fused ? "fused" : "as a kernel after each"),
          bytes,
          {}};
}

at::Tensor make_scratch(const Choice& choice, std::int64_t rows, MlpWork work,
                        const at::Tensor& like) {
  const auto bytes = static_cast<std::int64_t>(choice.scratch_bytes(rows, work));
  return at::empty({bytes}, like.options().dtype(at::kByte));
}

at::Tensor forward(const at::Tensor& input, const at::Tensor& weights, std::int64_t outputs,
                   std::string_view activation) {
  check_rows("mlp", "input", input, weights);
  const c10::cuda::CUDAGuard guard(input.device());
  const Net net = check_net("mlp", weights, input.size(1), outputs, activation);
  const Choice choice = choose("mlp", net, weights, allows_tf32(), 1);
  const at::Tensor dense = input.contiguous();
  const at::Tensor result = at::empty({input.size(0), outputs}, input.options());
  if (choice.is_wide()) {
    const at::Tensor scratch = make_scratch(choice, input.size(0), MlpWork::kForward, input);
    launch_mlp_wide_forward(on_current_stream(false), choice.net, weights.const_data_ptr(),
                            dense.const_data_ptr(), result.mutable_data_ptr(), input.size(0),
                            scratch.mutable_data_ptr());
    return result;
  }
  launch_mlp_forward(choice.net, weights.const_data_ptr(), dense.const_data_ptr(),
                     result.mutable_data_ptr(), input.size(0), at::cuda::getCurrentCUDAStream());
  return result;
}

std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor& grad_output, const at::Tensor& input,
                                            const at::Tensor& weights,
                                            std::string_view activation) {
  const Net net = check_gradient(grad_output, input, weights, activation);
  const c10::cuda::CUDAGuard guard(input.device());
  const Choice choice = choose("mlp_backward", net, weights, allows_tf32(), input.size(0));
  const at::Tensor dense = input.contiguous();
  const at::Tensor gradient = grad_output.contiguous();
  const at::Tensor of_input = at::empty(input.sizes(), input.options());
  const at::Tensor scratch = make_scratch(choice, input.size(0), MlpWork::kBackward, input);
  if (choice.is_wide()) {
    const at::Tensor of_weights = at::zeros(weights.sizes(), weights.options());
    launch_mlp_wide_backward(on_current_stream(false), choice.net, weights.const_data_ptr(),
                             dense.const_data_ptr(), gradient.const_data_ptr(),
                             of_input.mutable_data_ptr(), of_weights.mutable_data_ptr(),
                             input.size(0), scratch.mutable_data_ptr());
    return {of_input, of_weights};
  }
  const at::Tensor of_weights = at::empty(weights.sizes(), weights.options());
  launch_mlp_backward(choice.net, weights.const_data_ptr(), dense.const_data_ptr(),
                      gradient.const_data_ptr(), of_input.mutable_data_ptr(),
                      of_weights.mutable_data_ptr(), input.size(0), scratch.mutable_data_ptr(),
                      at::cuda::getCurrentCUDAStream());
  return {of_input, of_weights};
}

void check_scratch(const char* op, const at::Tensor& scratch, const at::Tensor& weights,
                   std::size_t least) {
  const auto bytes = static_cast<std::int64_t>(least);
  TORCH_CHECK(scratch.scalar_type() == at::kByte && scratch.is_contiguous() &&
                  scratch.device() == weights.device() && scratch.numel() >= bytes,
              op, ": scratch must be ", bytes, " contiguous bytes on ", weights.device(), ", got ",
              scratch.numel(), " of ", scratch.scalar_type(), " on ", scratch.device());
  check_aligned(op, "scratch", scratch);
}

/// The products of a training step of a net that runs with cuBLASLt; see MlpWideProducts.
class Products : public torch::CustomClassHolder {
 public:
  Products(at::Tensor inputs, at::Tensor weights, at::Tensor scratch, std::int64_t batch,
           std::int64_t outputs, const std::string& activation, bool has_master, bool tf32)
      : inputs_(std::move(inputs)), weights_(std::move(weights)), scratch_(std::move(scratch)) {
    constexpr const char* kName = "MlpProducts";
    check_rows(kName, "inputs", inputs_, weights_);
    const c10::cuda::CUDAGuard guard(weights_.device());
    const Net net = check_net(kName, weights_, inputs_.size(1), outputs, activation);
    const Choice choice = mlp_cuda::choose(kName, net, weights_, tf32, batch);
    TORCH_CHECK(choice.is_wide(), kName,
                ": the net must use cuBLASLt's products, got a net that runs on chip");
    TORCH_CHECK(inputs_.is_contiguous() && 1 <= batch && batch <= inputs_.size(0), kName,
                ": inputs must be contiguous and hold a batch of ", batch, " rows, got shape ",
                inputs_.sizes());
    check_scratch(kName, scratch_, weights_, choice.scratch_bytes(batch, MlpWork::kTraining));
    products_ = std::make_unique<MlpWideProducts>(
        on_current_stream(true), choice.net, weights_.const_data_ptr(), inputs_.const_data_ptr(),
        batch, has_master, scratch_.mutable_data_ptr());
  }

  std::vector<std::int64_t> algorithms() {
    const c10::cuda::CUDAGuard guard(weights_.device());
    return products_->algorithms();
  }

  void run(std::int64_t product, std::int64_t algorithm) {
    const c10::cuda::CUDAGuard guard(weights_.device());
    products_->run(index("product", product), index("algorithm", algorithm),
                   at::cuda::getCurrentCUDAStream());
  }

  void choose(std::int64_t product, std::int64_t algorithm) {
    const c10::cuda::CUDAGuard guard(weights_.device());
    products_->choose(index("product", product), index("algorithm", algorithm));
  }

 private:
  static std::size_t index(const char* name, std::int64_t value) {
    TORCH_CHECK_INDEX(value >= 0, "MlpProducts: ", name, " must be 0 or more, got ", value);
    return static_cast<std::size_t>(value);
  }

  at::Tensor inputs_;
  at::Tensor weights_;
  at::Tensor scratch_;
  std::unique_ptr<MlpWideProducts> products_;
};

void* pointer(const std::optional<at::Tensor>& tensor) {
  return tensor ? tensor->mutable_data_ptr() : nullptr;
}

void take_steps(const Steps& s) {
  const c10::cuda::CUDAGuard guard(s.weights.device());
  const Choice choice = choose(kSteps, check_steps(s), s.weights, s.tf32, s.batch);
  TORCH_CHECK(!s.master || s.master->scalar_type() == at::kFloat, kSteps,
              ": master must have dtype float32, got ", s.master->scalar_type());
  TORCH_CHECK(!s.master || s.weights.scalar_type() != at::kFloat, kSteps,
              ": master must be None for weights of dtype float32, got a tensor");
  check_scratch(kSteps, s.scratch, s.weights, choice.scratch_bytes(s.batch, MlpWork::kTraining));
  for (const auto& state : {s.master, s.first, s.second}) {
    if (state) {
      check_aligned(kSteps, "the optimizer's state", *state);
    }
  }
  const MlpData data{s.inputs.const_data_ptr(), s.targets.const_data_ptr(),
                     s.classifies() ? MlpLoss::kCrossEntropy : MlpLoss::kMse, s.batch, s.batches()};
  const MlpRule rule{s.is_sgd()               ? MlpOptimizer::kSgd
                     : s.optimizer == "adamw" ? MlpOptimizer::kAdamW
                                              : MlpOptimizer::kAdam,
                     static_cast<float>(s.momentum), static_cast<float>(s.beta2),
                     static_cast<float>(s.epsilon), static_cast<float>(s.weight_decay)};
  const MlpState state{s.weights.mutable_data_ptr(),
                       static_cast<float*>(pointer(s.master)),
                       pointer(s.first),
                       pointer(s.second),
                       s.counters.mutable_data_ptr<std::int64_t>(),
                       s.rates.mutable_data_ptr<float>(),
                       s.losses.mutable_data_ptr<float>(),
                       s.losses.size(0)};
  const MlpScaling scaling{s.scaled, static_cast<int>(s.growth_interval)};
  const int steps = static_cast<int>(s.steps);
  void* const scratch = s.scratch.mutable_data_ptr();
  if (choice.is_wide()) {
    launch_mlp_wide_steps(on_current_stream(s.tuned), choice.net, data, rule, scaling, state,
                          scratch, steps);
  } else {
    launch_mlp_steps(choice.net, data, rule, scaling, state, scratch, steps,
                     static_cast<int>(s.plan), at::cuda::getCurrentCUDAStream());
  }
}

}  // namespace mlp_cuda

#endif

}  // namespace

TORCH_LIBRARY_IMPL(convtime, CPU, library) {
  library.impl("mlp", mlp_cpu::forward);
  library.impl("mlp_backward", mlp_cpu::backward);
  library.impl("mlp_steps", kernel<mlp_cpu::take_steps>);
  library.impl("mlp_path", mlp_cpu::path);
}

#ifdef CONVTIME_WITH_CUDA
TORCH_LIBRARY_IMPL(convtime, CUDA, library) {
  library.impl("mlp", mlp_cuda::forward);
  library.impl("mlp_backward", mlp_cuda::backward);
  library.impl("mlp_steps", kernel<mlp_cuda::take_steps>);
  library.impl("mlp_path", mlp_cuda::path);
}

TORCH_LIBRARY_FRAGMENT(convtime, library) {
  library.class_<mlp_cuda::Products>("MlpProducts")
      .def(torch::init<at::Tensor, at::Tensor, at::Tensor, std::int64_t, std::int64_t,
                       const std::string&, bool, bool>())
      .def("algorithms", &mlp_cuda::Products::algorithms)
      .def("run", &mlp_cuda::Products::run)
      .def("choose", &mlp_cuda::Products::choose);
}
#endif

}  // namespace convtime::ops
