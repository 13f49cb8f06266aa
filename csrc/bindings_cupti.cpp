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

namespace convtime::bindings {
namespace {

/// Run a function and raise CUPTI errors as convtime._C.CuptiError. Its first argument is the name
/// of the CUPTI result, which identifies the kind of error.
template <typename Function>
auto with_cupti_errors(Function function) {
  try {
    return function();
  } catch (const CuptiError& error) {
    const py::object type = py::module_::import("convtime._C").attr("CuptiError");
    const py::tuple arguments =
        py::make_tuple(error.result(), static_cast<const char*>(error.what()));
    PyErr_SetObject(type.ptr(), arguments.ptr());
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
  const std::unique_ptr<Callable> call = make_callable(described, py::none());
  const std::vector<FlushBuffer> buffers = flush_buffers(flush);
  const CountingOptions options{.metrics = metrics,
                                .replays_kernels = replays_kernels,
                                .repeats = repeats,
                                .flush = buffers,
                                .hooks = python_hooks()};
  Counted counted;
  try {
    counted = with_cupti_errors([&] { return convtime::count_kernels(*call, options); });
  } catch (const std::exception& error) {
    rethrow_interrupt(error);
    throw;
  }
  py::list launches;
  for (const ActivityInfo& info : counted.launches) {
    launches.append(py::make_tuple(demangle(info.name), py::tuple(py::cast(info.grid)),
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
  const auto described = with_cupti_errors([&] {
    const WithoutInterpreterLock unlocked;
    return convtime::describe_metrics(names);
  });
  py::list descriptions;
  for (const std::optional<DescribedMetric>& metric : described) {
    descriptions.append(
        metric.has_value()
            ? py::object(py::make_tuple(metric->description, metric->unit, metric->hardware_unit))
            : py::object(py::none()));
  }
  return descriptions;
}

std::vector<std::string> metric_names() {
  return with_cupti_errors([] {
    const WithoutInterpreterLock unlocked;
    return convtime::metric_names();
  });
}

/// Wraps ProcessTrace and releases the GIL while the trace starts and stops.
class Trace {
 public:
  Trace() {
    const WithoutInterpreterLock unlocked;
    trace_ = std::make_unique<ProcessTrace>();
  }

  /// Return 0 after close(): other threads may still call this.
  std::uint64_t now() const { return trace_ == nullptr ? 0 : trace_->now(); }

  /// Return the distinct launches; for each activity its index into them, start, end, issue time,
  /// issuing thread and stream; and the errors in the records.
  py::tuple take(const std::vector<int>& other_devices) {
    const ProcessWork work = [&] {
      const WithoutInterpreterLock unlocked;
      return trace_->take(other_devices);
    }();
    py::list launches;
    py::list activities;
    std::unordered_map<ActivityInfo, std::size_t, HashActivityInfo> places;
    for (const DeviceActivity& activity : work.activities) {
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
    std::unique_ptr<ProcessTrace> trace = std::move(trace_);
    const WithoutInterpreterLock unlocked;
    trace.reset();
  }

 private:
  std::unique_ptr<ProcessTrace> trace_;
};

}  // namespace

void bind_cupti(py::module_& module) {
  module.attr("CuptiError") = py::reinterpret_steal<py::object>(PyErr_NewExceptionWithDoc(
      "convtime._C.CuptiError", "CUPTI refused: the name of its result, then a message.",
      PyExc_RuntimeError, nullptr));
  module.def("count_kernels", &count_kernels, py::kw_only(), py::arg("call"), py::arg("metrics"),
             py::arg("replays_kernels"), py::arg("repeats"), py::arg("flush"));
  module.def("describe_metrics", &describe_metrics, py::arg("names"));
  module.def("metric_names", &metric_names);
  py::class_<Trace>(module, "Trace")
      .def(py::init())
      .def("now", &Trace::now)
      .def_static("thread", &ProcessTrace::thread)
      .def("take", &Trace::take, py::arg("other_devices"))
      .def("close", &Trace::close);
}

}  // namespace convtime::bindings
