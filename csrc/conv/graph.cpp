#include "conv/graph.h"

#include <stdexcept>
#include <vector>

namespace convtime::conv {
namespace {

using cudnn_frontend::Operation;
using cudnn_frontend::OperationBuilder;
using cudnn_frontend::Tensor;

cudnn_frontend::TensorBuilder& describe(cudnn_frontend::TensorBuilder& builder,
                                        const Problem& problem, const TensorShape& shape,
                                        std::int64_t id) {
  return builder.setDim(problem.rank, shape.sizes.data())
      .setStrides(problem.rank, shape.strides.data())
      .setId(id)
      .setAlignment(shape.alignment);
}

Tensor make_tensor(const Problem& problem, const TensorShape& shape, std::int64_t id) {
  cudnn_frontend::TensorBuilder builder;
  return describe(builder, problem, shape, id).setDataType(problem.data_type).build();
}

cudnnDataType_t compute_type(cudnnDataType_t data_type) {
  const bool half = data_type == CUDNN_DATA_HALF || data_type == CUDNN_DATA_BFLOAT16;
  return half ? CUDNN_DATA_FLOAT : data_type;
}

/// Create an intermediate tensor between two nodes, in y's shape. As in PyTorch, it is not rounded
/// to y's type.
Tensor make_virtual_tensor(const Problem& problem, std::int64_t id) {
  cudnn_frontend::TensorBuilder builder;
  return describe(builder, problem, problem.y, id)
      .setDataType(compute_type(problem.data_type))
      .setVirtual()
      .build();
}

cudnnBackendDescriptorType_t operation_type(Pass pass) {
  switch (pass) {
    case Pass::kFprop:
      return CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
    case Pass::kDgrad:
      return CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
    case Pass::kWgrad:
      return CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
  }
  throw std::logic_error("unknown convolution pass");
}

Operation make_convolution(const Problem& problem, const Tensor& y) {
  const std::int64_t spatial = problem.rank - 2;
  // The number of groups is not set: cuDNN infers it from the channels of x and w.
  auto convolution = cudnn_frontend::ConvDescBuilder()
                         .setDataType(compute_type(problem.data_type))
                         .setMathMode(CUDNN_CROSS_CORRELATION)
                         .setNDims(spatial)
                         .setStrides(spatial, problem.stride.data())
                         .setPrePadding(spatial, problem.padding.data())
                         .setPostPadding(spatial, problem.padding.data())
                         .setDilation(spatial, problem.dilation.data())
                         .build();
  return OperationBuilder(operation_type(problem.pass))
      .setxDesc(make_tensor(problem, problem.x, kIdX))
      .setyDesc(y)
      .setwDesc(make_tensor(problem, problem.w, kIdW))
      .setcDesc(convolution)
      .build();
}

Operation make_sum(const Problem& problem, const Tensor& x, const Tensor& addend, float alpha,
                   const Tensor& y) {
  auto sum = cudnn_frontend::PointWiseDescBuilder()
                 .setMode(CUDNN_POINTWISE_ADD)
                 .setMathPrecision(compute_type(problem.data_type))
                 .build();
  return OperationBuilder(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      .setxDesc(x)
      .setbDesc(addend)
      .setyDesc(y)
      .setpwDesc(sum)
      .setAlpha(1.0F)
      .setAlpha2(alpha)
      .build();
}

cudnnPointwiseMode_t mode_of(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
    case Activation::kRelu6:
    case Activation::kLeakyRelu:
      return CUDNN_POINTWISE_RELU_FWD;
    case Activation::kGelu:
      return CUDNN_POINTWISE_GELU_FWD;
    case Activation::kGeluTanh:
      return CUDNN_POINTWISE_GELU_APPROX_TANH_FWD;
    case Activation::kSilu:
      return CUDNN_POINTWISE_SWISH_FWD;
    case Activation::kSigmoid:
      return CUDNN_POINTWISE_SIGMOID_FWD;
    case Activation::kTanh:  // see erratum()
    case Activation::kIdentity:
      break;
  }
  throw std::logic_error("no cuDNN node implements this activation");
}

Operation make_activation(const Problem& problem, const Tensor& x, const Tensor& y) {
  const Epilogue& epilogue = problem.epilogue;
  cudnn_frontend::PointWiseDescBuilder builder;
  builder.setMode(mode_of(epilogue.activation)).setMathPrecision(compute_type(problem.data_type));
  if (epilogue.activation == Activation::kRelu6) {
    builder.setReluUpperClip(6);
  } else if (epilogue.activation == Activation::kLeakyRelu) {
    builder.setReluLowerClipSlope(epilogue.negative_slope);
  }
  auto activation = builder.build();
  return OperationBuilder(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      .setxDesc(x)
      .setyDesc(y)
      .setpwDesc(activation)
      .build();
}

/// Follows the order of PyTorch's own graph (cudnn/Conv_v8.cpp, build_opgraph_fused): convolution,
/// addend, bias, activation.
std::vector<Operation> make_nodes(const Problem& problem) {
  const Epilogue& epilogue = problem.epilogue;
  std::vector<std::int64_t> ids = {kIdConvolved};  // outputs of the nodes
  if (epilogue.z.has_value()) {
    ids.push_back(kIdAdded);
  }
  if (epilogue.b.has_value()) {
    ids.push_back(kIdBiased);
  }
  if (epilogue.activation != Activation::kIdentity) {
    ids.push_back(kIdY);
  }
  ids.back() = kIdY;
  std::vector<Tensor> written;
  for (const std::int64_t id : ids) {
    written.push_back(id == kIdY ? make_tensor(problem, problem.y, id)
                                 : make_virtual_tensor(problem, id));
  }

  std::vector<Operation> nodes;
  const auto last = [&]() -> const Tensor& { return written[nodes.size() - 1]; };
  const auto next = [&]() -> const Tensor& { return written[nodes.size()]; };
  nodes.push_back(make_convolution(problem, next()));
  if (epilogue.z.has_value()) {
    const Tensor z = make_tensor(problem, *epilogue.z, kIdZ);
    nodes.push_back(make_sum(problem, last(), z, epilogue.alpha, next()));
  }
  if (epilogue.b.has_value()) {
    const Tensor b = make_tensor(problem, *epilogue.b, kIdB);
    nodes.push_back(make_sum(problem, last(), b, /*alpha=*/1.0F, next()));
  }
  if (epilogue.activation != Activation::kIdentity) {
    nodes.push_back(make_activation(problem, last(), next()));
  }
  return nodes;
}

}  // namespace

cudnn_frontend::OperationGraph make_graph(cudnnHandle_t handle, const Problem& problem) {
  return cudnn_frontend::OperationGraphBuilder()
      .setHandle(handle)
      .setOperationGraph(make_nodes(problem))
      .build();
}

}  // namespace convtime::conv
