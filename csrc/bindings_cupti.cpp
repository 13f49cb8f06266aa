#include "bindings.h"

#ifdef CONVTIME_WITH_CUDA

#include <pybind11/stl.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings_callable.h"
#include "timing/counters/counting.h"
#include "timing/trace/cupti_session.h"
#include "timing/trace/device_activity.h"

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

namespace {

/// Wraps convtime::ProcessTrace and releases the GIL while the trace starts and stops.
class Trace {
 public:
  Trace() {
    without_interpreter_lock([this] { trace_ = std::make_unique<convtime::ProcessTrace>(); });
  }

  /// Return 0 after close(): other threads may still call this.
  std::uint64_t now() const { return trace_ == nullptr ? 0 : trace_->now(); }

  /// Return the distinct launches; for each activity its index into them, start, end, issue time,
  /// issuing thread and stream; and the errors in the records.
  py::tuple take(const std::vector<int>& other_devices) {
    convtime::ProcessWork work;
    without_interpreter_lock([&] { work = trace_->take(other_devices); });
    py::list launches;
    py::list activities;
    std::unordered_map<convtime::ActivityInfo, std::size_t, convtime::HashActivityInfo> places;
    for (const convtime::DeviceActivity& activity : work.activities) {
      const auto [place, is_new] = places.try_emplace(activity.info, places.size());
      if (is_new) {
        launches.append(launch_fields(activity.info));
      }
      activities.append(py::make_tuple(place->second, activity.start_ns, activity.end_ns,
                                       activity.issued_ns, activity.issued_by, activity.stream));
    }
    return py::make_tuple(launches, activities, work.faults);
  }

  /// End the recording, even if it has failed.
  void close() {
    // Moved while the GIL is held, because another thread may call now().
    std::unique_ptr<convtime::ProcessTrace> trace = std::move(trace_);
    without_interpreter_lock([&trace] { trace.reset(); });
  }

 private:
  std::unique_ptr<convtime::ProcessTrace> trace_;
};

}  // namespace

void bind_trace(py::module_& module) {
  py::class_<Trace>(module, "Trace")
      .def(py::init())
      .def("now", &Trace::now)
      .def_static("thread", &convtime::ProcessTrace::thread)
      .def("take", &Trace::take, py::arg("other_devices"))
      .def("close", &Trace::close);
}

#else

void bind_counters(pybind11::module_&) {}
void bind_trace(pybind11::module_&) {}

#endif
