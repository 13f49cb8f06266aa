#include "bindings_conv.h"

#include <pybind11/stl.h>

#include "ops/conv/python_entry.h"
#ifdef CONVTIME_WITH_CUDA
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "conv/plan_cache.h"
#include "ops/conv/engine_entry.h"
#endif

namespace py = pybind11;

namespace {

#ifdef CONVTIME_WITH_CUDA
namespace conv = convtime::conv;

const char* dtype_name(cudnnDataType_t data_type) {
  switch (data_type) {
    case CUDNN_DATA_FLOAT:
      return "float32";
    case CUDNN_DATA_DOUBLE:
      return "float64";
    case CUDNN_DATA_HALF:
      return "float16";
    case CUDNN_DATA_BFLOAT16:
      return "bfloat16";
    default:
      throw std::logic_error("the plan has a dtype that the ops do not support");
  }
}

const char* pass_name(conv::Pass pass) {
  switch (pass) {
    case conv::Pass::kFprop:
      return "fprop";
    case conv::Pass::kDgrad:
      return "dgrad";
    case conv::Pass::kWgrad:
      return "wgrad";
  }
  throw std::logic_error("unknown convolution pass");
}

py::tuple to_tuple(std::span<const std::int64_t> values) {
  py::tuple result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    result[i] = values[i];
  }
  return result;
}

py::dict to_dict(const conv::TensorShape& shape, std::size_t rank, const char* dtype) {
  return py::dict(py::arg("dtype") = dtype, py::arg("sizes") = to_tuple({shape.sizes.data(), rank}),
                  py::arg("strides") = to_tuple({shape.strides.data(), rank}),
                  py::arg("alignment") = shape.alignment);
}

py::object to_object(const std::optional<conv::TensorShape>& shape, std::size_t rank,
                     const char* dtype) {
  return shape.has_value() ? py::object(to_dict(*shape, rank, dtype)) : py::object(py::none());
}

/// Return the field names and values of convtime.PlanChoice.
py::dict to_dict(const conv::PlanKey& key, const conv::SharedChoice& shared) {
  const conv::Problem& problem = key.problem;
  const auto rank = static_cast<std::size_t>(problem.rank);
  const conv::PlanChoice& choice = shared.choice;
  const char* const dtype = dtype_name(problem.data_type);
  return py::dict(
      py::arg("pass_name") = pass_name(problem.pass),
      py::arg("policy") = conv::to_string(key.policy),
      py::arg("device") = "cuda:" + std::to_string(problem.device), py::arg("dtype") = dtype,
      py::arg("x") = to_dict(problem.x, rank, dtype),
      py::arg("w") = to_dict(problem.w, rank, dtype),
      py::arg("y") = to_dict(problem.y, rank, dtype),
      py::arg("stride") = to_tuple({problem.stride.data(), rank - 2}),
      py::arg("padding") = to_tuple({problem.padding.data(), rank - 2}),
      py::arg("dilation") = to_tuple({problem.dilation.data(), rank - 2}),
      py::arg("z") = to_object(problem.epilogue.z, rank, dtype),
      py::arg("alpha") = problem.epilogue.alpha,
      py::arg("b") = to_object(problem.epilogue.b, rank, dtype),
      py::arg("activation") = conv::to_string(problem.epilogue.activation),
      py::arg("negative_slope") = problem.epilogue.negative_slope,
      py::arg("deterministic") = problem.deterministic, py::arg("allow_tf32") = problem.allow_tf32,
      py::arg("tag") = choice.tag, py::arg("source") = conv::to_string(choice.source),
      py::arg("workspace_bytes") = choice.workspace_bytes,
      py::arg("timed") = py::tuple(py::cast(choice.timed)),
      py::arg("numerical_notes") = py::tuple(py::cast(choice.numerical_notes)),
      py::arg("behavior_notes") = py::tuple(py::cast(choice.behavior_notes)),
      py::arg("refused") = py::tuple(py::cast(choice.refused)),
      py::arg("uses") = shared.uses.load(), py::arg("rebuilds") = shared.rebuilds.load());
}
#endif

py::list plan_cache() {
  py::list records;
#ifdef CONVTIME_WITH_CUDA
  for (const auto& [key, choice] : conv::choice_table().list()) {
    records.append(to_dict(key, *choice));
  }
#endif
  return records;
}

void clear_plan_cache() {
#ifdef CONVTIME_WITH_CUDA
  conv::choice_table().clear();
#endif
}

}  // namespace

void bind_conv(py::module_& module) {
  const auto add = [&](PyMethodDef& method) {
    module.attr(method.ml_name) =
        py::reinterpret_steal<py::object>(PyCFunction_New(&method, nullptr));
  };
  for (PyMethodDef& method : convtime::ops::convolution_methods()) {
    add(method);
  }
  add(convtime::ops::call_op_method());
  convtime::ops::register_node_types();
#ifdef CONVTIME_WITH_CUDA
  add(convtime::ops::execute_floor_method());
  convtime::ops::bind_engine_pass(module);
#endif
  module.def("plan_cache", &plan_cache);
  module.def("clear_plan_cache", &clear_plan_cache);
}
