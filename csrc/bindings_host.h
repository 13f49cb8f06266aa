#pragma once

#include <pybind11/pybind11.h>

#include <cmath>

#include "timing/judge/host_reading.h"

/// Convert NaN, which marks an unknown value, to None.
inline pybind11::object or_none(double value) {
  return std::isnan(value) ? pybind11::object(pybind11::none())
                           : pybind11::object(pybind11::float_(value));
}

/// Return a share of a reading with the fields of convtime.timing.host_reading.HostReading, except
/// the number of samples.
pybind11::dict reading_fields(const convtime::HostReading& reading, double share = 1);

/// Register the bindings that query the operating system about this process.
void bind_host(pybind11::module_& module);
