#include "conv/engine.h"

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "helpers.h"

namespace convtime::conv {
namespace {

using Knobs = std::vector<Knob>;

TEST(EngineTag, IsReadAsPlansHaveIt) {
  const struct {
    const char* tag;
    std::optional<Pass> pass;
    const char* epilogue;
    int index;
    Knobs knobs;
  } read[] = {{"ConvFwd_eng38_k2=8_k13=1", Pass::kFprop, "", 38, {{2, 8}, {13, 1}}},
              {"ConvBwdData_eng0", Pass::kDgrad, "", 0, {}},
              {"ConvBwdFilter_eng0_k5=-1", Pass::kWgrad, "", 0, {{5, -1}}},
              {"ConvFwd_ADD_RELU_FWD_eng37_k2=8", Pass::kFprop, "ADD_RELU_FWD_", 37, {{2, 8}}},
              {"eng5", std::nullopt, "", 5, {}}};
  for (const auto& [text, pass, epilogue, index, knobs] : read) {
    const EngineTag tag = parse_tag(text);
    EXPECT_EQ(tag.pass, pass) << text;
    EXPECT_EQ(tag.epilogue, epilogue) << text;
    EXPECT_EQ(tag.engine.index, index) << text;
    EXPECT_EQ(tag.engine.knobs, knobs) << text;
  }
  for (const char* tag : {"eng0", "eng38_k2=8_k13=1", "eng38_k13=1_k2=8"}) {  // in their order
    EXPECT_EQ(to_tag(parse_tag(tag).engine), tag);
  }
}

TEST(Activation, IsReadAsItIsWritten) {
  for (const char* name : {"identity", "relu", "relu6", "leaky_relu", "gelu", "gelu_tanh", "silu",
                           "sigmoid", "tanh"}) {
    const std::optional<Activation> activation = find_enum<Activation>(name);
    ASSERT_TRUE(activation.has_value()) << name;
    EXPECT_STREQ(to_string(*activation), name);
    EXPECT_NE(quoted_names<Activation>().find(name), std::string::npos);
  }
  EXPECT_FALSE(find_enum<Activation>("ReLU").has_value());
  EXPECT_FALSE(find_enum<Activation>("").has_value());
}

// As the cuDNN frontend names them in a plan's tag.
TEST(EpilogueName, ListsTheNodes) {
  EXPECT_EQ(epilogue_name(true, true, Activation::kRelu), "ADD_ADD_RELU_FWD_");
  EXPECT_EQ(epilogue_name(false, true, Activation::kGeluTanh), "ADD_GELU_APPROX_TANH_FWD_");
  EXPECT_EQ(epilogue_name(false, false, Activation::kIdentity), "");
}

TEST(EngineTag, OfNothingKnownIsRefused) {
  const std::string tags[] = {// clang-format off
      "", "fastest", "eng", "eng-1", "engine5", "eng5_", "eng5_k2", "eng5_k2=", "eng5_k=3",
      "eng5_k-2=3", "eng5 ", "eng5_k2=8k3=1", "eng5_k2=8_k2=8", "eng99999999999999999999",
      "ConvFwd", "ConvFwd_", "ConvFwd_ConvFwd_eng5", "Conv_eng5", "ADD_eng5", "heuristic"};
  // clang-format on
  for (const std::string& tag : tags) {
    const std::string said = error_of<std::invalid_argument>([&] { parse_tag(tag); });
    EXPECT_EQ(said.find("policy must be 'heuristic', 'benchmark' or the tag of"), 0U) << said;
    EXPECT_TRUE(contains(said, "got '" + tag + "'"));
  }
}

}  // namespace
}  // namespace convtime::conv
