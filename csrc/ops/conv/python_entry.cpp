#include "ops/conv/python_entry.h"

#include <torch/csrc/python_headers.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/DimVector.h>
#include <ATen/ops/constant_pad_nd.h>
#include <pybind11/gil_safe_call_once.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "ops/conv/backward_call.h"
#include "ops/conv/convolutions.h"
#include "ops/conv/epilogue.h"

namespace convtime::ops {
namespace {

/// Return std::nullopt unless the object is a plain int that fits in 64 bits.
std::optional<c10::SymInt> read_number(PyObject* object) {
  if (!PyLong_CheckExact(object)) {
    return std::nullopt;
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 ? std::optional(c10::SymInt(static_cast<std::int64_t>(value)))
                       : std::nullopt;
}

/// An argument with up to three integers.
class Numbers {
 public:
  /// Return whether the object is a plain int, or a plain tuple or list of one to three ints.
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

  void push_back(std::int64_t value) { values_[size_++] = value; }

  c10::SymIntArrayRef get() const { return {values_.data(), size_}; }

 private:
  bool set(std::size_t i, PyObject* object) {
    const std::optional<c10::SymInt> number = read_number(object);
    if (number.has_value()) {
      values_[i] = *number;
    }
    return number.has_value();
  }

  std::array<c10::SymInt, 3> values_;
  std::size_t size_ = 0;
};

/// Padding as PyTorch accepts it: integers or a string.
struct Padding {
  Numbers numbers;
  /// The zeros that padding "same" appends to the input if it must be asymmetric, in
  /// constant_pad_nd's order; empty if none are needed.
  at::DimVector surplus;

  /// Return whether the object is plain integers, or a string that the other arguments resolve to
  /// plain integers.
  bool read(PyObject* object, const at::Tensor& weight, const Numbers& stride,
            const Numbers& dilation, std::size_t spatial) {
    if (!PyUnicode_CheckExact(object)) {
      return numbers.read(object);
    }
    if (PyUnicode_CompareWithASCIIString(object, "valid") == 0) {
      numbers.push_back(0);
      return true;
    }
    return PyUnicode_CompareWithASCIIString(object, "same") == 0 &&
           read_same(weight, stride.get(), dilation.get(), spatial);
  }

 private:
  bool read_same(const at::Tensor& weight, c10::SymIntArrayRef stride, c10::SymIntArrayRef dilation,
                 std::size_t spatial) {
    const bool by_one = std::all_of(stride.begin(), stride.end(),
                                    [](const c10::SymInt& step) { return step.expect_int() == 1; });
    if (!by_one || (dilation.size() != 1 && dilation.size() != spatial) ||
        weight.unsafeGetTensorImpl()->has_symbolic_sizes_strides() ||
        weight.dim() != static_cast<std::int64_t>(spatial) + 2) {
      return false;
    }
    at::DimVector ends;
    for (std::size_t i = 0; i < spatial; ++i) {
      const std::int64_t gap = dilation[dilation.size() == 1 ? 0 : i].expect_int();
      const std::int64_t total = gap * (weight.size(static_cast<std::int64_t>(i) + 2) - 1);
      if (total < 0) {
        return false;
      }
      numbers.push_back(total / 2);
      ends.push_back(total % 2);
    }
    if (std::any_of(ends.begin(), ends.end(), [](std::int64_t zeros) { return zeros > 0; })) {
      // The last dimension comes first, and its start before its end.
      for (auto zeros = ends.rbegin(); zeros != ends.rend(); ++zeros) {
        surplus.push_back(0);
        surplus.push_back(*zeros);
      }
    }
    return true;
  }
};

/// Return whether an active torch function mode may need to see the call.
/// torch.set_default_device's mode does not: it only affects factory functions.
bool is_overridden() {
  if (!at::impl::torch_function_mode_enabled()) {
    return false;
  }
  PYBIND11_CONSTINIT static pybind11::gil_safe_call_once_and_store<pybind11::object> device_context;
  const pybind11::object& device_mode =
      device_context
          .call_once_and_store_result(
              [] { return pybind11::module_::import("torch.utils._device").attr("DeviceContext"); })
          .get_stored();
  for (std::int64_t i = 0; i < at::impl::PythonTorchFunctionTLS::stack_len(); ++i) {
    PyObject* const mode =
        at::impl::PythonTorchFunctionTLS::get_stack_at(i)->ptr(getPyInterpreter());
    if (!pybind11::type::of(mode).is(device_mode)) {
      return true;
    }
  }
  return false;
}

bool is_none_or(bool (*check)(PyObject*), PyObject* object) {
  return object == Py_None || check(object);
}

bool is_plain_tensor(PyObject* object) { return THPVariable_CheckExact(object); }

bool is_plain_text(PyObject* object) { return PyUnicode_CheckExact(object); }

std::optional<double> read_real(PyObject* object) {
  if (PyFloat_CheckExact(object)) {
    return PyFloat_AS_DOUBLE(object);
  }
  const std::optional<c10::SymInt> number = read_number(object);
  return number.has_value() ? std::optional(static_cast<double>(number->expect_int()))
                            : std::nullopt;
}

/// The result is valid as long as the object.
std::string_view text_of(PyObject* object) {
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object, &length);
  if (text == nullptr) {
    throw python_error();
  }
  return {text, static_cast<std::size_t>(length)};
}

std::optional<std::string_view> text_or_none(PyObject* object) {
  return object == Py_None ? std::nullopt : std::optional(text_of(object));
}

/// Return a copy. The first copy of a tensor that Python knows needs the GIL.
std::optional<at::Tensor> tensor_or_none(PyObject* object) {
  return object == Py_None ? std::nullopt : std::optional<at::Tensor>(THPVariable_Unpack(object));
}

at::Tensor pad_end(const at::Tensor& input, const Padding& padding) {
  return padding.surplus.empty() ? input : at::constant_pad_nd(input, padding.surplus);
}

/// The positions of a function's arguments after input, weight and bias.
struct Positions {
  Py_ssize_t stride;
  Py_ssize_t padding;
  Py_ssize_t output_padding;  ///< -1: the function has none
  Py_ssize_t dilation;
  Py_ssize_t groups;
  Py_ssize_t policy;  ///< the last argument
};

constexpr Positions kConvPositions = {3, 4, -1, 5, 6, 7};
constexpr Positions kConvTransposePositions = {3, 4, 5, 7, 6, 8};
/// `other`, `alpha`, `activation` and `negative_slope` are at 7 to 10.
constexpr Positions kEpiloguePositions = {3, 4, -1, 5, 6, 11};

/// The arguments that all functions have, except the tensors and the policy.
struct ConvArguments {
  Numbers stride;
  Padding padding;
  Numbers output_padding;
  Numbers dilation;
  std::optional<c10::SymInt> groups;

  /// Return whether all arguments are plain, and the tensors and the policy, too.
  template <const ConvOp& kOp, const Positions& kAt>
  bool read(PyObject* const* args, Py_ssize_t count) {
    const bool plain = count == kAt.policy + 1 && is_plain_tensor(args[0]) &&
                       is_plain_tensor(args[1]) && is_none_or(is_plain_tensor, args[2]) &&
                       stride.read(args[kAt.stride]) && dilation.read(args[kAt.dilation]) &&
                       (groups = read_number(args[kAt.groups])).has_value() &&
                       is_none_or(is_plain_text, args[kAt.policy]) && !is_overridden();
    if (!plain) {
      return false;
    }
    if constexpr (kOp.transposed) {
      return padding.numbers.read(args[kAt.padding]) &&
             output_padding.read(args[kAt.output_padding]);
    }
    return padding.read(args[kAt.padding], THPVariable_Unpack(args[1]), stride, dilation,
                        kOp.spatial);
  }
};

/// Call the function with the GIL released, and return its result.
template <typename Function>
PyObject* without_gil(const Function& function) {
  const at::Tensor output = [&] {
    const pybind11::gil_scoped_release no_gil;
    return function();
  }();
  return THPVariable_Wrap(output);
}

template <const ConvOp& kOp, const Positions& kAt>
PyObject* convolve(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  ConvArguments given;
  if (!given.read<kOp, kAt>(args, count)) {
    return Py_NewRef(Py_NotImplemented);
  }
  const std::optional<std::string_view> policy = text_or_none(args[kAt.policy]);
  const at::Tensor input = THPVariable_Unpack(args[0]);
  const at::Tensor weight = THPVariable_Unpack(args[1]);
  const std::optional<at::Tensor> bias = tensor_or_none(args[2]);
  return without_gil([&] {
    return dispatch({kOp, pad_end(input, given.padding), weight, bias, given.stride.get(),
                     given.padding.numbers.get(), given.output_padding.get(), given.dilation.get(),
                     *given.groups, policy});
  });
  END_HANDLE_TH_ERRORS
}

template <const ConvOp& kOp>
PyObject* convolve_with_epilogue(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  ConvArguments given;
  std::optional<double> alpha;
  std::optional<double> negative_slope;
  const bool plain =
      given.read<kOp, kEpiloguePositions>(args, count) &&
      THPVariable_Unpack(args[1]).dim() == static_cast<std::int64_t>(kOp.spatial) + 2 &&
      is_none_or(is_plain_tensor, args[7]) && (alpha = read_real(args[8])).has_value() &&
      is_plain_text(args[9]) && (negative_slope = read_real(args[10])).has_value();
  if (!plain) {
    return Py_NewRef(Py_NotImplemented);
  }
  const std::string_view activation = text_of(args[9]);
  const std::optional<std::string_view> policy = text_or_none(args[kEpiloguePositions.policy]);
  const at::Tensor input = THPVariable_Unpack(args[0]);
  const at::Tensor weight = THPVariable_Unpack(args[1]);
  const std::optional<at::Tensor> bias = tensor_or_none(args[2]);
  const std::optional<at::Tensor> other = tensor_or_none(args[7]);
  return without_gil([&] {
    return dispatch({pad_end(input, given.padding), weight, bias, other, given.stride.get(),
                     given.padding.numbers.get(), given.dilation.get(), *given.groups, activation,
                     *alpha, *negative_slope, policy});
  });
  END_HANDLE_TH_ERRORS
}

PyObject* call_op(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count,
                  PyObject* keywords) {
  HANDLE_TH_ERRORS  // turns C++ warnings into Python warnings
      TORCH_CHECK(count > 0, "call_op: needs the op and its arguments, got no arguments");
  THPObjectPtr result(
      PyObject_Vectorcall(args[0], args + 1, static_cast<std::size_t>(count - 1), keywords));
  if (!result) {
    throw python_error();
  }
  return result.release();
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
  constexpr Py_ssize_t kArguments = 7;
  Numbers stride;
  Numbers padding;
  Numbers dilation;
  TORCH_CHECK(count == kArguments && THPVariable_Check(args[0]) && THPVariable_Check(args[1]) &&
                  (args[2] == Py_None || THPVariable_Check(args[2])) && stride.read(args[3]) &&
                  padding.read(args[4]) && dilation.read(args[5]) && PyLong_CheckExact(args[6]),
              "execute_floor: needs input, weight, bias, stride, padding, dilation and groups");
  const auto two = [](const Numbers& numbers) {
    const c10::SymIntArrayRef values = numbers.get();
    return ConvParams::Numbers{values.front().expect_int(), values.back().expect_int()};
  };
  const ConvParams params{.stride = two(stride),
                          .padding = two(padding),
                          .dilation = two(dilation),
                          .output_padding = {0, 0},
                          .groups = read_number(args[6]).value_or(0).expect_int(),
                          .transposed = false};
  auto floor = std::make_unique<Floor>(cudnn_execute_only(
      THPVariable_Unpack(args[0]), THPVariable_Unpack(args[1]), tensor_or_none(args[2]), params));
  THPObjectPtr capsule(PyCapsule_New(floor.get(), kFloorName, [](PyObject* object) {
    delete static_cast<Floor*>(PyCapsule_GetPointer(object, kFloorName));
  }));
  if (!capsule) {
    throw python_error();
  }
  (void)floor.release();  // the capsule owns it now
  static PyMethodDef method = {"floor", call_floor, METH_NOARGS, nullptr};
  return PyCFunction_New(&method, capsule.get());
  END_HANDLE_TH_ERRORS
}
#endif

template <typename Function>
PyMethodDef define(const char* name, Function* function, int keywords = 0) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL | keywords, nullptr};
}

}  // namespace

std::span<PyMethodDef> convolution_methods() {
  static std::array methods = {
      define(kConv[0].name, convolve<kConv[0], kConvPositions>),
      define(kConv[1].name, convolve<kConv[1], kConvPositions>),
      define(kConv[2].name, convolve<kConv[2], kConvPositions>),
      define(kConvTranspose[0].name, convolve<kConvTranspose[0], kConvTransposePositions>),
      define(kConvTranspose[1].name, convolve<kConvTranspose[1], kConvTransposePositions>),
      define(kConvTranspose[2].name, convolve<kConvTranspose[2], kConvTransposePositions>),
      define(kConvEpilogue[0].name, convolve_with_epilogue<kConvEpilogue[0]>),
      define(kConvEpilogue[1].name, convolve_with_epilogue<kConvEpilogue[1]>),
      define(kConvEpilogue[2].name, convolve_with_epilogue<kConvEpilogue[2]>)};
  return methods;
}

void register_node_types() {
  const pybind11::object classes = pybind11::module_::import("torch._C").attr("_functions");
  for (const NodeType& node : node_types()) {
    const pybind11::object torchs = classes.attr(node.torchs_name);
    torch::autograd::registerCppFunction(node.type, reinterpret_cast<PyTypeObject*>(torchs.ptr()));
  }
}

PyMethodDef& call_op_method() {
  static PyMethodDef method = define("call_op", call_op, METH_KEYWORDS);
  return method;
}

#ifdef CONVTIME_WITH_CUDA
PyMethodDef& execute_floor_method() {
  static PyMethodDef method = define("execute_floor", execute_floor);
  return method;
}
#endif

}  // namespace convtime::ops
