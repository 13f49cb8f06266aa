#include "ops/conv/activation.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/hardtanh_backward.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>

#include <stdexcept>

namespace convtime::ops {

using conv::Activation;

at::Tensor activate(const at::Tensor& x, const ActivationCall& call) {
  switch (call.activation) {
    case Activation::kIdentity:
      return x;
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kRelu6:
      return at::hardtanh(x, 0, 6);
    case Activation::kLeakyRelu:
      return at::leaky_relu(x, call.negative_slope);
    case Activation::kGelu:
      return at::gelu(x, "none");
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kSigmoid:
      return at::sigmoid(x);
    case Activation::kTanh:
      return at::tanh(x);
  }
  throw std::logic_error("unknown activation");
}

void activate_(at::Tensor& x, const ActivationCall& call) {
  switch (call.activation) {
    case Activation::kIdentity:
      return;
    case Activation::kRelu:
      at::relu_(x);
      return;
    case Activation::kRelu6:
      at::hardtanh_(x, 0, 6);
      return;
    case Activation::kLeakyRelu:
      at::leaky_relu_(x, call.negative_slope);
      return;
    case Activation::kGelu:
      at::gelu_(x, "none");
      return;
    case Activation::kGeluTanh:
      at::gelu_(x, "tanh");
      return;
    case Activation::kSilu:
      at::silu_(x);
      return;
    case Activation::kSigmoid:
      at::sigmoid_(x);
      return;
    case Activation::kTanh:
      at::tanh_(x);
      return;
  }
  throw std::logic_error("unknown activation");
}

bool is_differentiable_by_output(const ActivationCall& call) {
  switch (call.activation) {
    case Activation::kIdentity:
    case Activation::kRelu:
    case Activation::kRelu6:
    case Activation::kSigmoid:
    case Activation::kTanh:
      return true;
    case Activation::kLeakyRelu:
      return call.negative_slope >= 0;  // otherwise the output's sign does not determine the
                                        // input's sign
    case Activation::kGelu:
    case Activation::kGeluTanh:
    case Activation::kSilu:
      return false;
  }
  throw std::logic_error("unknown activation");
}

at::Tensor activation_backward(const at::Tensor& grad, const at::Tensor& output,
                               const ActivationCall& call) {
  switch (call.activation) {
    case Activation::kIdentity:
      return grad;
    case Activation::kRelu:
      return at::threshold_backward(grad, output, 0);
    case Activation::kRelu6:
      return at::hardtanh_backward(grad, output, 0, 6);
    case Activation::kLeakyRelu:
      return at::leaky_relu_backward(grad, output, call.negative_slope, /*self_is_result=*/true);
    case Activation::kSigmoid:
      return at::sigmoid_backward(grad, output);
    case Activation::kTanh:
      return at::tanh_backward(grad, output);
    case Activation::kGelu:
    case Activation::kGeluTanh:
    case Activation::kSilu:
      break;
  }
  throw std::logic_error("the gradient needs the activation's input");
}

}  // namespace convtime::ops
