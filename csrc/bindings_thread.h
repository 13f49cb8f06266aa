#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <functional>
#include <utility>

/// Whether the interpreter is at its exit, when no other thread gets its lock any more.
inline bool interpreter_ends() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

/// Runs something that may ask for the interpreter's lock. At its exit, an interpreter before 3.14
/// ends a daemon thread that does so by unwinding its stack: destructors would then touch objects
/// without the lock, and those that must not throw would abort the process. As 3.14 does, this lets
/// such a thread wait for the end of the process.
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

/// Runs something that blocks, and lets other threads have the interpreter's lock meanwhile.
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
