#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "core/export.h"

namespace convtime {

/// CUPTI refused something, does not count it, or cannot be used in this process.
class CONVTIME_API CountersRefused : public std::runtime_error {
 public:
  CountersRefused(std::string result, const std::string& text)
      : std::runtime_error(text), result_(std::move(result)) {}

  /// What it refuses where some of a call's kernels are not counted by themselves.
  static CountersRefused uncounted(const std::string& seen) {
    return {"kernels uncounted",
            seen +
                ", and CUPTI's range profiler does not count the nodes of a CUDA graph one by one;"
                " count the call that was captured, not the graph's replay"};
  }

  /// The name of CUPTI's result, for example "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"; or "no CUPTI",
  /// or "kernels uncounted", where the text says it all.
  const std::string& result() const { return result_; }

 private:
  std::string result_;
};

}  // namespace convtime
