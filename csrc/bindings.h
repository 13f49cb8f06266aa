#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cmath>
#include <functional>
#include <utility>

#include "timing/judge/host_reading.h"

// Add the bindings of one file each to the module.
void bind_conv(pybind11::module_& module);
void bind_counters(pybind11::module_& module);
void bind_host(pybind11::module_& module);
void bind_trace(pybind11::module_& module);

/// Convert NaN, which marks an unknown value, to None.
inline pybind11::object or_none(double value) {
  return std::isnan(value) ? pybind11::object(pybind11::none())
                           : pybind11::object(pybind11::float_(value));
}

/// Return a share of a reading with the fields of convtime.timing.host_reading.HostReading, except
/// the number of samples.
pybind11::dict reading_fields(const convtime::HostReading& reading, double share = 1);

/// Return whether the interpreter is finalizing; other threads can then no longer acquire the GIL.
inline bool interpreter_ends() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

/// Run a function that may acquire the GIL. While finalizing, an interpreter before 3.14 ends a
/// daemon thread that acquires the GIL by unwinding its stack. Destructors would then touch objects
/// without the GIL, and noexcept destructors would abort the process. This function lets such a
/// thread hang until the process ends, as Python 3.14 does.
template <typename Function>
decltype(auto) hanging_at_exit(Function&& function) {
  try {
    return std::forward<Function>(function)();
  } catch (abi::__forced_unwind&) {
    if (!interpreter_ends()) {
      throw;
    }
    for (;;) {
      pause();
    }
  }
}

/// Run a blocking function with the GIL released.
inline void without_interpreter_lock(const std::function<void()>& blocking) {
  PyThreadState* const state = PyEval_SaveThread();
  const auto take_back = [state] { hanging_at_exit([state] { PyEval_RestoreThread(state); }); };
  try {
    blocking();
  } catch (...) {
    take_back();
    throw;
  }
  take_back();
}
