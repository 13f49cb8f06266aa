#include "bindings.h"

#include <pybind11/stl.h>

#include "ops/conv/python_entry.h"
#ifdef CONVTIME_WITH_CUDA
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "conv/engine.h"
#include "conv/plan_cache.h"
#include "conv/stored_plans.h"
#endif

namespace convtime::bindings {
namespace {

#ifdef CONVTIME_WITH_CUDA
/// Return the field names and values of convtime.conv.PlanChoice.
py::dict to_dict(const conv::PlanKey& key, const conv::SharedChoice& shared) {
  const conv::PlanChoice& choice = shared.choice;
  py::dict record = ops::to_dict(key.problem);
  record["policy"] = conv::to_string(key.policy);
  record["device"] = "cuda:" + std::to_string(key.problem.device);
  record["tag"] = choice.tag;
  record["source"] = conv::to_string(choice.source);
  record["workspace_bytes"] = choice.workspace_bytes;
  record["timed"] = py::tuple(py::cast(choice.timed));
  record["numerical_notes"] = py::tuple(py::cast(choice.numerical_notes));
  record["behavior_notes"] = py::tuple(py::cast(choice.behavior_notes));
  record["refused"] = py::tuple(py::cast(choice.refused));
  record["uses"] = shared.uses.load();
  record["rebuilds"] = shared.rebuilds.load();
  return record;
}

py::list plan_cache() {
  py::list records;
  for (const auto& [key, choice] : conv::choice_table().list()) {
    records.append(to_dict(key, *choice));
  }
  return records;
}

void store_plan(const py::dict& problem, std::int32_t architecture, std::int32_t multiprocessors,
                std::string name, std::string_view tag, std::optional<bool> channels_last) {
  conv::stored_plans().insert(ops::problem_of(problem), {architecture, multiprocessors},
                              std::make_shared<conv::StoredPlan>(
                                  std::move(name), conv::parse_tag(tag).engine, channels_last));
}

/// Return whether the process still has a plan for the problem.
bool has_stored_plan(const py::dict& problem, std::int32_t architecture,
                     std::int32_t multiprocessors) {
  return conv::stored_plans().find(ops::problem_of(problem), {architecture, multiprocessors}) !=
         nullptr;
}
#endif

}  // namespace

void bind_conv(py::module_& module) {
  const auto add = [&](PyMethodDef& method) {
    module.attr(method.ml_name) =
        py::reinterpret_steal<py::object>(PyCFunction_New(&method, nullptr));
  };
  for (PyMethodDef& method : ops::convolution_methods()) {
    add(method);
  }
  add(ops::call_op_method());
  ops::register_node_types();
#ifdef CONVTIME_WITH_CUDA
  add(ops::execute_floor_method());
  ops::bind_engine_pass(module);
  module.def("store_plan", &store_plan, py::arg("problem"), py::arg("architecture"),
             py::arg("multiprocessors"), py::arg("name"), py::arg("tag"), py::arg("channels_last"));
  module.def("has_stored_plan", &has_stored_plan, py::arg("problem"), py::arg("architecture"),
             py::arg("multiprocessors"));
  module.def("clear_stored_plans", [] { conv::stored_plans().clear(); });
  module.def("plan_cache", &plan_cache);
  module.def("clear_plan_cache", [] { conv::choice_table().clear(); });
#else
  module.def("plan_cache", [] { return py::list(); });
  module.def("clear_plan_cache", [] {});
#endif
}

}  // namespace convtime::bindings
