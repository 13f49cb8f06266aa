#include "ops/conv/engine_entry.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/conv/engine_pass.h"
#include "ops/conv/problem_dict.h"

namespace convtime::ops {
namespace {

namespace py = pybind11;

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
