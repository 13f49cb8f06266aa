#pragma once

#include <pybind11/pybind11.h>

#include <cmath>

#include "timing/judge/host_reading.h"

/// NaN, which says that a number is not known, as None.
inline pybind11::object or_none(double value) {
  return std::isnan(value) ? pybind11::object(pybind11::none())
                           : pybind11::object(pybind11::float_(value));
}

/// A share of a reading, with the fields of convtime.results.host_reading.HostReading, but for the
/// number of samples.
pybind11::dict reading_fields(const convtime::HostReading& reading, double share = 1);

/// Registers what asks the operating system about this process.
void bind_host(pybind11::module_& module);
