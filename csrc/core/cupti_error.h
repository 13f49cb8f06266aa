#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "core/export.h"

namespace convtime {

/// CUPTI refused a call, cannot count something, or cannot be used in this process.
class CONVTIME_API CuptiError : public std::runtime_error {
 public:
  CuptiError(std::string result, const std::string& text)
      : std::runtime_error(text), result_(std::move(result)) {}

  /// The name of CUPTI's result, for example "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES". "no CUPTI" or
  /// "kernels uncounted" if the message is sufficient.
  const std::string& result() const { return result_; }

 private:
  std::string result_;
};

}  // namespace convtime
