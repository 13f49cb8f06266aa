#pragma once

#include <string>

#include "conv/selection.h"

namespace convtime::conv {

inline PlanChoice choice_of(const std::string& tag) {
  PlanChoice choice;
  choice.tag = tag;
  return choice;
}

}  // namespace convtime::conv
