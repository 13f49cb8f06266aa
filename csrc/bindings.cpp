#include "bindings.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "ops/timing/cpu_pages.h"
#include "ops/timing/operator_watch.h"
#include "timing/conditions/host_probe.h"
#include "timing/conditions/thread_watch.h"
#include "timing/device_traits.h"
#include "timing/judge/estimate.h"
#include "timing/judge/statistics.h"
#include "timing/judge/steadiness.h"
#include "timing/time_op.h"
#include "timing/timers/host_timer.h"
#ifdef CONVTIME_WITH_CUDA
#include "core/cuda.h"
#include "core/synchronize.h"
#include "program/program.h"
#include "timing/conditions/cache_flush.h"
#include "timing/factory.h"
#include "timing/trace/cupti_session.h"
#endif

namespace convtime::bindings {

StopRule read_stop_rule(Keywords& keywords) {
  return {.criterion = keywords.take_name<StopCriterion>("stop"),
          .min_samples = keywords.take<std::size_t>("min_samples"),
          .max_samples = keywords.take<std::size_t>("max_samples"),
          .budget_seconds = keywords.take<double>("budget"),
          .tolerance = keywords.take<double>("tolerance"),
          .margin = keywords.take<double>("margin")};
}

py::dict reading_fields(const HostReading& reading, double share) {
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

using Numbers = std::vector<std::size_t>;

/// A Python context manager that holds an object between enter and exit. The object is made and
/// destroyed with the GIL released.
template <typename Held, typename... Arguments>
class Context {
 public:
  explicit Context(Arguments... arguments) : arguments_(arguments...) {}

  void enter() {
    const WithoutInterpreterLock unlocked;
    std::apply([this](const auto&... arguments) { held_.emplace(arguments...); }, arguments_);
  }
  void exit(const py::args&) {
    const WithoutInterpreterLock unlocked;
    held_.reset();
  }
  std::string reason() const { return held_ ? held_->reason() : "not started"; }

 private:
  std::tuple<Arguments...> arguments_;
  std::optional<Held> held_;
};

/// Return the fields of convtime.device.state.KernelCache; None in a build without CUDA.
py::object kernel_cache() {
#ifdef CONVTIME_WITH_CUDA
  const KernelCacheState state = kernel_cache_state();
  return py::dict(py::arg("compiler") = state.compiler,
                  py::arg("compiler_reason") = state.compiler_reason,
                  py::arg("folder") = state.folder, py::arg("files") = state.files,
                  py::arg("nbytes") = state.bytes, py::arg("problem") = state.problem);
#else
  return py::none();
#endif
}

/// Return the fields of convtime.diagnosis.evidence.Waits.
py::dict activity_fields(const ThreadActivity& activity) {
  return py::dict(py::arg("looks") = activity.looks, py::arg("ready") = activity.ready,
                  py::arg("sleeping") = activity.sleeping, py::arg("files") = activity.files,
                  py::arg("pages") = activity.pages, py::arg("processes") = activity.processes,
                  py::arg("locks") = activity.locks,
                  py::arg("other_threads") = activity.other_threads,
                  py::arg("elsewhere") = activity.elsewhere);
}

void bind_host(py::module_& module) {
  py::class_<HostProbe>(module, "HostProbe")
      .def(py::init<>())
      .def("begin", &HostProbe::begin, py::arg("expected_seconds"))
      .def("end",
           [](HostProbe& probe) {
             py::dict fields = reading_fields(probe.end());
             fields["samples"] = 1;
             return fields;
           })
      .def_property_readonly("cores", &HostProbe::cores)
      .def_property_readonly("missing", &HostProbe::missing);
  py::class_<ThreadWatch>(module, "ThreadWatch")
      .def(py::init<>())
      .def("stop",
           [](ThreadWatch& watch) {
             const ThreadActivity activity = [&] {
               const WithoutInterpreterLock unlocked;
               return watch.stop();
             }();
             return activity_fields(activity);
           })
      .def_property_readonly("missing", &ThreadWatch::missing);
  py::class_<ops::OperatorClock>(module, "OperatorClock")
      .def(py::init<double>(), py::arg("limit_seconds"))
      .def("stop", [](ops::OperatorClock& clock) {
        const ops::OperatorTimes& times = clock.stop();
        return py::dict(py::arg("count") = times.count, py::arg("outermost") = times.outermost,
                        py::arg("seconds") = times.seconds,
                        py::arg("dispatching") = times.dispatching);
      });
  module.def("core_clock_hz", [] { return or_none(core_clock_hz()); });
}

/// Bind what prepares a device or the process for a timing.
void bind_device(py::module_& module) {
  module.def("kernel_cache", &kernel_cache);
  module.def("cuda_available", &cuda_available);
  using Pages = Context<ops::CpuPages, ops::Pages>;
  py::class_<Pages>(module, "CpuPages")
      .def(py::init([](const std::string& pages) {
             return std::make_unique<Pages>(enum_from_string<ops::Pages>("pages", pages));
           }),
           py::arg("pages"))
      .def("__enter__",
           [](const py::object& self) {
             self.cast<Pages&>().enter();
             return self;
           })
      .def("__exit__", &Pages::exit)
      .def("reason", &Pages::reason);
#ifdef CONVTIME_WITH_CUDA
  using Way = Context<MakeWay>;
  py::class_<Way>(module, "MakeWay")
      .def(py::init())
      .def("__enter__", &Way::enter)
      .def("__exit__", &Way::exit);
  using L2 = Context<WithoutPersistingL2, int>;
  py::class_<L2>(module, "WithoutPersistingL2")
      .def(py::init<int>(), py::arg("device"))
      .def("__enter__",
           [](L2& without) {
             without.enter();
             return without.reason();
           })
      .def("__exit__", &L2::exit);
  module.def(
      "idle_within",
      [](const std::vector<int>& devices, double seconds) {
        return synchronize_within(devices, seconds);
      },
      py::arg("devices"), py::arg("seconds"), py::call_guard<WithoutInterpreterLock>());
  module.def(
      "device_ticks",
      [](int device) {
        const DeviceTicks ticks = [&] {
          const WithoutInterpreterLock unlocked;
          const CurrentDevice current(device);
          return convtime::device_ticks({.on_gpu = true});
        }();
        return py::dict(py::arg("globaltimer") = or_none(ticks.globaltimer),
                        py::arg("event") = or_none(ticks.events),
                        py::arg("record") = or_none(ticks.records));
      },
      py::arg("device"));
  module.def(
      "flush_buffer_bytes",
      [](int device, bool clean) {
        return flush_buffer_bytes(device, clean ? L2Lines::kClean : L2Lines::kDirty);
      },
      py::arg("device"), py::arg("clean"));
#endif
  module.def("kernel_method_unavailable", &kernel_method_unavailable,
             py::call_guard<WithoutInterpreterLock>());
}

/// Bind the statistics and decisions of timing/judge.
void bind_judge(py::module_& module) {
  module.attr("CONFIDENCE") = kConfidence;
  module.def("host_clock_tick", &host_clock_tick);
  module.attr("DOUBT_OF_CPU_RATIOS") = kDoubtOfCpuRatios;
  module.attr("WATCH_SECONDS") = kDeviceTraits.watch_seconds;
  module.def(
      "quantile", [](const std::vector<double>& values, double q) { return quantile(values, q); },
      py::arg("values"), py::arg("q"));
  module.def(
      "summarize",
      [](const std::vector<double>& values, double tick) {
        Summary summary = summarize(values);
        if (tick > 0) {
          summary.median = estimate_median({values}, {}, {.tick_seconds = tick}).value;
        }
        return py::dict(py::arg("mean") = summary.mean, py::arg("stdev") = summary.stdev,
                        py::arg("min") = summary.min, py::arg("max") = summary.max,
                        py::arg("median") = summary.median, py::arg("iqr") = summary.iqr);
      },
      py::arg("values"), py::arg("tick") = 0.0);
  module.def(
      "is_steady", [](const std::vector<double>& series) { return is_steady(series); },
      py::arg("series"));
  module.def("check_stop_rule", [](const py::kwargs& kwargs) {
    Keywords keywords("check_stop_rule", kwargs);
    const StopRule rule = read_stop_rule(keywords);
    keywords.finish();
    rule.validate();
  });
  module.def("stop_reason", [](const py::kwargs& kwargs) {
    Keywords keywords("stop_reason", kwargs);
    const auto samples = keywords.take<std::vector<std::vector<double>>>("samples");
    const auto elapsed_seconds = keywords.take<double>("elapsed_seconds");
    const StopRule rule = read_stop_rule(keywords);
    keywords.finish();
    rule.validate();
    if (samples.empty()) {
      throw std::invalid_argument("samples must contain at least one candidate, got none");
    }
    std::vector<CandidateTimes> candidates;
    for (const std::vector<double>& seconds : samples) {
      candidates.push_back({seconds});
    }
    return to_string(rule.decide({candidates}, elapsed_seconds));
  });
  module.def(
      "paired_ratio",
      [](const std::vector<double>& over, const std::vector<double>& under, double uncertainty,
         double tick, const Numbers& over_places, const Numbers& under_places,
         const Numbers& batches) {
        const Estimate ratio = estimate_ratio({over, over_places}, {under, under_places}, batches,
                                              {tick, uncertainty});
        return py::make_tuple(ratio.value, ratio.interval.low, ratio.interval.high);
      },
      py::arg("over"), py::arg("under"), py::arg("uncertainty") = 0.0, py::kw_only(),
      py::arg("tick") = 0.0, py::arg("over_places") = Numbers(),
      py::arg("under_places") = Numbers(), py::arg("batches") = Numbers());
  module.def(
      "median_interval",
      [](const std::vector<double>& seconds, const Numbers& places, const Numbers& batches,
         double tick, double uncertainty) {
        const Estimate median = estimate_median({seconds, places}, batches, {tick, uncertainty});
        return py::make_tuple(median.interval.low, median.interval.high, to_string(median.over),
                              median.count);
      },
      py::arg("seconds"), py::arg("places"), py::arg("batches"), py::arg("tick"),
      py::arg("uncertainty"));
  module.def(
      "judge",
      [](double low, double high, double margin, double doubt) {
        return to_string(judge({low, high}, margin, doubt));
      },
      py::arg("low"), py::arg("high"), py::arg("margin"), py::arg("doubt") = 0.0);
}

}  // namespace

PYBIND11_MODULE(_C, module) {
#ifdef CONVTIME_WITH_CUDA
  set_compilation_scope([](const std::function<void()>& compile) {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
      without_interpreter_lock(compile);
    } else {
      compile();
    }
  });
  bind_cupti(module);
#endif
  module.doc() = "The C++ core of convtime; use it through the convtime package.";
  bind_conv(module);
  bind_host(module);
  bind_timing(module);
  bind_device(module);
  bind_judge(module);
}

}  // namespace convtime::bindings
