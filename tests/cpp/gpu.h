#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "timing/time_op.h"

// Skips a test where there is no GPU, and fails it where FAIL_WITHOUT_CUDA=1 says there must be
// one.
#define SKIP_WITHOUT_GPU()                                           \
  do {                                                               \
    if (!convtime::cuda_available()) {                               \
      const char* const must = std::getenv("FAIL_WITHOUT_CUDA");     \
      if (must != nullptr && std::strcmp(must, "1") == 0) {          \
        FAIL() << "FAIL_WITHOUT_CUDA=1 and there is no CUDA device"; \
      }                                                              \
      GTEST_SKIP() << "there is no CUDA device";                     \
    }                                                                \
  } while (false)

namespace convtime {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_GPU(); }
};

inline Timing time_on_gpu(Callable& callable, TimingOptions options = {}) {
  options.on_gpu = true;
  Callable* const candidates[] = {&callable};
  return time_candidates(candidates, options);
}

}  // namespace convtime
