#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "timing/callable.h"
#include "timing/conditions/cache_flush.h"
#include "timing/host_hooks.h"

namespace convtime::bindings {

// Python calls for the timing layer, with their setup and cleanup.

/// Take ownership of a Python call's result, or throw the exception that it raised.
inline py::object checked(PyObject* result) {
  if (result == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(result);
}

/// Drop a reference here rather than in a destructor, because finalizers may acquire the GIL.
inline void drop(py::object object) {
  PyObject* const owned = object.release().ptr();
  hanging_at_exit([owned] { Py_XDECREF(owned); });
}

/// Throw TypeError if the first result represents deferred work.
inline void refuse_deferred_work(const py::object& result) {
  PyObject* const object = result.ptr();
  const PyAsyncMethods* const methods = Py_TYPE(object)->tp_as_async;
  const bool awaited = methods != nullptr && methods->am_await != nullptr;
  const bool iterated = PyGen_Check(object) || PyAsyncGen_CheckExact(object);
  if (!awaited && !iterated) {
    return;
  }
  if (PyCoro_CheckExact(object)) {  // otherwise Python warns that it was never awaited
    drop(checked(PyObject_CallMethod(object, "close", nullptr)));
  }
  const std::string type = Py_TYPE(object)->tp_name;
  throw py::type_error(
      "the call returned an object of type " + type + ", which does its work only when it is " +
      (awaited
           ? "awaited; call asyncio.run() within the function that is timed"
           : "iterated over; iterate over it within the function that is timed, as list() does"));
}

/// A Python callable whose arguments are laid out once, which makes each call one vectorcall.
class PythonCallable final : public Callable {
 public:
  /// `blocks_of` is None or returns (address, bytes) for each memory block of a result.
  PythonCallable(py::object function, const py::tuple& args, const py::dict& kwargs,
                 py::object setup, py::object blocks_of)
      : function_(std::move(function)), setup_(std::move(setup)), blocks_of_(std::move(blocks_of)) {
    for (const py::handle arg : args) {
      values_.push_back(py::reinterpret_borrow<py::object>(arg));
    }
    positional_ = values_.size();
    py::list names;
    for (const auto& [name, value] : kwargs) {
      names.append(name);
      values_.push_back(py::reinterpret_borrow<py::object>(value));
    }
    if (!names.empty()) {
      names_ = py::tuple(names);
    }
    for (const py::object& value : values_) {
      pointers_.push_back(value.ptr());
    }
  }

  void prepare() override {
    if (!setup_.is_none()) {
      PyObject* const ignored = hanging_at_exit([&] { return PyObject_CallNoArgs(setup_.ptr()); });
      drop(checked(ignored));
    }
  }

  bool prepares_work() const override { return !setup_.is_none(); }

  void call() override {
    py::object result = checked(hanging_at_exit([&] {
      return PyObject_Vectorcall(function_.ptr(), pointers_.data(), positional_, names_.ptr());
    }));
    if (!called_) {
      called_ = true;
      refuse_deferred_work(result);
    }
    // A result that something else owns, such as None, is dropped at once: nothing is destroyed.
    // Where in memory it was kept made a short call up to a fifth slower.
    if (blocks_of_.is_none() && Py_REFCNT(result.ptr()) > 1) {
      drop(std::move(result));
    } else {
      results_.push_back(std::move(result));
    }
  }

  void discard_result() override {
    while (!results_.empty()) {
      drop(std::move(results_.back()));
      results_.pop_back();
    }
  }

  std::vector<MemoryBlock> result_blocks() override {
    std::vector<MemoryBlock> blocks;
    if (!blocks_of_.is_none()) {
      const py::object found = checked(hanging_at_exit(
          [&] { return PyObject_CallOneArg(blocks_of_.ptr(), results_.back().ptr()); }));
      for (const auto& [address, bytes] :
           found.cast<std::vector<std::pair<std::uintptr_t, std::size_t>>>()) {
        blocks.push_back({address, bytes});
      }
    }
    return blocks;
  }

 private:
  py::object function_;
  py::object setup_;                 // or None
  py::object blocks_of_;             // or None
  std::vector<py::object> values_;   // positional arguments first, then those in names_
  std::vector<PyObject*> pointers_;  // pointers to values_
  std::size_t positional_ = 0;
  py::object names_;  // tuple, or null without keyword arguments
  bool called_ = false;
  std::vector<py::object> results_;  // results of the calls since the last discard_result()
};

inline HostHooks python_hooks() {
  HostHooks hooks;
  hooks.wait = without_interpreter_lock;
  hooks.poll = [] {
    if (hanging_at_exit(PyErr_CheckSignals) != 0) {
      throw py::error_already_set();
    }
  };
  return hooks;
}

/// Rethrow the exception nested in `error` if it must end more than the timing (KeyboardInterrupt,
/// SystemExit).
inline void rethrow_interrupt(const std::exception& error) {
  try {
    std::rethrow_if_nested(error);
  } catch (const py::error_already_set& cause) {
    if (!cause.matches(PyExc_Exception)) {
      throw;
    }
  } catch (const std::exception&) {
  }
}

using CallOfPython = std::tuple<py::object, py::tuple, py::dict, py::object>;

inline std::unique_ptr<Callable> make_callable(const CallOfPython& described,
                                               const py::object& blocks_of) {
  const auto& [function, args, kwargs, setup] = described;
  return std::make_unique<PythonCallable>(function, args, kwargs, setup, blocks_of);
}

using FlushBuffers =
    std::vector<std::tuple<std::uintptr_t, std::size_t, int, std::uintptr_t, bool>>;

inline std::vector<FlushBuffer> flush_buffers(const FlushBuffers& described) {
  std::vector<FlushBuffer> buffers;
  for (const auto& [data, bytes, device, stream, clean] : described) {
    buffers.push_back({reinterpret_cast<void*>(data), bytes, device,
                       reinterpret_cast<void*>(stream), clean ? L2Lines::kClean : L2Lines::kDirty});
  }
  return buffers;
}

}  // namespace convtime::bindings
