#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "bindings_callable.h"
#include "ops/timing/operator_watch.h"
#include "timing/conditions/result_places.h"
#include "timing/conditions/rotating_callable.h"
#include "timing/judge/estimate.h"
#include "timing/time_op.h"
#ifdef CONVTIME_WITH_CUDA
#include "ops/timing/torch_services.h"
#endif

namespace convtime::bindings {

py::dict launch_fields(const ActivityInfo& info) {
  return py::dict(py::arg("kind") = to_string(info.kind), py::arg("name") = demangle(info.name),
                  py::arg("grid") = py::tuple(py::cast(info.grid)),
                  py::arg("block") = py::tuple(py::cast(info.block)),
                  py::arg("registers_per_thread") = info.registers_per_thread,
                  py::arg("shared_memory_bytes") = info.shared_memory_bytes,
                  py::arg("bytes") = info.bytes, py::arg("device") = info.device);
}

namespace {

/// Return the fields of convtime.BatchRecord.
py::dict to_dict(const BatchRecord& record) {
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
auto reporting_to(py::handle on_batch) {
  return [on_batch](const BatchRecord& record) {
    const py::dict fields = to_dict(record);
    drop(checked(
        hanging_at_exit([&] { return PyObject_CallOneArg(on_batch.ptr(), fields.ptr()); })));
  };
}

py::tuple with_none(const std::vector<double>& values) {
  py::tuple result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    result[i] = or_none(values[i]);
  }
  return result;
}

template <typename Values>
py::tuple to_tuple(const Values& values) {
  return py::tuple(py::cast(values));
}

/// Return one dict per activity that the calls have in common, with the fields of
/// convtime.DeviceActivity.
py::tuple describe_activities(std::span<const std::vector<DeviceActivity>> calls) {
  py::list described;
  for (const ActivityColumn& column : tabulate(calls)) {
    py::dict fields = launch_fields(column.info);
    fields["seconds"] = with_none(column.seconds);
    fields["streams"] = to_tuple(column.streams);
    described.append(std::move(fields));
  }
  return py::tuple(described);
}

double sample_seconds(const CandidateSamples& candidate, const Sample& sample) {
  return sample.seconds * static_cast<double>(candidate.repeats);
}

/// Return the total sample time of each reading, summed over all candidates.
std::vector<double> seconds_of_readings(const SamplerResult& run) {
  std::vector<double> seconds(run.host.readings.size());
  for (const CandidateSamples& candidate : run.candidates) {
    for (const Sample& sample : candidate.samples) {
      if (sample.reading.has_value()) {
        seconds[*sample.reading] += sample_seconds(candidate, sample);
      }
    }
  }
  return seconds;
}

/// Drop the counts of a reading that also covers other samples: shares by time would make counts as
/// noisy as times.
void forget_counts(HostReading& reading) {
  for (double HostReading::* const count : {&HostReading::instructions, &HostReading::cycles,
                                            &HostReading::cache_misses, &HostReading::tlb_misses}) {
    reading.*count = HostReading::kUnknown;
  }
}

/// Return one dict per reading of a candidate's samples, with the fields of convtime.HostReading. A
/// reading that candidates share is divided in proportion to their sample time.
py::tuple host_readings(const SamplerResult& run, const CandidateSamples& candidate) {
  const std::vector<double> all_seconds = seconds_of_readings(run);
  py::list described;
  const std::vector<Sample>& samples = candidate.samples;
  for (auto next = samples.begin(); next != samples.end() && next->reading.has_value();) {
    const std::size_t index = *next->reading;
    double seconds = 0;
    std::size_t count = 0;
    for (; next != samples.end() && next->reading == index; ++next, ++count) {
      seconds += sample_seconds(candidate, *next);
    }
    HostReading reading = run.host.readings[index];
    if (reading.samples != count) {
      forget_counts(reading);
    }
    py::dict fields =
        reading_fields(reading, all_seconds[index] > 0 ? seconds / all_seconds[index] : 1);
    fields["samples"] = count;
    described.append(std::move(fields));
  }
  return py::tuple(described);
}

/// Return a candidate's results under the field names of convtime.Measurement, with the fields of
/// samples as columns. Takes the samples' activities.
py::dict to_record(const Timing& timing, CandidateSamples& candidate) {
  const SamplerResult& run = timing.samples;
  std::vector<std::vector<DeviceActivity>> activities;
  for (Sample& sample : candidate.samples) {
    if (sample.activities.has_value()) {
      activities.push_back(std::move(*sample.activities));
    }
  }
  const auto for_each_call = [&](double (*seconds_of)(std::span<const DeviceActivity>)) {
    py::tuple seconds(activities.size());
    for (std::size_t call = 0; call < activities.size(); ++call) {
      seconds[call] = seconds_of(activities[call]);
    }
    return seconds;
  };
  const std::vector<double> seconds = candidate.seconds();
  const std::vector<std::size_t> places = candidate.places();
  return py::dict(
      py::arg("seconds") = to_tuple(seconds), py::arg("discarded") = to_tuple(candidate.discarded),
      py::arg("places") = to_tuple(places), py::arg("batches") = to_tuple(candidate.batches()),
      py::arg("clock_tick") = run.clock_tick_seconds,
      py::arg("placement_variance_share") = placement_variance_share({seconds, places}),
      py::arg("overhead") = timing.overhead.value.seconds,
      py::arg("overhead_uncertainty") = timing.overhead.value.uncertainty_seconds,
      py::arg("overhead_reason") = timing.overhead.reason,
      py::arg("raw_seconds") = to_tuple(column(candidate.samples, &Sample::raw_seconds)),
      py::arg("busy_seconds") = for_each_call(busy_seconds),
      py::arg("span_seconds") = for_each_call(span_seconds),
      py::arg("sum_seconds") = for_each_call(sum_seconds),
      py::arg("unrecorded") =
          to_tuple(std::vector(candidate.unrecorded.begin(), candidate.unrecorded.end())),
      py::arg("other_launches") = run.of_other_threads,
      py::arg("faulty_batches") = run.faulty_batches, py::arg("fault") = run.fault,
      py::arg("activities") = describe_activities(activities),
      py::arg("host") = host_readings(run, candidate),
      py::arg("used_cores") = to_tuple(run.host.used_cores),
      py::arg("host_reason") = run.host.missing,
      py::arg("counters_reason") = run.host.counters_reason,
      py::arg("disturbance") = candidate.disturbance,
      py::arg("between_runs") = candidate.between_runs, py::arg("repeats") = candidate.repeats,
      py::arg("sm_clocks_hz") = with_none(candidate.sm_clocks_hz()),
      py::arg("max_sm_clock_hz") = timing.max_sm_clock_hz,
      py::arg("method") = to_string(timing.method.value),
      py::arg("method_reason") = timing.method.reason,
      py::arg("queue") = to_string(timing.queue.value),
      py::arg("queue_reason") = timing.queue.reason,
      py::arg("regime") = to_string(timing.regime.value),
      py::arg("regime_reason") = timing.regime.reason, py::arg("steady") = run.steady,
      py::arg("warmup_calls") = run.warmup_calls, py::arg("warmup_seconds") = run.warmup_seconds,
      py::arg("first_call_seconds") = candidate.first_call.seconds,
      py::arg("first_call_compile_seconds") = candidate.first_call.compile_seconds,
      py::arg("sampling_seconds") = run.sampling_seconds,
      py::arg("idle_seconds") = run.idle_seconds,
      py::arg("stop_reason") = to_string(run.stop_reason));
}

/// Build a callable from `candidate`, a dict with the fields of
/// convtime.timing.sampling.calls.PreparedCalls.
std::unique_ptr<RotatingCallable> make_rotating(const py::dict& candidate) {
  const py::object blocks_of = candidate["result_blocks"];
  std::vector<std::unique_ptr<Callable>> copies;
  for (const auto& copy : candidate["copies"].cast<std::vector<CallOfPython>>()) {
    copies.push_back(make_callable(copy, blocks_of));
  }
  Rotation rotation{.visits = candidate["visits"].cast<std::vector<std::size_t>>(),
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
    rotation.results = std::make_unique<ResultPlaces>(
        ops::torch_device_memory, copies.size(), candidate["max_result_bytes"].cast<std::size_t>());
  }
#endif
  return std::make_unique<RotatingCallable>(std::move(copies), std::move(rotation));
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
class OfOneRank final : public ForwardingCallable {
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

  std::optional<ops::CollectiveWatch> watch_;
  bool settled_ = false;
};

/// An agreement whose functions are methods of a Python object.
class PythonAgreement final : public BatchAgreement {
 public:
  /// `agreement` must outlive this object: options are copied without the GIL.
  explicit PythonAgreement(py::handle agreement) : agreement_(agreement) {}

  double begin(double tick_seconds) override {
    return agreement_.attr("begin")(tick_seconds).cast<double>();
  }
  std::size_t rounds(std::size_t proposed) override {
    return agreement_.attr("rounds")(proposed).cast<std::size_t>();
  }
  void release() override { agreement_.attr("release")(); }
  void share(SharedBatch& batch) override {
    const py::dict all = agreement_.attr("share")(py::dict(
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
  py::handle agreement_;
};

/// Read the options of one timing. Each name and default is here alone.
TimingOptions read_options(Keywords& keywords) {
  TimingOptions options;
  options.method = keywords.take_name<Method>("method");
  options.metric = keywords.take_name<Metric>("metric");
  options.queue = keywords.take_name<Queue>("queue");
  options.regime = keywords.take_name<Regime>("regime");
  options.on_gpu = keywords.take<bool>("on_gpu");
  options.stream = reinterpret_cast<void*>(keywords.take<std::uintptr_t>("stream"));
  options.flush = flush_buffers(keywords.take<FlushBuffers>("flush"));
  options.other_devices = keywords.take<std::vector<int>>("other_devices");
#ifdef CONVTIME_WITH_CUDA
  options.graph_recorder = ops::torch_graph_recorder();
  options.calibration_reference = ops::torch_calibration_reference;
  options.allocate = ops::torch_device_memory;
#endif
  options.warmup.calls = keywords.take<std::size_t>("warmup_calls");
  options.warmup.seconds = keywords.take<double>("warmup_seconds");
  options.warmup.steady = keywords.take<bool>("warmup_steady");
  options.warmup.max_steady_seconds = keywords.take<double>("max_steady_seconds");
  options.stop = read_stop_rule(keywords);
  options.stop.first_batch_seconds = keywords.take<double>("first_batch_seconds");
  options.hooks = python_hooks();
  options.supervision.deadline = Deadline::after(keywords.take<double>("seconds_left"));
  return options;
}

py::list time_candidates(const py::kwargs& kwargs) {
  Keywords keywords("time_candidates", kwargs);
  const auto candidates = keywords.take<std::vector<py::dict>>("candidates");
  const bool several_ranks = keywords.take<bool>("several_ranks");
  const auto on_batch = keywords.take<py::object>("on_batch");
  const auto agreement = keywords.take<py::object>("agreement", py::none());
  TimingOptions options = read_options(keywords);
  keywords.finish();
  if (!on_batch.is_none()) {
    options.supervision.on_batch = reporting_to(on_batch);
  }
  PythonAgreement python_agreement(agreement);
  if (!agreement.is_none()) {
    options.supervision.agreement = &python_agreement;
  }

  std::vector<std::unique_ptr<RotatingCallable>> callables;
  std::vector<std::unique_ptr<OfOneRank>> refusing;
  std::vector<Callable*> pointers;
  for (const py::dict& candidate : candidates) {
    callables.push_back(make_rotating(candidate));
    pointers.push_back(callables.back().get());
    if (several_ranks) {
      pointers.back() = refusing.emplace_back(std::make_unique<OfOneRank>(*pointers.back())).get();
    }
    candidate.attr("clear")();  // free the memory of abandoned copies
  }
  Timing timing;
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

/// Wraps ops::CollectiveWatch as a Python context manager, which raises if it saw a
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
  std::optional<ops::CollectiveWatch> watch_;
};

}  // namespace

void bind_timing(py::module_& module) {
  module.def("time_candidates", &time_candidates);
  py::register_exception<DeadlineError>(module, "DeadlineError", PyExc_TimeoutError);
  py::register_exception<CollectiveRefused>(module, "CollectiveRefused", PyExc_ValueError);
  py::class_<ops::CollectiveStamps>(module, "CollectiveStamps")
      .def(py::init())
      .def("count", &ops::CollectiveStamps::count)
      .def("take", &ops::CollectiveStamps::take);
  py::class_<OfOneRankContext>(module, "OfOneRank")
      .def(py::init())
      .def("__enter__", &OfOneRankContext::enter)
      .def("__exit__", &OfOneRankContext::exit);
}

}  // namespace convtime::bindings
