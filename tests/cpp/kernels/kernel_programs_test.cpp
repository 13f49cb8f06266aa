#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>

#include "kernels/conv_epilogue/conv_epilogue.h"
#include "kernels/mlp/mlp.h"
#include "kernels/mlp/wide_kernels.h"
#include "kernels/relu_max_pool2d/choice.h"
#include "program/nvrtc.h"

// Kernels of drawn problems are compiled for all GPUs: without one of each, this is all that shows
// that they can be. Other seeds draw others: --gtest_random_seed=N.

namespace convtime {
namespace {

constexpr std::array kCapabilities = {75, 80, 86, 89, 90, 100, 103, 120};
constexpr std::array kTypes = {ElementType::kHalf, ElementType::kBFloat16, ElementType::kFloat,
                               ElementType::kDouble};

class DrawnPrograms : public testing::Test {
 protected:
  std::int64_t number(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution(least, most)(random_);
  }
  bool coin() { return number(0, 1) == 1; }
  template <typename List>
  auto one_of(const List& list) {
    return list[static_cast<std::size_t>(number(0, static_cast<std::int64_t>(list.size()) - 1))];
  }

  /// Compile a program for a GPU, which is another one each time.
  void compile(const ProgramSource& source, int least_capability = 0) {
    int capability = 0;
    do {
      capability = kCapabilities[next_++ % kCapabilities.size()];
    } while (capability < least_capability);
    compile_for(source, capability);
  }

  void compile_for(const ProgramSource& source, int capability) {
    const Nvrtc& nvrtc = Nvrtc::instance();
    const Target target = nvrtc.target_for(capability);
    if (!target.is_machine_code || target.capability != capability) {
      return;  // this NVRTC does not know the GPU
    }
    try {
      EXPECT_FALSE(nvrtc.compile(source, target).code.empty());
    } catch (const CompileError& error) {
      ADD_FAILURE() << "seed " << seed_ << ": " << error.what();
    }
  }

 private:
  unsigned seed_ = static_cast<unsigned>(testing::UnitTest::GetInstance()->random_seed());
  std::mt19937 random_{seed_};
  std::size_t next_ = 0;
};

TEST_F(DrawnPrograms, OfPooling) {
  const auto axis = [&](std::int64_t kernel) {
    const auto dilation = number(1, 4) == 1 ? number(2, 3) : 1;
    const std::int64_t stride = number(1, 3);
    const std::int64_t padding = number(0, kernel / 2);
    const std::int64_t input = (kernel - 1) * dilation + 1 + number(0, 60);
    const std::int64_t output = (input + 2 * padding - (kernel - 1) * dilation - 1) / stride + 1;
    return PoolAxis{input,
                    output,
                    static_cast<int>(kernel),
                    static_cast<int>(stride),
                    static_cast<int>(padding),
                    static_cast<int>(dilation)};
  };
  for (int i = 0; i < 12; ++i) {
    const std::int64_t kernel = number(1, 9);
    const PoolGeometry geometry{number(1, 64), number(1, 70), axis(kernel),
                                axis(number(1, 4) == 1 ? number(1, 13) : kernel), coin()};
    const ElementType type = one_of(kTypes);
    const int aligned = 1 << number(0, 3);
    const auto forward = pool::choose_forward(type, geometry, coin(), aligned);
    const auto backward = pool::choose_backward(type, geometry, aligned);
    for (const auto& choice : {forward, backward, pool::choose_indices(geometry)}) {
      compile(pool::source_of(choice.value()));
      compile(pool::source_of(pool::without_sizes(choice.value())));
    }
  }
}

TEST_F(DrawnPrograms, OfEpilogues) {
  std::array<double, 4> memory{};  // of which only the address counts
  for (int i = 0; i < 12; ++i) {
    const ElementType type = one_of(kTypes);
    const std::int64_t channels = number(1, 130);
    const std::int64_t plane = number(1, 30) * number(1, 30);
    const std::int64_t batch = number(1, 8);
    const ConvEpilogue epilogue{.y = memory.data(),
                                .z = coin() ? memory.data() : nullptr,
                                .b = coin() ? memory.data() : nullptr,
                                .alpha = 1,
                                .activation = static_cast<Activation>(number(0, 8)),
                                .negative_slope = 0.1,
                                .count = batch * channels * plane,
                                .channels = channels,
                                .plane = plane,
                                .channels_last = coin()};
    for (const ProgramSource& source : conv_epilogue_sources(type, epilogue)) {
      compile(source);
    }
    const std::int64_t pitch = channels + number(0, 8);
    for (const ProgramSource& source :
         conv_epilogue_from_channels_last_sources(type, memory.data(), pitch, epilogue)) {
      compile(source);
    }
    for (const ProgramSource& source :
         to_channels_last_sources(type, memory.data(), memory.data(), batch, channels, plane)) {
      compile(source);
    }
  }
}

TEST_F(DrawnPrograms, OfNets) {
  const auto net_of = [&](ElementType type, std::int64_t width) {
    return MlpNet{.type = type,
                  .activation = coin() ? MlpActivation::kRelu : MlpActivation::kTanh,
                  .width = static_cast<int>(width),
                  .layers = static_cast<int>(number(1, 6)),
                  .inputs = static_cast<int>(number(1, width)),
                  .outputs = static_cast<int>(number(1, width)),
                  .bias = false,
                  .tf32 = false};
  };
  for (int i = 0; i < 3; ++i) {
    const auto loss = coin() ? MlpLoss::kMse : MlpLoss::kCrossEntropy;
    const auto optimizer = static_cast<MlpOptimizer>(number(0, 2));
    const int capability = one_of(std::array{80, 86, 89, 90, 100, 103, 120});
    const MlpNet on_chip =
        net_of(coin() ? ElementType::kHalf : ElementType::kBFloat16, 16 << number(0, 3));
    for (const ProgramSource& source :
         mlp_training_programs(on_chip, loss, optimizer, coin(), capability)) {
      compile_for(source, capability);
    }
    MlpNet wide =
        net_of(one_of(std::array{ElementType::kHalf, ElementType::kBFloat16, ElementType::kFloat}),
               64 * number(3, 40));
    wide.bias = coin();
    wide.tf32 = coin();
    for (const ProgramSource& source : mlp::wide_programs(wide, wide.type, loss, optimizer)) {
      compile(source);
    }
  }
}

}  // namespace
}  // namespace convtime
