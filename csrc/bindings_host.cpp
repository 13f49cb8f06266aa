#include "bindings.h"

#include <cstdint>

#include "ops/timing/operator_clock.h"
#include "timing/conditions/host_probe.h"
#include "timing/conditions/thread_watch.h"

namespace py = pybind11;

py::dict reading_fields(const convtime::HostReading& reading, double share) {
  const auto shared = [&](double value) { return or_none(share * value); };
  const auto count = [&](std::int64_t value) { return share * static_cast<double>(value); };
  return py::dict(py::arg("seconds") = share * reading.seconds,
                  py::arg("cpu_seconds") = share * reading.cpu_seconds,
                  py::arg("waiting_seconds") = shared(reading.waiting_seconds),
                  py::arg("longest_wait_seconds") = shared(reading.longest_wait_seconds),
                  py::arg("voluntary_switches") = count(reading.voluntary_switches),
                  py::arg("involuntary_switches") = count(reading.involuntary_switches),
                  py::arg("minor_faults") = count(reading.minor_faults),
                  py::arg("major_faults") = count(reading.major_faults),
                  py::arg("migrations") = reading.migrated ? 1 : 0,
                  py::arg("threads") = or_none(reading.threads),
                  py::arg("throttled_seconds") = shared(reading.throttled_seconds),
                  py::arg("others_seconds") = shared(reading.others_seconds),
                  py::arg("stolen_seconds") = shared(reading.stolen_seconds),
                  py::arg("instructions") = or_none(reading.instructions),
                  py::arg("cycles") = or_none(reading.cycles),
                  py::arg("cache_misses") = or_none(reading.cache_misses),
                  py::arg("tlb_misses") = or_none(reading.tlb_misses));
}

namespace {

/// Return the fields of convtime.diagnosis.evidence.Waits.
py::dict activity_fields(const convtime::ThreadActivity& found) {
  return py::dict(py::arg("looks") = found.looks, py::arg("ready") = found.ready,
                  py::arg("sleeping") = found.sleeping, py::arg("files") = found.files,
                  py::arg("pages") = found.pages, py::arg("processes") = found.processes,
                  py::arg("locks") = found.locks, py::arg("other_threads") = found.other_threads,
                  py::arg("elsewhere") = found.elsewhere);
}

}  // namespace

void bind_host(py::module_& module) {
  py::class_<convtime::HostProbe>(module, "HostProbe")
      .def(py::init<>())
      .def("begin", &convtime::HostProbe::begin, py::arg("expected_seconds"))
      .def("end",
           [](convtime::HostProbe& probe) {
             py::dict fields = reading_fields(probe.end());
             fields["samples"] = 1;
             return fields;
           })
      .def_property_readonly("cores", &convtime::HostProbe::cores)
      .def_property_readonly("missing", &convtime::HostProbe::missing);
  py::class_<convtime::ThreadWatch>(module, "ThreadWatch")
      .def(py::init<>())
      .def("stop",
           [](convtime::ThreadWatch& watch) {
             convtime::ThreadActivity found;
             without_interpreter_lock([&] { found = watch.stop(); });
             return activity_fields(found);
           })
      .def_property_readonly("missing", &convtime::ThreadWatch::missing);
  py::class_<convtime::ops::OperatorClock>(module, "OperatorClock")
      .def(py::init<double>(), py::arg("limit_seconds"))
      .def("stop", [](convtime::ops::OperatorClock& clock) {
        const convtime::ops::OperatorTimes& times = clock.stop();
        return py::dict(py::arg("count") = times.count, py::arg("outermost") = times.outermost,
                        py::arg("seconds") = times.seconds,
                        py::arg("dispatching") = times.dispatching);
      });
  module.def("core_clock_hz", [] { return or_none(convtime::core_clock_hz()); });
}
