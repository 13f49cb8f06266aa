#include "timing/method_choice.h"

#include <gtest/gtest.h>

#include <vector>

namespace convtime {
namespace {

CandidateSamples calls_with(const std::vector<std::size_t>& activities) {
  CandidateSamples samples;
  for (const std::size_t count : activities) {
    samples.seconds.push_back(0);
    samples.activities.emplace_back(count);
  }
  return samples;
}

TEST(NoneIssuedWork, IsTrueOnlyWhereNoCandidateDid) {
  const CandidateSamples none = calls_with({0, 0});
  const CandidateSamples always = calls_with({1, 2});
  const CandidateSamples once = calls_with({0, 1});
  EXPECT_TRUE(none_issued_work(std::vector{none}));
  EXPECT_TRUE(none_issued_work(std::vector{none, none}));
  EXPECT_FALSE(none_issued_work(std::vector{once}));
  // One that leaves the device alone does not cost the others their times.
  EXPECT_FALSE(none_issued_work(std::vector{none, always}));
  EXPECT_FALSE(none_issued_work(std::vector{always, none}));
}

}  // namespace
}  // namespace convtime
