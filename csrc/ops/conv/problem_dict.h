#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>

#include "conv/problem.h"

namespace convtime::ops {

// A problem as Python's dict, with the names of convtime.conv.PlanChoice.

pybind11::tuple to_tuple(std::span<const std::int64_t> values);

pybind11::dict to_dict(const conv::Problem& problem);

/// Inverse of to_dict(). Throws std::invalid_argument for a value that no problem has, and
/// pybind11's errors for a missing name or another type.
conv::Problem problem_of(const pybind11::dict& dict);

}  // namespace convtime::ops
