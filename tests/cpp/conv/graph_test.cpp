#include "conv/graph.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "conv/engine.h"
#include "conv/errata.h"

namespace convtime::conv {
namespace {

TensorShape shape(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  return {.sizes = {n, c, h, w}, .strides = {c * h * w, 1, w * c, c}, .alignment = 32};
}

Problem problem() {
  Problem problem;
  problem.rank = 4;
  problem.data_type = CUDNN_DATA_HALF;
  problem.x = shape(2, 8, 6, 6);
  problem.w = shape(16, 8, 3, 3);
  problem.y = shape(2, 16, 6, 6);
  problem.padding = {1, 1};
  problem.stride = {1, 1};
  problem.dilation = {1, 1};
  return problem;
}

// cuDNN makes graphs without a handle, and so without a GPU.
std::string tag_of(const Problem& problem) { return make_graph(nullptr, problem).getTag(); }

TEST(Graph, HasTheNodesThatItsPassAndItsEpilogueAreNamedBy) {
  for (const auto& [pass, name] : {std::pair{Pass::kFprop, "ConvFwd_"},
                                   {Pass::kDgrad, "ConvBwdData_"},
                                   {Pass::kWgrad, "ConvBwdFilter_"}}) {
    Problem p = problem();
    p.pass = pass;
    EXPECT_EQ(tag_of(p), name);
  }
  constexpr Activation kActivations[] = {
      Activation::kIdentity, Activation::kRelu,     Activation::kRelu6, Activation::kLeakyRelu,
      Activation::kGelu,     Activation::kGeluTanh, Activation::kSilu,  Activation::kSigmoid};
  for (int i = 0; i < 4 * 8 * 4; ++i) {
    const bool adds = i % 2 == 1;
    const bool has_bias = i / 2 % 2 == 1;
    Problem p = problem();
    p.data_type = std::array{CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16, CUDNN_DATA_FLOAT,
                             CUDNN_DATA_DOUBLE}[i / 4 % 4];
    p.epilogue.activation = kActivations[i / 16];
    p.epilogue.negative_slope = 0.1F;
    if (adds) {
      p.epilogue.z = p.y;
      p.epilogue.alpha = 0.5F;
    }
    if (has_bias) {
      p.epilogue.b = shape(1, 16, 1, 1);
    }
    EXPECT_EQ(tag_of(p), "ConvFwd_" + epilogue_name(adds, has_bias, p.epilogue.activation));
  }
}

TEST(Erratum, LeavesActivationsThatCudnnComputesAsPyTorchDoes) {
  for (const bool tf32 : {false, true}) {
    EXPECT_NE(erratum(Activation::kTanh, CUDNN_DATA_HALF, tf32), "");
    EXPECT_EQ(erratum(Activation::kGeluTanh, CUDNN_DATA_FLOAT, tf32).empty(), tf32);
    EXPECT_EQ(erratum(Activation::kGeluTanh, CUDNN_DATA_HALF, tf32), "");
    EXPECT_EQ(erratum(Activation::kGelu, CUDNN_DATA_FLOAT, tf32), "");
  }
}

}  // namespace
}  // namespace convtime::conv
