#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "conv/engine.h"
#include "ops/conv/engine_pass.h"
#include "ops/conv/python_entry.h"

namespace convtime::ops {
namespace {

namespace py = pybind11;

constexpr std::array<std::pair<cudnnDataType_t, const char*>, 4> kTypes = {
    {{CUDNN_DATA_FLOAT, "float32"},
     {CUDNN_DATA_DOUBLE, "float64"},
     {CUDNN_DATA_HALF, "float16"},
     {CUDNN_DATA_BFLOAT16, "bfloat16"}}};

const char* type_name(cudnnDataType_t type) {
  const auto found =
      std::ranges::find(kTypes, type, &std::pair<cudnnDataType_t, const char*>::first);
  if (found == kTypes.end()) {
    throw std::logic_error("a plan has a dtype that the ops do not support");
  }
  return found->second;
}

[[noreturn]] void refuse_unknown(const char* what, const std::string& given) {
  throw std::invalid_argument(std::string(what) + " is unknown: '" + given + "'");
}

cudnnDataType_t type_of(const std::string& given) {
  for (const auto& [type, name] : kTypes) {
    if (given == name) {
      return type;
    }
  }
  refuse_unknown("dtype", given);
}

/// Return the value of an enum that the dict names.
template <typename Enum>
Enum named(const char* what, const py::dict& dict) {
  const auto given = dict[what].cast<std::string>();
  const std::optional<Enum> value = find_enum<Enum>(given);
  if (!value.has_value()) {
    refuse_unknown(what, given);
  }
  return *value;
}

template <std::size_t kSize>
std::array<std::int64_t, kSize> numbers_of(const char* what, const py::handle& given,
                                           std::size_t count) {
  std::array<std::int64_t, kSize> values{};
  const auto sequence = given.cast<py::sequence>();
  if (sequence.size() != count) {
    throw std::invalid_argument(std::string(what) + " must have " + std::to_string(count) +
                                " numbers, got " + std::to_string(sequence.size()));
  }
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = sequence[i].cast<std::int64_t>();
  }
  return values;
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

conv::TensorShape shape_of(const py::handle& given, std::size_t rank) {
  conv::TensorShape shape;
  shape.sizes = numbers_of<conv::kMaxRank>("sizes", given["sizes"], rank);
  shape.strides = numbers_of<conv::kMaxRank>("strides", given["strides"], rank);
  shape.alignment = given["alignment"].cast<std::int64_t>();
  return shape;
}

std::optional<conv::TensorShape> optional_shape_of(const py::handle& given, std::size_t rank) {
  return given.is_none() ? std::nullopt : std::optional(shape_of(given, rank));
}

using Integers = std::vector<std::int64_t>;

EnginePass make(const at::Tensor& input, const at::Tensor& weight,
                const std::optional<at::Tensor>& grad_output, bool of_weight,
                const Integers& stride, const Integers& padding, const Integers& dilation,
                const Integers& output_padding, std::int64_t groups, bool transposed) {
  ConvParams params;
  params.stride.append(stride.begin(), stride.end());
  params.padding.append(padding.begin(), padding.end());
  params.dilation.append(dilation.begin(), dilation.end());
  params.output_padding.append(output_padding.begin(), output_padding.end());
  params.groups = groups;
  params.transposed = transposed;
  return {input, weight, grad_output, of_weight, params};
}

py::dict to_dict(const conv::ListedEngine& engine) {
  py::list ranges;
  for (const conv::KnobRange& range : engine.facts.knobs) {
    ranges.append(py::dict(py::arg("knob") = range.type, py::arg("minimum") = range.minimum,
                           py::arg("maximum") = range.maximum, py::arg("step") = range.step));
  }
  py::list places;
  for (const conv::ListPlace& place : engine.places) {
    places.append(py::make_tuple(place.list, place.position));
  }
  return py::dict(
      py::arg("tag") = engine.tag, py::arg("places") = places, py::arg("knob_ranges") = ranges,
      py::arg("numerical_notes") = engine.facts.numerical_notes,
      py::arg("behavior_notes") = engine.facts.behavior_notes,
      py::arg("workspace_bytes") = engine.facts.workspace_bytes,
      py::arg("shared_memory_bytes") = engine.facts.shared_memory_bytes,
      py::arg("excluded") = engine.excluded, py::arg("unsupported") = engine.unsupported);
}

}  // namespace

py::dict to_dict(const conv::Problem& problem) {
  const auto rank = static_cast<std::size_t>(problem.rank);
  const char* const dtype = type_name(problem.data_type);
  return py::dict(py::arg("pass_name") = conv::to_string(problem.pass), py::arg("dtype") = dtype,
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
                  py::arg("deterministic") = problem.deterministic,
                  py::arg("allow_tf32") = problem.allow_tf32);
}

conv::Problem problem_of(const py::dict& dict) {
  conv::Problem problem;
  problem.pass = named<conv::Pass>("pass_name", dict);
  problem.data_type = type_of(dict["dtype"].cast<std::string>());
  const std::size_t rank = py::len(dict["x"]["sizes"]);
  if (rank < 4 || rank > conv::kMaxRank) {
    throw std::invalid_argument("x must have 4 or 5 dimensions, got " + std::to_string(rank));
  }
  problem.rank = static_cast<std::int32_t>(rank);
  problem.x = shape_of(dict["x"], rank);
  problem.w = shape_of(dict["w"], rank);
  problem.y = shape_of(dict["y"], rank);
  problem.stride = numbers_of<conv::kMaxSpatial>("stride", dict["stride"], rank - 2);
  problem.padding = numbers_of<conv::kMaxSpatial>("padding", dict["padding"], rank - 2);
  problem.dilation = numbers_of<conv::kMaxSpatial>("dilation", dict["dilation"], rank - 2);
  problem.epilogue.z = optional_shape_of(dict["z"], rank);
  problem.epilogue.alpha = dict["alpha"].cast<float>();
  problem.epilogue.b = optional_shape_of(dict["b"], rank);
  problem.epilogue.activation = named<conv::Activation>("activation", dict);
  problem.epilogue.negative_slope = dict["negative_slope"].cast<float>();
  problem.deterministic = dict["deterministic"].cast<bool>();
  problem.allow_tf32 = dict["allow_tf32"].cast<bool>();
  return problem;
}

void bind_engine_pass(py::module_& module) {
  py::class_<EnginePass>(module, "EnginePass")
      .def(py::init(torch::wrap_pybind_function(make)), py::arg("input"), py::arg("weight"),
           py::arg("grad_output"), py::arg("of_weight"), py::arg("stride"), py::arg("padding"),
           py::arg("dilation"), py::arg("output_padding"), py::arg("groups"), py::arg("transposed"))
      .def_property_readonly("result", &EnginePass::result)
      .def_property_readonly("problem",
                             [](const EnginePass& pass) { return to_dict(pass.problem()); })
      .def_property_readonly("gpu",
                             [](const EnginePass& pass) {
                               const conv::GpuKind gpu = pass.gpu();
                               return py::make_tuple(gpu.architecture, gpu.multiprocessors);
                             })
      .def("in_layout", torch::wrap_pybind_function(&EnginePass::in_layout),
           py::arg("channels_last"))
      .def("engines", torch::wrap_pybind_function([](const EnginePass& pass) {
             py::list engines;
             for (const conv::ListedEngine& engine : pass.list()) {
               engines.append(to_dict(engine));
             }
             return engines;
           }))
      .def("build", torch::wrap_pybind_function([](const EnginePass& pass, std::string_view tag) {
             EnginePass::Ready ready;
             {
               const py::gil_scoped_release others_run;  // several threads build engines at once
               ready = pass.build(tag);
             }
             return py::make_tuple(ready.workspace_bytes, py::cpp_function(std::move(ready.run)));
           }),
           py::arg("tag"));
}

}  // namespace convtime::ops
