#include "ops/conv/problem_dict.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "conv/activation.h"
#include "conv/engine.h"

namespace convtime::ops {
namespace {

namespace py = pybind11;

constexpr std::array<std::pair<cudnnDataType_t, const char*>, 4> kTypes = {
    {{CUDNN_DATA_FLOAT, "float32"},
     {CUDNN_DATA_DOUBLE, "float64"},
     {CUDNN_DATA_HALF, "float16"},
     {CUDNN_DATA_BFLOAT16, "bfloat16"}}};
constexpr std::array<std::pair<conv::Pass, const char*>, 3> kPasses = {
    {{conv::Pass::kFprop, "fprop"}, {conv::Pass::kDgrad, "dgrad"}, {conv::Pass::kWgrad, "wgrad"}}};

template <typename Table, typename Value>
const char* name_in(const Table& table, Value value) {
  for (const auto& [known, name] : table) {
    if (known == value) {
      return name;
    }
  }
  throw std::logic_error("a plan has a dtype or a pass that the ops do not support");
}

template <typename Table>
auto value_in(const Table& table, const char* what, const py::dict& dict) {
  const auto given = dict[what].cast<std::string>();
  for (const auto& [value, name] : table) {
    if (given == name) {
      return value;
    }
  }
  throw std::invalid_argument(std::string(what) + " is unknown: '" + given + "'");
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

}  // namespace

py::tuple to_tuple(std::span<const std::int64_t> values) {
  py::tuple result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    result[i] = values[i];
  }
  return result;
}

py::dict to_dict(const conv::Problem& problem) {
  const auto rank = static_cast<std::size_t>(problem.rank);
  const char* const dtype = name_in(kTypes, problem.data_type);
  return py::dict(py::arg("pass_name") = name_in(kPasses, problem.pass), py::arg("dtype") = dtype,
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
  problem.pass = value_in(kPasses, "pass_name", dict);
  problem.data_type = value_in(kTypes, "dtype", dict);
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
  const auto activation = dict["activation"].cast<std::string>();
  const std::optional<conv::Activation> parsed = conv::parse_activation(activation);
  if (!parsed.has_value()) {
    throw std::invalid_argument("activation is unknown: '" + activation + "'");
  }
  problem.epilogue.activation = *parsed;
  problem.epilogue.negative_slope = dict["negative_slope"].cast<float>();
  problem.deterministic = dict["deterministic"].cast<bool>();
  problem.allow_tf32 = dict["allow_tf32"].cast<bool>();
  return problem;
}

}  // namespace convtime::ops
