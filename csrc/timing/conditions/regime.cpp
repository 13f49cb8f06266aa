#include "timing/conditions/regime.h"

#include <array>

#include "core/enum_names.h"

namespace convtime {
namespace {

constexpr std::array kRegimes = {Regime::kAuto, Regime::kAsIs, Regime::kBurst, Regime::kSustained};

}  // namespace

const char* to_string(Regime regime) {
  switch (regime) {
    case Regime::kAuto:
      return "auto";
    case Regime::kAsIs:
      return "as-is";
    case Regime::kBurst:
      return "burst";
    case Regime::kSustained:
      return "sustained";
  }
  return "unknown";
}

Regime regime_from_string(const std::string& name) {
  return enum_from_string(kRegimes, "regime", name);
}

}  // namespace convtime
