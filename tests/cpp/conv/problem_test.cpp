#include "conv/problem.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace convtime::conv {
namespace {

using Sizes = std::vector<std::int64_t>;

const void* at_address(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }

// A 1 x 1 kernel may have any strides in its last dimensions; cuDNN wants a dense tensor's.
TEST(Describe, GivesDimensionsOfSizeOneDenseStrides) {
  const struct {
    Sizes sizes, strides;
    bool channels_last;
    Sizes expected;
  } tensors[] = {{{2, 3, 4, 5}, {100, 30, 6, 1}, false, {100, 30, 6, 1}},
                 {{8, 3, 1, 1}, {3, 1, 77, 99}, false, {3, 1, 1, 1}},
                 {{8, 3, 1, 1}, {3, 1, 77, 99}, true, {3, 1, 3, 3}},
                 {{2, 3, 1, 4, 5}, {60, 1, 999, 15, 3}, true, {60, 1, 60, 15, 3}}};
  for (auto [sizes, strides, channels_last, expected] : tensors) {
    const TensorShape shape = describe(sizes, strides, at_address(64), channels_last);
    sizes.resize(kMaxRank);
    expected.resize(kMaxRank);
    EXPECT_EQ(Sizes(shape.sizes.begin(), shape.sizes.end()), sizes);
    EXPECT_EQ(Sizes(shape.strides.begin(), shape.strides.end()), expected);
  }
}

TEST(Describe, FindsTheAlignmentUpTo32Bytes) {
  const auto alignment = [](std::uintptr_t address) {
    return describe(Sizes{1, 1, 1, 1}, Sizes{1, 1, 1, 1}, at_address(address), false).alignment;
  };
  for (const auto& [address, expected] :
       {std::pair{0x1001, 1}, {0x1002, 2}, {0x1008, 8}, {0x1010, 16}, {0x1020, 32}, {0x1000, 32}}) {
    EXPECT_EQ(alignment(static_cast<std::uintptr_t>(address)), expected);
  }
}

TEST(Problem, DiffersInEverythingThatAPlanDependsOn) {
  const Problem base;
  const ProblemHash hash;
  std::vector<Problem> others(17, base);
  others[0].pass = Pass::kDgrad;
  others[1].device = 1;
  others[2].rank = 4;
  others[3].data_type = CUDNN_DATA_HALF;
  others[4].x.sizes[0] = 1;
  others[5].w.strides[1] = 1;
  others[6].y.alignment = 16;
  others[7].padding[0] = 1;
  others[8].stride[1] = 1;
  others[9].dilation[2] = 1;
  others[10].deterministic = true;
  others[11].allow_tf32 = false;
  others[12].epilogue.z = TensorShape{.sizes = {1}, .strides = {}, .alignment = 16};
  others[13].epilogue.b = TensorShape{.sizes = {1}, .strides = {}, .alignment = 16};
  others[14].epilogue.alpha = 2;
  others[15].epilogue.activation = Activation::kRelu;
  others[16].epilogue.negative_slope = 0.5;
  for (std::size_t i = 0; i < others.size(); ++i) {
    EXPECT_FALSE(others[i] == base) << i;
    EXPECT_NE(hash(others[i]), hash(base)) << i;
  }
  EXPECT_EQ(hash(Problem{}), hash(base));
}

}  // namespace
}  // namespace convtime::conv
