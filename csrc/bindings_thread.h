#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <functional>
#include <utility>

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
