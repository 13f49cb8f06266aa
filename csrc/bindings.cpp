#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.h"
#include "ops/timing/cpu_pages.h"
#include "timing/device_traits.h"
#include "timing/judge/estimate.h"
#include "timing/judge/host_reading.h"
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

namespace py = pybind11;

namespace {

using Numbers = std::vector<std::size_t>;

/// Holds an object between a Python context manager's enter and exit.
template <typename Held>
class HoldingContext {
 public:
  void exit(const py::args&) {
    without_interpreter_lock([this] { held_.reset(); });
  }

 protected:
  /// Make the object with the GIL released.
  template <typename... Arguments>
  void hold(const Arguments&... arguments) {
    without_interpreter_lock([&] { held_.emplace(arguments...); });
  }

  std::optional<Held> held_;
};

/// Wraps convtime::ops::CpuPages as a Python context manager.
class CpuPagesContext : public HoldingContext<convtime::ops::CpuPages> {
 public:
  explicit CpuPagesContext(const std::string& pages)
      : pages_(convtime::enum_from_string<convtime::ops::Pages>("pages", pages)) {}

  CpuPagesContext& enter() {
    held_.emplace(pages_);
    return *this;
  }
  std::string reason() const { return held_ ? held_->reason() : "not started"; }

 private:
  convtime::ops::Pages pages_;
};

#ifdef CONVTIME_WITH_CUDA
/// Wraps convtime::MakeWay as a Python context manager.
class MakeWayContext : public HoldingContext<convtime::MakeWay> {
 public:
  void enter() { hold(); }
};

/// Wraps convtime::WithoutPersistingL2 as a Python context manager and returns its message.
class WithoutPersistingL2Context : public HoldingContext<convtime::WithoutPersistingL2> {
 public:
  explicit WithoutPersistingL2Context(int device) : device_(device) {}

  std::string enter() {
    hold(device_);
    return held_->reason();
  }

 private:
  int device_;
};
#endif

/// Return the fields of convtime.device.state.KernelCache; None in a build without CUDA.
py::object kernel_cache() {
#ifdef CONVTIME_WITH_CUDA
  const convtime::KernelCacheState state = convtime::kernel_cache_state();
  return py::dict(py::arg("compiler") = state.compiler,
                  py::arg("compiler_reason") = state.compiler_reason,
                  py::arg("folder") = state.folder, py::arg("files") = state.files,
                  py::arg("nbytes") = state.bytes, py::arg("problem") = state.problem);
#else
  return py::none();
#endif
}

/// Bind what prepares a device or the process for a timing.
void bind_device(py::module_& module) {
  module.def("kernel_cache", &kernel_cache);
  module.def("cuda_available", &convtime::cuda_available);
  py::class_<CpuPagesContext>(module, "CpuPages")
      .def(py::init<const std::string&>(), py::arg("pages"))
      .def("__enter__", &CpuPagesContext::enter, py::return_value_policy::reference)
      .def("__exit__", &CpuPagesContext::exit)
      .def("reason", &CpuPagesContext::reason);
#ifdef CONVTIME_WITH_CUDA
  py::class_<MakeWayContext>(module, "MakeWay")
      .def(py::init())
      .def("__enter__", &MakeWayContext::enter)
      .def("__exit__", &MakeWayContext::exit);
  py::class_<WithoutPersistingL2Context>(module, "WithoutPersistingL2")
      .def(py::init<int>(), py::arg("device"))
      .def("__enter__", &WithoutPersistingL2Context::enter)
      .def("__exit__", &WithoutPersistingL2Context::exit);
  module.def(
      "idle_within",
      [](const std::vector<int>& devices, double seconds) {
        bool idle = true;
        without_interpreter_lock([&] { idle = convtime::synchronize_within(devices, seconds); });
        return idle;
      },
      py::arg("devices"), py::arg("seconds"));
  module.def(
      "device_ticks",
      [](int device) {
        convtime::DeviceTicks ticks{};
        without_interpreter_lock([&] {
          const convtime::CurrentDevice current(device);
          ticks = convtime::device_ticks({.on_gpu = true});
        });
        return py::dict(py::arg("globaltimer") = or_none(ticks.globaltimer),
                        py::arg("event") = or_none(ticks.events),
                        py::arg("record") = or_none(ticks.records));
      },
      py::arg("device"));
  module.def(
      "flush_buffer_bytes",
      [](int device, bool clean) {
        return convtime::flush_buffer_bytes(
            device, clean ? convtime::L2Lines::kClean : convtime::L2Lines::kDirty);
      },
      py::arg("device"), py::arg("clean"));
#endif
  module.def("kernel_method_unavailable", [] {
    std::string reason;
    without_interpreter_lock([&] { reason = convtime::kernel_method_unavailable(); });
    return reason;
  });
}

}  // namespace

convtime::StopRule read_stop_rule(Keywords& keywords) {
  return {.criterion = keywords.take_name<convtime::StopCriterion>("stop"),
          .min_samples = keywords.take<std::size_t>("min_samples"),
          .max_samples = keywords.take<std::size_t>("max_samples"),
          .budget_seconds = keywords.take<double>("budget"),
          .tolerance = keywords.take<double>("tolerance"),
          .margin = keywords.take<double>("margin")};
}

namespace {

/// Bind the statistics and decisions of timing/judge.
void bind_judge(py::module_& module) {
  module.attr("CONFIDENCE") = convtime::kConfidence;
  module.def("host_clock_tick", &convtime::host_clock_tick);
  module.attr("DOUBT_OF_CPU_RATIOS") = convtime::kDoubtOfCpuRatios;
  module.attr("WATCH_SECONDS") = convtime::kDeviceTraits.watch_seconds;
  module.def(
      "quantile",
      [](const std::vector<double>& values, double q) { return convtime::quantile(values, q); },
      py::arg("values"), py::arg("q"));
  module.def(
      "summarize",
      [](const std::vector<double>& values, double tick) {
        convtime::Summary summary = convtime::summarize(values);
        if (tick > 0) {
          summary.median = convtime::estimate_median({values}, {}, {.tick_seconds = tick}).value;
        }
        return py::dict(py::arg("mean") = summary.mean, py::arg("stdev") = summary.stdev,
                        py::arg("min") = summary.min, py::arg("max") = summary.max,
                        py::arg("median") = summary.median, py::arg("iqr") = summary.iqr);
      },
      py::arg("values"), py::arg("tick") = 0.0);
  module.def(
      "is_steady", [](const std::vector<double>& series) { return convtime::is_steady(series); },
      py::arg("series"));
  module.def("check_stop_rule", [](const py::kwargs& kwargs) {
    Keywords keywords("check_stop_rule", kwargs);
    const convtime::StopRule rule = read_stop_rule(keywords);
    keywords.finish();
    rule.validate();
  });
  module.def("stop_reason", [](const py::kwargs& kwargs) {
    Keywords keywords("stop_reason", kwargs);
    const auto samples = keywords.take<std::vector<std::vector<double>>>("samples");
    const auto elapsed_seconds = keywords.take<double>("elapsed_seconds");
    const convtime::StopRule rule = read_stop_rule(keywords);
    keywords.finish();
    rule.validate();
    if (samples.empty()) {
      throw std::invalid_argument("samples must contain at least one candidate, got none");
    }
    std::vector<convtime::CandidateTimes> candidates;
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
        const convtime::Estimate ratio = convtime::estimate_ratio(
            {over, over_places}, {under, under_places}, batches, {tick, uncertainty});
        return py::make_tuple(ratio.value, ratio.interval.low, ratio.interval.high);
      },
      py::arg("over"), py::arg("under"), py::arg("uncertainty") = 0.0, py::kw_only(),
      py::arg("tick") = 0.0, py::arg("over_places") = Numbers(),
      py::arg("under_places") = Numbers(), py::arg("batches") = Numbers());
  module.def(
      "median_interval",
      [](const std::vector<double>& seconds, const Numbers& places, const Numbers& batches,
         double tick, double uncertainty) {
        const convtime::Estimate median =
            convtime::estimate_median({seconds, places}, batches, {tick, uncertainty});
        return py::make_tuple(median.interval.low, median.interval.high, to_string(median.over),
                              median.count);
      },
      py::arg("seconds"), py::arg("places"), py::arg("batches"), py::arg("tick"),
      py::arg("uncertainty"));
  module.def(
      "judge",
      [](double low, double high, double margin, double doubt) {
        return to_string(convtime::judge({low, high}, margin, doubt));
      },
      py::arg("low"), py::arg("high"), py::arg("margin"), py::arg("doubt") = 0.0);
}

}  // namespace

PYBIND11_MODULE(_C, module) {
#ifdef CONVTIME_WITH_CUDA
  convtime::set_compilation_scope([](const std::function<void()>& compile) {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
      without_interpreter_lock(compile);
    } else {
      compile();
    }
  });
#endif
  module.doc() = "The C++ core of convtime; use it through the convtime package.";
  bind_conv(module);
  bind_counters(module);
  bind_trace(module);
  bind_host(module);
  bind_timing(module);
  bind_device(module);
  bind_judge(module);
}
