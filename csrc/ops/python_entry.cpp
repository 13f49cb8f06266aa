#include "ops/python_entry.h"

#include <torch/csrc/python_headers.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "ops/conv2d.h"

namespace convtime::ops {
namespace {

/// None where it is no plain whole number in 64 bits.
std::optional<c10::SymInt> read_number(PyObject* object) {
  if (!PyLong_CheckExact(object)) {
    return std::nullopt;
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 ? std::optional(c10::SymInt(static_cast<std::int64_t>(value)))
                       : std::nullopt;
}

/// One or two numbers of an argument.
class Pair {
 public:
  /// Whether the object is a plain number, or a plain tuple or list of one or two of them.
  bool read(PyObject* object) {
    if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
      size_ = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(object));
      if (size_ < 1 || size_ > values_.size()) {
        return false;
      }
      for (std::size_t i = 0; i < size_; ++i) {
        if (!set(i, PySequence_Fast_GET_ITEM(object, static_cast<Py_ssize_t>(i)))) {
          return false;
        }
      }
      return true;
    }
    size_ = 1;
    return set(0, object);
  }

  c10::SymIntArrayRef get() const { return {values_.data(), size_}; }

 private:
  bool set(std::size_t i, PyObject* object) {
    const std::optional<c10::SymInt> number = read_number(object);
    if (number.has_value()) {
      values_[i] = *number;
    }
    return number.has_value();
  }

  std::array<c10::SymInt, 2> values_;
  std::size_t size_ = 0;
};

PyObject* conv2d(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  constexpr Py_ssize_t kArguments = 8;
  Pair stride;
  Pair padding;
  Pair dilation;
  std::optional<c10::SymInt> groups;
  const bool plain = count == kArguments && THPVariable_CheckExact(args[0]) &&
                     THPVariable_CheckExact(args[1]) &&
                     (args[2] == Py_None || THPVariable_CheckExact(args[2])) &&
                     stride.read(args[3]) && padding.read(args[4]) && dilation.read(args[5]) &&
                     (groups = read_number(args[6])).has_value() &&
                     (args[7] == Py_None || PyUnicode_CheckExact(args[7])) &&
                     !at::impl::torch_function_mode_enabled();
  if (!plain) {
    return Py_NewRef(Py_NotImplemented);
  }
  std::optional<std::string_view> policy;
  if (args[7] != Py_None) {
    Py_ssize_t length = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(args[7], &length);
    if (text == nullptr) {
      throw python_error();
    }
    policy = std::string_view(text, static_cast<std::size_t>(length));
  }
  // Copied while the GIL is held: the first copy of a tensor that Python knows needs it.
  const at::Tensor input = THPVariable_Unpack(args[0]);
  const at::Tensor weight = THPVariable_Unpack(args[1]);
  const auto bias =
      args[2] == Py_None ? std::nullopt : std::optional<at::Tensor>(THPVariable_Unpack(args[2]));
  const at::Tensor output = [&] {
    const pybind11::gil_scoped_release no_gil;
    return conv2d_op().call(input, weight, bias, stride.get(), padding.get(), dilation.get(),
                            *groups, policy);
  }();
  return THPVariable_Wrap(output);
  END_HANDLE_TH_ERRORS
}

#ifdef CONVTIME_WITH_CUDA
using Floor = std::function<void()>;
constexpr const char* kFloorName = "convtime.execute_floor";

PyObject* call_floor(PyObject* capsule, PyObject* /*arguments*/) {
  HANDLE_TH_ERRORS (*static_cast<const Floor*>(PyCapsule_GetPointer(capsule, kFloorName)))();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* execute_floor(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  constexpr Py_ssize_t kArguments = 6;
  Pair stride;
  Pair padding;
  Pair dilation;
  TORCH_CHECK(count == kArguments && THPVariable_Check(args[0]) && THPVariable_Check(args[1]) &&
                  stride.read(args[2]) && padding.read(args[3]) && dilation.read(args[4]) &&
                  PyLong_CheckExact(args[5]),
              "execute_floor: takes input, weight, stride, padding, dilation and groups");
  const auto numbers = [](const Pair& pair) {
    const c10::SymIntArrayRef values = pair.get();
    return ConvParams::Numbers{values.front().expect_int(), values.back().expect_int()};
  };
  const ConvParams params{numbers(stride), numbers(padding), numbers(dilation),
                          read_number(args[5]).value_or(0).expect_int()};
  auto floor = std::make_unique<Floor>(
      cudnn_execute_only(THPVariable_Unpack(args[0]), THPVariable_Unpack(args[1]), params));
  THPObjectPtr capsule(PyCapsule_New(floor.get(), kFloorName, [](PyObject* object) {
    delete static_cast<Floor*>(PyCapsule_GetPointer(object, kFloorName));
  }));
  if (!capsule) {
    throw python_error();
  }
  (void)floor.release();  // the capsule's now
  static PyMethodDef method = {"floor", call_floor, METH_NOARGS, nullptr};
  return PyCFunction_New(&method, capsule.get());
  END_HANDLE_TH_ERRORS
}
#endif

/// What PyMethodDef takes for a function of METH_FASTCALL.
PyCFunction as_method(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace

PyMethodDef& conv2d_method() {
  static PyMethodDef method = {"conv2d", as_method(conv2d), METH_FASTCALL, nullptr};
  return method;
}

#ifdef CONVTIME_WITH_CUDA
PyMethodDef& execute_floor_method() {
  static PyMethodDef method = {"execute_floor", as_method(execute_floor), METH_FASTCALL, nullptr};
  return method;
}
#endif

}  // namespace convtime::ops
