#include "bindings.h"

#ifdef CONVTIME_WITH_CUDA

#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "timing/trace/cupti_session.h"
#include "timing/trace/device_activity.h"

namespace py = pybind11;

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

void bind_trace(pybind11::module_&) {}

#endif
