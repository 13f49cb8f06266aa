#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings_callable.h"
#include "bindings.h"
#include "ops/timing/collective_watch.h"
#include "ops/timing/cpu_pages.h"
#include "timing/callable.h"
#include "timing/conditions/result_places.h"
#include "timing/conditions/rotating_callable.h"
#include "timing/device_traits.h"
#include "timing/judge/disturbance.h"
#include "timing/judge/estimate.h"
#include "timing/judge/statistics.h"
#include "timing/judge/steadiness.h"
#include "timing/judge/stop_rule.h"
#include "timing/samples.h"
#include "timing/supervision.h"
#include "timing/time_op.h"
#include "timing/timers/host_timer.h"
#ifdef CONVTIME_WITH_CUDA
#include "core/cuda.h"
#include "core/synchronize.h"
#include "ops/timing/calibration_reference.h"
#include "ops/timing/device_allocator.h"
#include "ops/timing/graph_recorder.h"
#include "program/program.h"
#include "timing/conditions/persisting_l2.h"
#include "timing/factory.h"
#include "timing/trace/cupti_session.h"
#endif

namespace py = pybind11;

namespace {

/// Return the fields of convtime.BatchRecord.
py::dict to_dict(const convtime::BatchRecord& record) {
  return py::dict(py::arg("phase") = record.warming_up ? "warm-up" : "sampling",
                  py::arg("rounds") = record.rounds, py::arg("held") = record.held,
                  py::arg("fate") = record.fate, py::arg("gap_seconds") = record.gap_seconds,
                  py::arg("idle_clock_hz") = or_none(record.idle_clock_hz),
                  py::arg("lowest_clock_hz") = or_none(record.lowest_clock_hz),
                  py::arg("highest_clock_hz") = or_none(record.highest_clock_hz),
                  py::arg("issue_seconds") = record.issue_seconds,
                  py::arg("wall_seconds") = record.wall_seconds);
}

/// `on_batch` must outlive the result: options are copied without the GIL.
convtime::Supervision supervision(double seconds_left, py::handle on_batch) {
  convtime::Supervision supervision{convtime::Deadline::after(seconds_left)};
  if (!on_batch.is_none()) {
    supervision.on_batch = [on_batch](const convtime::BatchRecord& record) {
      const py::dict fields = to_dict(record);
      drop(checked(
          hanging_at_exit([&] { return PyObject_CallOneArg(on_batch.ptr(), fields.ptr()); })));
    };
  }
  return supervision;
}

py::tuple with_none(const std::vector<double>& values) {
  py::tuple result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    result[i] = or_none(values[i]);
  }
  return result;
}

template <typename Value>
py::tuple to_tuple(const std::vector<Value>& values) {
  return py::tuple(py::cast(values));
}

using SecondsOf = double (*)(std::span<const convtime::DeviceActivity>);

py::tuple for_each_call(const convtime::CandidateSamples& samples, SecondsOf seconds_of) {
  py::tuple seconds(samples.activities.size());
  for (std::size_t call = 0; call < seconds.size(); ++call) {
    seconds[call] = seconds_of(samples.activities[call]);
  }
  return seconds;
}

/// Return one dict per activity that the calls have in common, with the fields of
/// convtime.DeviceActivity.
py::tuple activities_of(const convtime::CandidateSamples& samples) {
  py::list described;
  for (const convtime::ActivityColumn& column : convtime::tabulate(samples.activities)) {
    const convtime::ActivityInfo& info = column.info;
    described.append(py::dict(
        py::arg("kind") = convtime::to_string(info.kind), py::arg("name") = column.name,
        py::arg("grid") = py::tuple(py::cast(info.grid)),
        py::arg("block") = py::tuple(py::cast(info.block)),
        py::arg("registers_per_thread") = info.registers_per_thread,
        py::arg("shared_memory_bytes") = info.shared_memory_bytes, py::arg("bytes") = info.bytes,
        py::arg("seconds") = with_none(column.seconds), py::arg("device") = info.device,
        py::arg("streams") = py::tuple(py::cast(column.streams))));
  }
  return py::tuple(described);
}

/// Return the total sample time of each reading, summed over all candidates.
std::vector<double> own_seconds_of_readings(const convtime::SamplerResult& run) {
  std::vector<double> seconds(run.host.readings.size());
  for (const convtime::CandidateSamples& samples : run.candidates) {
    for (std::size_t i = 0; i < samples.readings.size(); ++i) {
      seconds[samples.readings[i]] += samples.seconds[i] * static_cast<double>(samples.repeats);
    }
  }
  return seconds;
}

/// Drop the counts of a reading that also covers other samples: shares by time would make counts as
/// noisy as times.
void forget_counts(convtime::HostReading& reading) {
  for (double convtime::HostReading::* const count :
       {&convtime::HostReading::instructions, &convtime::HostReading::cycles,
        &convtime::HostReading::cache_misses, &convtime::HostReading::tlb_misses}) {
    reading.*count = convtime::HostReading::kUnknown;
  }
}

/// Return one dict per reading of a candidate's samples, with the fields of convtime.HostReading. A
/// reading that candidates share is divided in proportion to their sample time.
py::tuple host_readings(const convtime::HostRecord& record,
                        const convtime::CandidateSamples& samples,
                        const std::vector<double>& seconds_of_reading) {
  py::list described;
  for (std::size_t i = 0, end = 0; i < samples.readings.size(); i = end) {
    double seconds = 0;
    for (end = i; end < samples.readings.size() && samples.readings[end] == samples.readings[i];
         ++end) {
      seconds += samples.seconds[end] * static_cast<double>(samples.repeats);
    }
    const std::size_t index = samples.readings[i];
    convtime::HostReading reading = record.readings[index];
    if (reading.samples != end - i) {
      forget_counts(reading);
    }
    const double all = seconds_of_reading[index];
    const double share = all > 0 ? seconds / all : 1;
    py::dict fields = reading_fields(reading, share);
    fields["samples"] = end - i;
    described.append(std::move(fields));
  }
  return py::tuple(described);
}

/// Return a candidate's results under the field names of convtime.Measurement.
py::dict to_record(const convtime::Timing& timing, const convtime::CandidateSamples& samples) {
  const convtime::SamplerResult& run = timing.samples;
  return py::dict(
      py::arg("seconds") = to_tuple(samples.seconds),
      py::arg("discarded") = to_tuple(samples.discarded),
      py::arg("places") = to_tuple(samples.places), py::arg("batches") = to_tuple(run.batches),
      py::arg("clock_tick") = run.clock_tick_seconds,
      py::arg("placement_variance_share") =
          convtime::placement_variance_share({samples.seconds, samples.places}),
      py::arg("overhead") = timing.overhead.value.seconds,
      py::arg("overhead_uncertainty") = timing.overhead.value.uncertainty_seconds,
      py::arg("overhead_reason") = timing.overhead.reason,
      py::arg("raw_seconds") = to_tuple(samples.raw_seconds),
      py::arg("busy_seconds") = for_each_call(samples, convtime::busy_seconds),
      py::arg("span_seconds") = for_each_call(samples, convtime::span_seconds),
      py::arg("sum_seconds") = for_each_call(samples, convtime::sum_seconds),
      py::arg("unrecorded") =
          py::tuple(py::cast(std::vector(samples.unrecorded.begin(), samples.unrecorded.end()))),
      py::arg("other_launches") = run.of_other_threads,
      py::arg("faulty_batches") = run.faulty_batches, py::arg("fault") = run.fault,
      py::arg("activities") = activities_of(samples),
      py::arg("host") = host_readings(run.host, samples, own_seconds_of_readings(run)),
      py::arg("used_cores") = to_tuple(run.host.used_cores),
      py::arg("host_reason") = run.host.missing,
      py::arg("counters_reason") = run.host.counters_reason,
      py::arg("disturbance") = samples.disturbance, py::arg("between_runs") = samples.between_runs,
      py::arg("repeats") = samples.repeats,
      py::arg("sm_clocks_hz") = with_none(samples.sm_clocks_hz),
      py::arg("max_sm_clock_hz") = timing.max_sm_clock_hz,
      py::arg("method") = convtime::to_string(timing.method.value),
      py::arg("method_reason") = timing.method.reason,
      py::arg("queue") = convtime::to_string(timing.queue.value),
      py::arg("queue_reason") = timing.queue.reason,
      py::arg("regime") = convtime::to_string(timing.regime.value),
      py::arg("regime_reason") = timing.regime.reason, py::arg("steady") = run.steady,
      py::arg("warmup_calls") = run.warmup_calls, py::arg("warmup_seconds") = run.warmup_seconds,
      py::arg("first_call_seconds") = samples.first_call.seconds,
      py::arg("first_call_compile_seconds") = samples.first_call.compile_seconds,
      py::arg("sampling_seconds") = run.sampling_seconds,
      py::arg("idle_seconds") = run.idle_seconds,
      py::arg("stop_reason") = convtime::to_string(run.stop_reason));
}

/// Build a callable from `candidate`, a dict with the fields of
/// convtime.timing.sampling.calls.PreparedCalls.
std::unique_ptr<convtime::RotatingCallable> make_rotating(const py::dict& candidate) {
  const py::object blocks_of = candidate["result_blocks"];
  std::vector<std::unique_ptr<convtime::Callable>> copies;
  for (const auto& copy : candidate["copies"].cast<std::vector<CallOfPython>>()) {
    copies.push_back(make_callable(copy, blocks_of));
  }
  convtime::Rotation rotation{.visits = candidate["visits"].cast<std::vector<std::size_t>>(),
                              .warm = candidate["warm"].cast<bool>()};
  if (const py::object verify = candidate["verify"]; !verify.is_none()) {
    rotation.verify = [verify] {
      return checked(hanging_at_exit([&] { return PyObject_CallNoArgs(verify.ptr()); }))
          .cast<std::optional<bool>>();
    };
    rotation.original = make_callable(candidate["original"].cast<CallOfPython>(), py::none());
  }
#ifdef CONVTIME_WITH_CUDA
  if (!blocks_of.is_none()) {
    rotation.results =
        std::make_unique<convtime::ResultPlaces>(convtime::ops::torch_device_memory, copies.size(),
                                                 candidate["max_result_bytes"].cast<std::size_t>());
  }
#endif
  return std::make_unique<convtime::RotatingCallable>(std::move(copies), std::move(rotation));
}

/// A call communicates with other ranks, and each rank would decide by itself how often to call it.
class CollectiveRefused final : public std::invalid_argument {
 public:
  CollectiveRefused()
      : std::invalid_argument(
            "the call uses torch.distributed in a process group of several ranks, and each rank "
            "would decide by itself how often to call it: use time_op or compare, which all ranks "
            "call together, or leave out the communication") {}
};

/// Refuses calls that communicate with other ranks, because each rank decides independently how
/// often it calls. It throws after the first call, which every rank makes, with the same message on
/// each rank.
class OfOneRank final : public convtime::ForwardingCallable {
 public:
  using ForwardingCallable::ForwardingCallable;

  void prepare() override {
    watch();  // an untimed forward pass communicates, too
    ForwardingCallable::prepare();
  }
  void call() override {
    watch();  // graphs are captured without a preparation
    ForwardingCallable::call();
    if (watch_.has_value() && watch_->seen()) {
      throw CollectiveRefused();
    }
  }
  void settle() override {
    settled_ = true;
    watch_.reset();
    ForwardingCallable::settle();
  }

 private:
  void watch() {
    if (!settled_ && !watch_.has_value()) {
      watch_.emplace();
    }
  }

  std::optional<convtime::ops::CollectiveWatch> watch_;
  bool settled_ = false;
};

/// An accord whose functions are methods of a Python object.
class PythonAccord final : public convtime::Accord {
 public:
  /// `accord` must outlive this object: options are copied without the GIL.
  explicit PythonAccord(py::handle accord) : accord_(accord) {}

  double begin(double tick_seconds) override {
    return accord_.attr("begin")(tick_seconds).cast<double>();
  }
  std::size_t rounds(std::size_t proposed) override {
    return accord_.attr("rounds")(proposed).cast<std::size_t>();
  }
  void release() override { accord_.attr("release")(); }
  void share(convtime::SharedBatch& batch) override {
    const py::dict all = accord_.attr("share")(py::dict(
        py::arg("seconds") = batch.seconds, py::arg("fault") = batch.fault,
        py::arg("held") = batch.held, py::arg("hold_given_up") = batch.hold_given_up,
        py::arg("unordered") = batch.unordered, py::arg("elapsed_seconds") = batch.elapsed_seconds,
        py::arg("time_is_up") = batch.time_is_up));
    batch.seconds = all["seconds"].cast<std::vector<std::vector<double>>>();
    batch.fault = all["fault"].cast<std::string>();
    batch.held = all["held"].cast<bool>();
    batch.hold_given_up = all["hold_given_up"].cast<bool>();
    batch.unordered = all["unordered"].cast<bool>();
    batch.elapsed_seconds = all["elapsed_seconds"].cast<double>();
    batch.time_is_up = all["time_is_up"].cast<bool>();
  }

 private:
  py::handle accord_;
};

convtime::StopRule stop_rule(const std::string& stop, std::size_t min_samples,
                             std::size_t max_samples, double budget, double tolerance,
                             double margin) {
  return {convtime::stop_criterion_from_string(stop),
          min_samples,
          max_samples,
          budget,
          tolerance,
          margin};
}

using Numbers = std::vector<std::size_t>;

py::list time_candidates(const std::vector<py::dict>& candidates, const std::string& method,
                         const std::string& metric, const std::string& queue,
                         const std::string& regime, bool on_gpu, std::uintptr_t stream,
                         const FlushBuffers& flush, const std::vector<int>& other_devices,
                         bool several_ranks, std::size_t warmup_calls, double warmup_seconds,
                         bool warmup_steady, double max_steady_seconds, const std::string& stop,
                         std::size_t min_samples, std::size_t max_samples, double budget,
                         double tolerance, double margin, double first_batch_seconds,
                         double seconds_left, const py::object& on_batch,
                         const py::object& accord) {
  std::vector<std::unique_ptr<convtime::RotatingCallable>> callables;
  std::vector<std::unique_ptr<OfOneRank>> refusing;
  std::vector<convtime::Callable*> pointers;
  for (const py::dict& candidate : candidates) {
    callables.push_back(make_rotating(candidate));
    pointers.push_back(callables.back().get());
    if (several_ranks) {
      pointers.back() = refusing.emplace_back(std::make_unique<OfOneRank>(*pointers.back())).get();
    }
    candidate.attr("clear")();  // free the memory of abandoned copies
  }
  convtime::TimingOptions options;
  options.method = convtime::method_from_string(method);
  options.metric = convtime::metric_from_string(metric);
  options.queue = convtime::queue_from_string(queue);
  options.regime = convtime::regime_from_string(regime);
  options.on_gpu = on_gpu;
  options.stream = reinterpret_cast<void*>(stream);
  options.flush = flush_buffers(flush);
  options.other_devices = other_devices;
#ifdef CONVTIME_WITH_CUDA
  options.graph_recorder = convtime::ops::torch_graph_recorder();
  options.calibration_reference = convtime::ops::torch_calibration_reference;
  options.allocate = convtime::ops::torch_device_memory;
#endif
  options.warmup.calls = warmup_calls;
  options.warmup.seconds = warmup_seconds;
  options.warmup.steady = warmup_steady;
  options.warmup.max_steady_seconds = max_steady_seconds;
  options.stop = stop_rule(stop, min_samples, max_samples, budget, tolerance, margin);
  options.stop.first_batch_seconds = first_batch_seconds;
  options.hooks = python_hooks();
  options.supervision = supervision(seconds_left, on_batch);
  PythonAccord python_accord(accord);
  if (!accord.is_none()) {
    options.supervision.accord = &python_accord;
  }
  convtime::Timing timing;
  try {
    timing = convtime::time_candidates(pointers, options);
  } catch (const std::exception& error) {
    rethrow_interrupt(error);
    throw;
  }

  py::list records;
  for (std::size_t i = 0; i < callables.size(); ++i) {
    py::dict record = to_record(timing, timing.samples.candidates[i]);
    record["results_reason"] = callables[i]->results_reason();
    records.append(std::move(record));
  }
  return records;
}

/// Wraps convtime::ops::CollectiveWatch as a Python context manager, which raises if it saw a
/// collective.
class OfOneRankContext {
 public:
  void enter() { watch_.emplace(); }
  void exit(const py::object& raised, const py::object&, const py::object&) {
    const bool seen = watch_->seen();
    watch_.reset();
    if (seen && raised.is_none()) {
      throw CollectiveRefused();
    }
  }

 private:
  std::optional<convtime::ops::CollectiveWatch> watch_;
};

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
  explicit CpuPagesContext(const std::string& pages) : pages_(pages_from_string(pages)) {}

  CpuPagesContext& enter() {
    held_.emplace(pages_);
    return *this;
  }
  std::string reason() const { return held_ ? held_->reason() : "not started"; }

 private:
  static convtime::ops::Pages pages_from_string(const std::string& pages) {
    if (pages == "fresh") {
      return convtime::ops::Pages::kFresh;
    }
    if (pages == "retained") {
      return convtime::ops::Pages::kRetained;
    }
    throw std::invalid_argument("pages must be 'fresh' or 'retained', got '" + pages + "'");
  }

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
  module.def("time_candidates", &time_candidates, py::kw_only(), py::arg("candidates"),
             py::arg("method"), py::arg("metric"), py::arg("queue"), py::arg("regime"),
             py::arg("on_gpu"), py::arg("stream"), py::arg("flush"), py::arg("other_devices"),
             py::arg("several_ranks"), py::arg("warmup_calls"), py::arg("warmup_seconds"),
             py::arg("warmup_steady"), py::arg("max_steady_seconds"), py::arg("stop"),
             py::arg("min_samples"), py::arg("max_samples"), py::arg("budget"),
             py::arg("tolerance"), py::arg("margin"), py::arg("first_batch_seconds"),
             py::arg("seconds_left"), py::arg("on_batch"), py::arg("accord") = py::none());
  py::register_exception<convtime::DeadlineError>(module, "DeadlineError", PyExc_TimeoutError);
  py::register_exception<CollectiveRefused>(module, "CollectiveRefused", PyExc_ValueError);
  py::class_<convtime::ops::CollectiveStamps>(module, "CollectiveStamps")
      .def(py::init())
      .def("count", &convtime::ops::CollectiveStamps::count)
      .def("take", &convtime::ops::CollectiveStamps::take);
  module.def("kernel_cache", &kernel_cache);
  module.def("cuda_available", &convtime::cuda_available);
  py::class_<OfOneRankContext>(module, "OfOneRank")
      .def(py::init())
      .def("__enter__", &OfOneRankContext::enter)
      .def("__exit__", &OfOneRankContext::exit);
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
  module.def(
      "check_stop_rule",
      [](const std::string& stop, std::size_t min_samples, std::size_t max_samples, double budget,
         double tolerance, double margin) {
        stop_rule(stop, min_samples, max_samples, budget, tolerance, margin).validate();
      },
      py::arg("stop"), py::arg("min_samples"), py::arg("max_samples"), py::arg("budget"),
      py::arg("tolerance"), py::arg("margin"));
  module.def(
      "stop_reason",
      [](const std::vector<std::vector<double>>& samples, double elapsed_seconds,
         const std::string& stop, std::size_t min_samples, std::size_t max_samples, double budget,
         double tolerance, double margin) {
        const convtime::StopRule rule =
            stop_rule(stop, min_samples, max_samples, budget, tolerance, margin);
        rule.validate();
        if (samples.empty()) {
          throw std::invalid_argument("samples must contain at least one candidate, got none");
        }
        std::vector<convtime::CandidateTimes> candidates;
        for (const std::vector<double>& seconds : samples) {
          candidates.push_back({seconds});
        }
        return convtime::to_string(rule.decide({candidates}, elapsed_seconds));
      },
      py::arg("samples"), py::arg("elapsed_seconds"), py::arg("stop"), py::arg("min_samples"),
      py::arg("max_samples"), py::arg("budget"), py::arg("tolerance"), py::arg("margin"));
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
        return py::make_tuple(median.interval.low, median.interval.high,
                              convtime::to_string(median.over), median.count);
      },
      py::arg("seconds"), py::arg("places"), py::arg("batches"), py::arg("tick"),
      py::arg("uncertainty"));
  module.def(
      "judge",
      [](double low, double high, double margin, double doubt) {
        return convtime::to_string(convtime::judge({low, high}, margin, doubt));
      },
      py::arg("low"), py::arg("high"), py::arg("margin"), py::arg("doubt") = 0.0);
}
