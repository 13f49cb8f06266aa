#include "conv/engine.h"

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "conv/activation.h"

namespace convtime::conv {
namespace {

using Knobs = std::vector<Knob>;

TEST(EngineTag, IsReadAsPlansHaveIt) {
  const EngineTag tag = parse_tag("ConvFwd_eng38_k2=8_k13=1");
  EXPECT_EQ(tag.pass, Pass::kFprop);
  EXPECT_EQ(tag.engine.index, 38);
  EXPECT_EQ(tag.engine.knobs, (Knobs{{2, 8}, {13, 1}}));
  EXPECT_EQ(parse_tag("ConvBwdData_eng0").pass, Pass::kDgrad);
  EXPECT_EQ(parse_tag("ConvBwdFilter_eng0_k5=-1").pass, Pass::kWgrad);
  EXPECT_EQ(parse_tag("ConvBwdFilter_eng0_k5=-1").engine.knobs, (Knobs{{5, -1}}));
}

TEST(EngineTag, HasTheNodesBehindTheConvolution) {
  const EngineTag tag = parse_tag("ConvFwd_ADD_ADD_RELU_FWD_eng37_k2=8");
  EXPECT_EQ(tag.pass, Pass::kFprop);
  EXPECT_EQ(tag.epilogue, "ADD_ADD_RELU_FWD_");
  EXPECT_EQ(tag.engine.index, 37);
  EXPECT_EQ(tag.engine.knobs, (Knobs{{2, 8}}));
  EXPECT_EQ(parse_tag("ConvFwd_eng37").epilogue, "");
}

TEST(Activation, IsReadAsItIsWritten) {
  for (const char* name : {"identity", "relu", "relu6", "leaky_relu", "gelu", "gelu_tanh", "silu",
                           "sigmoid", "tanh"}) {
    const std::optional<Activation> activation = parse_activation(name);
    ASSERT_TRUE(activation.has_value()) << name;
    EXPECT_STREQ(to_string(*activation), name);
    EXPECT_NE(activation_names().find(name), std::string::npos);
  }
  EXPECT_FALSE(parse_activation("ReLU").has_value());
  EXPECT_FALSE(parse_activation("").has_value());
}

// As the cuDNN frontend names them in a plan's tag.
TEST(EpilogueName, ListsTheNodes) {
  EXPECT_EQ(epilogue_name(true, true, Activation::kRelu), "ADD_ADD_RELU_FWD_");
  EXPECT_EQ(epilogue_name(false, true, Activation::kGeluTanh), "ADD_GELU_APPROX_TANH_FWD_");
  EXPECT_EQ(epilogue_name(false, false, Activation::kIdentity), "");
}

TEST(EngineTag, MayBeginWithTheEngine) {
  const EngineTag tag = parse_tag("eng5");
  EXPECT_EQ(tag.pass, std::nullopt);
  EXPECT_EQ(tag.engine.index, 5);
  EXPECT_EQ(tag.engine.knobs, Knobs{});
}

TEST(EngineTag, KeepsTheOrderOfKnobs) {
  for (const char* tag : {"eng0", "eng38_k2=8_k13=1", "eng38_k13=1_k2=8"}) {
    EXPECT_EQ(to_tag(parse_tag(tag).engine), tag);
  }
}

TEST(EngineTag, OfNothingKnownIsRefused) {
  for (const char* tag : {"",
                          "fastest",
                          "eng",
                          "eng-1",
                          "engine5",
                          "eng5_",
                          "eng5_k2",
                          "eng5_k2=",
                          "eng5_k=3",
                          "eng5_k-2=3",
                          "eng5 ",
                          "eng5_k2=8k3=1",
                          "eng5_k2=8_k2=8",
                          "eng99999999999999999999",
                          "ConvFwd",
                          "ConvFwd_",
                          "ConvFwd_ConvFwd_eng5",
                          "Conv_eng5",
                          "ADD_eng5",
                          "heuristic"}) {
    try {
      parse_tag(tag);
      ADD_FAILURE() << "took '" << tag << "'";
    } catch (const std::invalid_argument& error) {
      const std::string said = error.what();
      EXPECT_EQ(said.find("policy must be 'heuristic', 'benchmark' or the tag of"), 0U) << said;
      EXPECT_NE(said.find("got '" + std::string(tag) + "'"), std::string::npos) << said;
    }
  }
}

}  // namespace
}  // namespace convtime::conv
