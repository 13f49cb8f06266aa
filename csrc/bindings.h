#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "core/enum_names.h"
#include "timing/judge/host_reading.h"
#include "timing/judge/stop_rule.h"
#include "timing/trace/device_activity.h"

namespace convtime::bindings {

namespace py = pybind11;

// Add the bindings of one file each to the module.
void bind_conv(py::module_& module);
void bind_cupti(py::module_& module);
void bind_timing(py::module_& module);

/// Convert NaN, which marks an unknown value, to None.
inline py::object or_none(double value) {
  return std::isnan(value) ? py::object(py::none()) : py::object(py::float_(value));
}

/// The keyword arguments of a function with many: each is named once, where it is taken.
class Keywords {
 public:
  Keywords(const char* function, const py::kwargs& given)
      : function_(function), left_(given.attr("copy")()) {}

  template <typename Value>
  Value take(const char* name) {
    if (!left_.contains(name)) {
      throw py::type_error(std::string(function_) + "() needs the argument " + name);
    }
    return take<Value>(name, py::none());
  }

  template <typename Value>
  Value take(const char* name, const py::object& otherwise) {
    const py::object value = left_.attr("pop")(name, otherwise);
    try {
      return value.cast<Value>();
    } catch (const py::cast_error&) {
      throw py::type_error(std::string(function_) + "() does not take this " + name + ": " +
                           py::repr(value).cast<std::string>());
    }
  }

  /// Take the value of an enum by its name.
  template <typename Enum>
  Enum take_name(const char* name) {
    return enum_from_string<Enum>(name, take<std::string>(name));
  }

  /// Throw TypeError for arguments that were not taken.
  void finish() const {
    for (const auto& [name, value] : left_) {
      throw py::type_error(std::string(function_) + "() has no argument " +
                           name.cast<std::string>());
    }
  }

 private:
  const char* function_;
  py::dict left_;
};

/// Take the arguments of a stop rule.
StopRule read_stop_rule(Keywords& keywords);

/// Return the fields of convtime.recording.recording.Launch.
py::dict launch_fields(const ActivityInfo& info);

/// Return a share of a reading with the fields of convtime.timing.host_reading.HostReading, except
/// the number of samples.
py::dict reading_fields(const HostReading& reading, double share = 1);

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

/// Releases the GIL during its lifetime.
class WithoutInterpreterLock {
 public:
  WithoutInterpreterLock() : state_(PyEval_SaveThread()) {}
  ~WithoutInterpreterLock() {
    hanging_at_exit([this] { PyEval_RestoreThread(state_); });
  }
  WithoutInterpreterLock(const WithoutInterpreterLock&) = delete;
  WithoutInterpreterLock& operator=(const WithoutInterpreterLock&) = delete;

 private:
  PyThreadState* state_;
};

/// Run a blocking function with the GIL released.
inline void without_interpreter_lock(const std::function<void()>& blocking) {
  const WithoutInterpreterLock unlocked;
  blocking();
}

}  // namespace convtime::bindings
