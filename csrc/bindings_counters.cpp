#include "bindings.h"

#ifdef CONVTIME_WITH_CUDA

#include <pybind11/stl.h>

#include <cmath>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings_callable.h"
#include "timing/counters/counting.h"

namespace py = pybind11;

namespace {

/// Run a function and raise CUPTI errors as convtime._C.CuptiError. Its first argument is the name
/// of the CUPTI result, which identifies the kind of error.
template <typename Function>
auto telling_refusals(Function function) {
  try {
    return function();
  } catch (const convtime::CuptiError& error) {
    const py::object type = py::module_::import("convtime._C").attr("CuptiError");
    const py::tuple told = py::make_tuple(error.result(), static_cast<const char*>(error.what()));
    PyErr_SetObject(type.ptr(), told.ptr());
    throw py::error_already_set();
  }
}

py::list to_rows(const std::vector<std::vector<double>>& kernels) {
  py::list rows;
  for (const std::vector<double>& kernel : kernels) {
    py::list row;
    for (const double value : kernel) {
      row.append(std::isfinite(value) ? py::object(py::float_(value)) : py::object(py::none()));
    }
    rows.append(std::move(row));
  }
  return rows;
}

py::dict count_kernels(const CallOfPython& described, const std::vector<std::string>& metrics,
                       bool replays_kernels, std::size_t repeats, const FlushBuffers& flush) {
  const std::unique_ptr<convtime::Callable> call = make_callable(described, py::none());
  const std::vector<convtime::FlushBuffer> buffers = flush_buffers(flush);
  const convtime::CountingOptions options{.metrics = metrics,
                                          .replays_kernels = replays_kernels,
                                          .repeats = repeats,
                                          .flush = buffers,
                                          .hooks = python_hooks()};
  convtime::Counted counted;
  try {
    counted = telling_refusals([&] { return convtime::count_kernels(*call, options); });
  } catch (const std::exception& error) {
    rethrow_interrupt(error);
    throw;
  }
  py::list launches;
  for (const convtime::ActivityInfo& info : counted.launches) {
    launches.append(py::make_tuple(convtime::demangle(info.name), py::tuple(py::cast(info.grid)),
                                   py::tuple(py::cast(info.block))));
  }
  py::list repeated;
  for (const auto& kernels : counted.values) {
    repeated.append(to_rows(kernels));
  }
  return py::dict(py::arg("launches") = launches, py::arg("unnamed") = counted.unnamed,
                  py::arg("passes") = counted.passes, py::arg("values") = repeated);
}

/// Return (description, unit, hardware unit) or None for each name.
py::list describe_metrics(const std::vector<std::string>& names) {
  std::vector<std::optional<convtime::DescribedMetric>> described;
  telling_refusals([&] {
    without_interpreter_lock([&] { described = convtime::describe_metrics(names); });
    return 0;
  });
  py::list told;
  for (const auto& metric : described) {
    told.append(metric.has_value() ? py::object(py::make_tuple(metric->description, metric->unit,
                                                               metric->hardware_unit))
                                   : py::object(py::none()));
  }
  return told;
}

std::vector<std::string> metric_names() {
  return telling_refusals([] {
    std::vector<std::string> names;
    without_interpreter_lock([&] { names = convtime::metric_names(); });
    return names;
  });
}

}  // namespace

void bind_counters(py::module_& module) {
  module.attr("CuptiError") = py::reinterpret_steal<py::object>(PyErr_NewExceptionWithDoc(
      "convtime._C.CuptiError", "CUPTI refused: the name of its result, then a message.",
      PyExc_RuntimeError, nullptr));
  module.def("count_kernels", &count_kernels, py::kw_only(), py::arg("call"), py::arg("metrics"),
             py::arg("replays_kernels"), py::arg("repeats"), py::arg("flush"));
  module.def("describe_metrics", &describe_metrics, py::arg("names"));
  module.def("metric_names", &metric_names);
}

#else

void bind_counters(pybind11::module_&) {}

#endif
