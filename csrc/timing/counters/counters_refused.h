#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "core/export.h"

namespace convtime {

/// CUPTI refused a call, cannot count something, or cannot be used in this process.
class CONVTIME_API CountersRefused : public std::runtime_error {
 public:
  CountersRefused(std::string result, const std::string& text)
      : std::runtime_error(text), result_(std::move(result)) {}

  /// The error if CUPTI does not count some of a call's kernels separately.
  static CountersRefused uncounted(const std::string& seen) {
    return {"kernels uncounted",
            seen +
                ", and CUPTI's range profiler does not count the nodes of a CUDA graph one by one;"
                " count the call that was captured, not the graph's replay"};
  }

  /// The name of CUPTI's result, for example "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES". "no CUPTI" or
  /// "kernels uncounted" if the message is sufficient.
  const std::string& result() const { return result_; }

 private:
  std::string result_;
};

}  // namespace convtime
