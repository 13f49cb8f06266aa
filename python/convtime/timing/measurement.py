"""Measurement of one operation: its samples, method and conditions; and several by name."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from convtime.core import codec
from convtime.core.load import _C
from convtime.device.clock_trace import THROTTLED_BELOW, ClockReading
from convtime.timing import forms
from convtime.timing.activity import DeviceActivity
from convtime.timing.ranks import Ranks
from convtime.view.figure import Figure
from convtime.view.shown import Shown

if TYPE_CHECKING:
    import pandas
    import torch.utils.benchmark
from collections.abc import Sequence
from typing import Generic, TypeVar

# Criteria for samples that form two groups.
_FEWEST_OF_GROUPS = 20
_SHARE_OF_GROUP = 0.2
_GAP_OF_GROUPS = 0.2


@dataclasses.dataclass(frozen=True)
class HostReading:
    """Totals over some consecutive samples; None for values that this system does not report.

    A reading of a long call covers one sample, and only the call. Short calls share a reading with
    the calls before and after, and with everything between them. If several candidates share a
    reading, each gets a share in proportion to its time, so counts can be fractions. The
    last four come from the CPU's performance counters (Linux perf). They cover user space and all
    threads of this process, and are None for a reading that includes other calls.

    Attributes:
        samples: number of samples that it covers.
        seconds: time from its start to its end.
        cpu_seconds: CPU time of all threads of this process. The kernel accounts for threads other
            than the calling one at its ticks, some milliseconds apart. The value is therefore
            correct only on average over readings.
        waiting_seconds: time for which runnable threads waited for a core, summed over threads.
        longest_wait_seconds: the same for the thread that waited longest.
        voluntary_switches: how often a thread gave up its core, to sleep or to wait for something.
        involuntary_switches: how often a thread was preempted.
        minor_faults: number of pages that were touched for the first time, or mapped anew.
        major_faults: number of pages that were read from a disk.
        migrations: how often the calling thread was found on another core than before.
        threads: count of threads of this process that computed in it, or some milliseconds before.
        throttled_seconds: time for which a cgroup's quota stopped this process.
        others_seconds: CPU time of other processes, on all cores that this process may use.
        stolen_seconds: time for which the hypervisor kept these cores from running.
        instructions: executed instructions.
        cycles: clock cycles of the cores.
        cache_misses: misses of the last-level cache.
        tlb_misses: misses of loads in the data TLB.
    """

    samples: int
    seconds: float
    cpu_seconds: float
    waiting_seconds: float | None = None
    longest_wait_seconds: float | None = None
    voluntary_switches: float = 0.0
    involuntary_switches: float = 0.0
    minor_faults: float = 0.0
    major_faults: float = 0.0
    migrations: int = 0
    threads: float | None = None
    throttled_seconds: float | None = None
    others_seconds: float | None = None
    stolen_seconds: float | None = None
    instructions: float | None = None
    cycles: float | None = None
    cache_misses: float | None = None
    tlb_misses: float | None = None


def two_groups(seconds: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Return shares and medians of the two groups that samples form; usually empty."""
    if len(seconds) < _FEWEST_OF_GROUPS:
        return ()
    ordered = sorted(seconds)
    fewest = math.ceil(_SHARE_OF_GROUP * len(ordered))
    split = max(
        range(fewest, len(ordered) - fewest + 1),
        key=lambda index: ordered[index] - ordered[index - 1],
    )
    if ordered[split] - ordered[split - 1] < _GAP_OF_GROUPS * ordered[split - 1]:
        return ()
    return tuple(
        (len(group) / len(ordered), statistics.median(group))
        for group in (ordered[:split], ordered[split:])
    )


Value = TypeVar("Value", str, bool)


@dataclasses.dataclass(frozen=True, eq=False)
class Condition(Generic[Value]):
    """The condition that was used, and the requested one.

    It compares equal to the used value, and to a condition with the same used value.

    Attributes:
        used: the condition during the measurement.
        requested: the condition in the options.
        reason: why they differ, or how the used value was chosen; empty if neither needs a reason.
    """

    used: Value
    requested: Value
    reason: str = ""

    def __eq__(self, other: object) -> bool:
        used: object = other.used if isinstance(other, Condition) else other
        return self.used == used

    def __hash__(self) -> int:
        return hash(self.used)

    def __bool__(self) -> bool:
        return bool(self.used)

    def __str__(self) -> str:
        return str(self.used)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


# The core uses unsigned numbers of the same size, but msgspec has no larger bound.
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]
_Rate = Annotated[float, msgspec.Meta(gt=0)]


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """Rates that a device attained at its clocks during the measurement.

    Attributes:
        bytes_per_second: bytes read and written by a large copy, per second.
        flops_per_second: rate of a large square matmul of random values.
        matmul_dtype: dtype of that matmul.
    """

    bytes_per_second: _Rate
    flops_per_second: _Rate
    matmul_dtype: str

    def __str__(self) -> str:
        return (
            f"copy {self.bytes_per_second / 1e9:,.0f} GB/s, {self.matmul_dtype} matmul "
            f"{self.flops_per_second / 1e12:,.3g} TFLOP/s"
        )


@dataclasses.dataclass(frozen=True, repr=False)
class Measurement(codec.Stored, Shown, show="convtime.timing.show"):
    """The samples of one operation, with how and where they were taken. All times in seconds.

    ``method``, ``metric``, ``queue``, ``cache``, ``placement``, ``pages``, ``regime`` and
    ``exclusive`` are conditions: each compares equal to the value that was used, and has the
    attributes ``requested`` and ``reason`` (why it differs, or how it was chosen).

    For a measurement of another tool (:func:`convtime.read_measurements`), strings that it does not
    report are ``unknown``, and numbers are None or empty.

    Attributes:
        name: name of the operation.
        seconds: every sample, in the order taken; at least one.
        discarded: samples that are not in ``seconds`` because the queue could not be held, or the
            GPU was not in the requested regime; ``overhead`` is also subtracted.
        places: for each sample, number of the tensor placement that the call used; empty if there
            is only one placement, or if a sample covers several calls (``graph``).
        batches: for each sample, number of the batch of calls that it was issued in. The numbers
            increase, and skip batches that gave no samples.
        clock_tick: tick of the clock that the samples were read from, if it matters; otherwise 0.
        placement_variance_share: share of the samples' variance that is between placements, from 0
            to 1, as estimated by one-way analysis of variance with random effects; None if fewer
            than four placements have two samples or more.
        overhead: for the methods ``event`` and ``graph``, the overhead that was subtracted from
            each raw sample: the time that a pair of events, or the gap to a graph's next node, adds
            to a single kernel on this device, measured against CUPTI. 0 if it is unknown, and for
            other methods.
        overhead_uncertainty: error bound of ``overhead`` in either direction, with 95 % confidence;
            it is part of :attr:`median_interval`, and of a comparison's ratios.
        overhead_reason: why ``overhead`` is unknown; empty if it is known, and for other methods.
        raw_seconds: for these methods, the samples before the subtraction; empty if ``overhead``
            is 0.
        metric: the time of a call that ``seconds`` contains. For the method ``kernel``, it is a
            time of the call's kernels, copies and memsets: ``busy`` (the time in which at least one
            of the kernels, copies and memsets ran), ``span`` (from the first start to the last end,
            gaps included) or ``sum`` (sum of their durations). For other methods ``elapsed``.
        busy_seconds: for the method ``kernel``, the busy time of each sample; otherwise empty.
        span_seconds: for the method ``kernel``, the span of each sample; otherwise empty.
        sum_seconds: for the method ``kernel``, the sum of each sample, which is more than
            ``busy_seconds`` if work overlaps; otherwise empty.
        unrecorded: for the method ``kernel``, CUDA functions with which the call issued GPU work
            that CUPTI did not record; that work is missing from all of these times.
        activities: for the method ``kernel``, the device work, in order of first occurrence.
        sm_clocks_hz: SM clock of the GPU around each sample, over a window of at least 50 µs, in
            hertz; None if it is unknown. Empty on a CPU.
        max_sm_clock_hz: maximum SM clock; None on a CPU.
        method: the timing method: ``kernel`` (the device's time for the call's kernels, copies and
            memsets; see ``metric``), ``event`` (between two CUDA events around the call, minus
            ``overhead``), ``graph`` (one of many calls in CUDA graphs, minus ``overhead``),
            ``sync`` (host clock from an idle device to an idle device) or ``cpu`` (host clock
            around the call).
        queue: how the device was kept from starting before all calls of a batch were issued:
            ``gate`` (a kernel waited for the host's signal), ``sleep`` (a kernel slept for about
            the time needed) or ``none`` (the queue was not held).
        cache: state of the GPU's L2 cache, or the CPU's cache, at the start of each call: ``cold``
            (none of the call's data, but dirty lines, which are written back during the call),
            ``cold-clean`` (none of the call's data, but lines that were only read), ``rotate``
            (none of its tensors, which differ from those of the calls before), ``partly warm`` (the
            tensors that could not be rotated, which ``cache.reason`` names), ``warm`` (the data
            that the previous call left there) or ``uncontrolled``.
        placement: addresses of the call's tensors: ``random`` (random multiples of 512 bytes,
            changed for each sample), ``aligned`` (multiples of 2 MiB, changed for each sample) or
            ``as-is`` (unchanged).
        placements: number of placements that the calls alternated between.
        regime: the state of the GPU: ``burst`` (the highest clock that it gives these calls, as
            after idling), ``sustained`` (the equilibrium under lasting load by these calls) or
            ``as-is`` (its state at the time).
        clocks: whether the GPU's clocks were left alone (``observe``) or locked (``lock``).
        conditions: the GPU's clocks, power, temperature and throttle reasons, read with NVML from
            before the first call until after the last. Empty on a CPU, and unless ``burst``,
            ``sustained`` or a lock was requested.
        conditions_reason: why ``conditions`` are missing or stopped early for another reason (NVML
            cannot be used); empty if they did not.
        pin: number of the CPU that the calling thread was pinned to; None if it was not pinned.
        host: effects of the operating system on the samples, in their order; each reading covers
            some samples. Empty for methods that time only the GPU.
        used_cores: for work on the CPU, the cores on which the threads that computed were at the
            end.
        host_reason: values that this system does not report for ``host``, and why; empty if none.
        counters_reason: why ``host`` lacks the CPU's performance counters, in some readings or all;
            empty if it has them.
        disturbance: why the samples may be longer than the undisturbed call, e.g. because its
            threads waited for a core; empty if nothing disturbed those in ``seconds``.
        between_runs: for work on the CPU, an assumed relative difference between the medians of
            different runs, which the samples of one run do not show: 0.01 for one thread, 0.03 for
            several. It is part of :attr:`median_interval`. 0 for work on a GPU.
        repeats: number of calls per sample. A sample is the average time of one call; there are
            several calls if the host's clock is too coarse for one.
        pages: the memory pages of the tensors that calls on a CPU allocate: ``fresh`` (never
            touched before, so the call includes their mapping), ``retained`` (those of earlier
            results) or ``as-is`` (those that the C library's allocator provides).
        device: device on which the work ran, e.g. ``cuda:0``.
        device_reason: how the device was determined.
        stream: the CUDA stream's handle; 0 is the default stream. None on a CPU.
        warmup_requested: ``steady``, a number of calls, or a float of seconds.
        steady: whether times and clocks had stopped drifting when sampling began; None if the
            warm-up was not ``steady``.
        warmup_calls: number of first calls that gave no samples, of all candidates together.
        warmup_seconds: duration of the warm-up, including samples taken once it was steady.
        first_call_seconds: time of the very first call until its work was done, including one-time
            work: loading, compiling, choosing algorithms, allocating.
        first_call_compile_seconds: part of it in which convtime's own kernels were compiled, or
            loaded from the cache of compiled kernels.
        sampling_seconds: duration of the sampling after the warm-up, of all candidates together,
            without idling.
        idle_seconds: time for which the GPU was left idle between batches, for ``burst``.
        stop: the requested stop criterion (see ``time_op``).
        stop_reason: why the sampling ended: ``settled`` (by that criterion), ``max_samples``,
            ``budget`` or ``timeout`` (there may be fewer samples than ``min_samples``).
        flops: floating-point operations of a call, if the caller specified them.
        nbytes: bytes that a call has to move, if the caller specified them.
        ceilings: attainable rates of this device, if ``flops`` or ``nbytes`` is known.
        other_launches: number of kernels, copies and memsets that other threads of the process
            launched on the GPU during the measurement. They are in no sample, and only the method
            ``kernel`` detects them.
        faulty_batches: number of batches that were discarded and repeated because CUPTI's records
            were incomplete.
        fault: the error in the last faulty batch; empty for none.
        ceilings_reason: why ``ceilings`` are unknown although ``flops`` or ``nbytes`` is known;
            empty if they are known.
        exclusive: whether other processes and threads of this user had to wait before they timed on
            the same GPU.
        waited_seconds: time for which this measurement waited for others before it began.
        inputs: remarkable values in arguments, modules and variables, a sentence each: tensors that
            are constant, all zeros, or largely NaN or denormal, judged by a sample of their
            elements before the first call. Tensors that the calls overwrite are left out.
        ranks: for a measurement by several ranks together, the times of each, their arrivals, and
            the bandwidth; each of ``seconds`` is then the longest of all ranks. Otherwise None.
        provenance: hardware, software and source state (see convtime.device.provenance).
    """

    name: str
    seconds: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]
    method: Condition[str]
    metric: Condition[str]
    queue: Condition[str]
    cache: Condition[str]
    placement: Condition[str]
    pages: Condition[str]
    regime: Condition[str]
    exclusive: Condition[bool]
    clocks: str
    device: str
    device_reason: str
    warmup_requested: str | int | float
    stop: str
    stop_reason: str
    discarded: tuple[float, ...] = ()
    overhead: float = 0.0
    overhead_uncertainty: _NotNegative = 0.0
    overhead_reason: str = ""
    raw_seconds: tuple[float, ...] = ()
    busy_seconds: tuple[float, ...] = ()
    span_seconds: tuple[float, ...] = ()
    sum_seconds: tuple[float, ...] = ()
    unrecorded: tuple[str, ...] = ()
    activities: tuple[DeviceActivity, ...] = ()
    other_launches: int = 0
    faulty_batches: int = 0
    fault: str = ""
    sm_clocks_hz: tuple[float | None, ...] = ()
    max_sm_clock_hz: float | None = None
    conditions: tuple[ClockReading, ...] = ()
    conditions_reason: str = ""
    places: tuple[_Number, ...] = ()
    batches: tuple[_Number, ...] = ()
    clock_tick: _NotNegative = 0.0
    placements: int = 1
    placement_variance_share: float | None = None
    pin: int | None = None
    host: tuple[HostReading, ...] = ()
    used_cores: tuple[int, ...] = ()
    host_reason: str = ""
    counters_reason: str = ""
    disturbance: str = ""
    between_runs: _NotNegative = 0.0
    repeats: _Number = 1
    stream: int | None = None
    steady: bool | None = None
    warmup_calls: int | None = None
    warmup_seconds: float | None = None
    first_call_seconds: float | None = None
    first_call_compile_seconds: float | None = None
    sampling_seconds: float | None = None
    idle_seconds: float | None = None
    waited_seconds: float = 0.0
    flops: float | None = None
    nbytes: float | None = None
    ceilings: Ceilings | None = None
    ceilings_reason: str = ""
    inputs: tuple[str, ...] = ()
    ranks: Ranks | None = None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @cached_property
    def _summary(self) -> _C.Summary:
        return _C.summarize(self.seconds, self.clock_tick)

    @cached_property
    def _interval(self) -> tuple[float, float, str, int]:
        uncertainty = self.overhead_uncertainty + self.between_runs * self.median
        return _C.median_interval(
            self.seconds, self.places, self.batches, self.clock_tick, uncertainty
        )

    @property
    def median(self) -> float:
        """The samples' median.

        If the clock's tick (``clock_tick``) hides their spread, the estimate is the mean of the
        rounded samples, which is correct on average because calls begin at random phases of the
        tick. If the tick is unknown, equal samples are treated as evenly spread within it, as is
        usual for grouped data (:func:`statistics.median_grouped`).
        """
        return self._summary["median"]

    @property
    def mean(self) -> float:
        """The samples' mean."""
        return self._summary["mean"]

    @property
    def min(self) -> float:
        """The fastest sample."""
        return self._summary["min"]

    @property
    def max(self) -> float:
        """The slowest sample."""
        return self._summary["max"]

    @property
    def stdev(self) -> float:
        """The samples' standard deviation (n - 1)."""
        return self._summary["stdev"]

    @property
    def iqr(self) -> float:
        """75 % quantile minus 25 % quantile."""
        return self._summary["iqr"]

    @property
    def median_interval(self) -> tuple[float, float]:
        """Interval that contains the true median with 95 % confidence.

        It is based on order statistics (sign test), without an assumption on the distribution, and
        treats the units of :attr:`interval_over` as independent. It is no narrower than the clock's
        tick allows. ``overhead_uncertainty`` and ``between_runs`` widen it on each side, but not
        below 0. Five samples or fewer are not enough for this confidence: their interval is
        unbounded, ``(-inf, inf)``. If the samples form two :attr:`groups`, the interval contains
        the medians of both.
        """
        low, high, _, _ = self._interval
        of_groups = [seconds for _, seconds in self.groups]
        return min([low, *of_groups]), max([high, *of_groups])

    @property
    def interval_over(self) -> str:
        """The unit that :attr:`median_interval` treats as independent.

        ``placements`` if the samples cover six placements or more, otherwise ``batches`` if there
        are several, otherwise ``samples``. If neighboring samples agree more with each other than
        with the rest, the interval is wider than these units would make it.
        """
        return self._interval[2]

    @property
    def interval_count(self) -> int:
        """Number of units of :attr:`interval_over`; a partial batch does not count separately."""
        return self._interval[3]

    @property
    def no_gpu_work(self) -> bool:
        """Whether GPU times were taken of a call without GPU work, and are therefore all 0.

        This happens in a comparison with other candidates that have GPU work. In isolation, such a
        call is timed on the host.
        """
        return self.method == "kernel" and not any(self.seconds)

    @property
    def throttled(self) -> tuple[bool, ...]:
        """For each sample, whether its clock is known and below 95 % of the highest one.

        Such a sample is valid: it is the operation's time at that clock.
        """
        limit = THROTTLED_BELOW * (self.max_sm_clock_hz or 0)
        return tuple(clock_hz is not None and clock_hz < limit for clock_hz in self.sm_clocks_hz)

    @property
    def cycles(self) -> tuple[float | None, ...]:
        """Each sample in SM clock cycles; None if the clock is unknown."""
        pairs = zip(self.seconds, self.sm_clocks_hz, strict=True) if self.sm_clocks_hz else ()
        return tuple(None if clock_hz is None else second * clock_hz for second, clock_hz in pairs)

    @property
    def median_cycles(self) -> float | None:
        """The median of the known :attr:`cycles`; None if none are known."""
        known = [cycles for cycles in self.cycles if cycles is not None]
        return statistics.median(known) if known else None

    @property
    def median_sm_clock_hz(self) -> float | None:
        """The median of the known ``sm_clocks_hz``; None if none are known."""
        known = [clock_hz for clock_hz in self.sm_clocks_hz if clock_hz]
        return statistics.median(known) if known else None

    @property
    def groups(self) -> tuple[tuple[float, float], ...]:
        """Shares and medians of the two groups that CPU samples form; usually empty.

        There are two groups if the widest gap between neighboring samples is at least a fifth of
        the lower one, and each side has at least a fifth of the samples. An example is a call whose
        memory is mapped anew only in some calls. A median says little about such samples, and
        :attr:`median_interval` contains the medians of both groups.
        """
        return two_groups(self.seconds) if self.method == "cpu" else ()

    @property
    def cpu_seconds(self) -> float | None:
        """The average CPU time of a call, over all threads; None if it was not read."""
        return self._per_call("cpu_seconds")

    @property
    def waiting_share(self) -> float | None:
        """Share of the calls' time for which the longest-waiting thread waited for a core.

        None if this system does not report it.
        """
        waited = [reading.longest_wait_seconds for reading in self.host]
        if not waited or None in waited:
            return None
        elapsed = math.fsum(reading.seconds for reading in self.host)
        return math.fsum(wait or 0.0 for wait in waited) / elapsed if elapsed > 0 else 0.0

    @property
    def free_cores(self) -> float | None:
        """Average number of unused cores among those that the process may run on.

        None if this system does not report the use by other processes, or it was not read.
        """
        cores, others = self.provenance.get("cores"), [each.others_seconds for each in self.host]
        elapsed = math.fsum(reading.seconds for reading in self.host)
        if not isinstance(cores, int) or None in others or elapsed <= 0:
            return None
        used = math.fsum(reading.cpu_seconds for reading in self.host)
        used += math.fsum(other or 0.0 for other in others)
        return max(0.0, cores - used / elapsed)

    @property
    def faults_per_call(self) -> float | None:
        """Pages per call that were mapped or read from a disk; None if this was not read."""
        minor, major = self._per_call("minor_faults"), self._per_call("major_faults")
        return None if minor is None or major is None else minor + major

    @property
    def instructions(self) -> float | None:
        """Instructions of a call in user space, on average over the readings that have them.

        All threads count. None if no reading has them; ``counters_reason`` says why.
        """
        return self._per_call("instructions")

    def _per_call(self, quantity: str) -> float | None:
        known = [each for each in self.host if getattr(each, quantity) is not None]
        calls = self.repeats * sum(reading.samples for reading in known)
        return math.fsum(getattr(each, quantity) for each in known) / calls if calls else None

    @property
    def flops_per_second(self) -> float | None:
        """``flops`` over the median; None if ``flops`` is unknown."""
        return self._rate(self.flops)

    @property
    def bytes_per_second(self) -> float | None:
        """``nbytes`` over the median; None if ``nbytes`` is unknown."""
        return self._rate(self.nbytes)

    def _rate(self, amount: float | None) -> float | None:
        if amount is None:
            return None
        return amount / self.median if self.median > 0 else math.inf

    def quantile(self, q: float) -> float:
        """Return the quantile ``q``, from 0 to 1, interpolated linearly (numpy's default).

        Raises:
            ValueError: ``q`` is outside of [0, 1].
        """
        return _C.quantile(self.seconds, q)

    def to_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of :meth:`to_frame`, each as a dict."""
        same: dict[str, Any] = {name: str(getattr(self, name)) for name in CONDITIONS}
        same |= {"device": self.device, "gpu": self.provenance.get("gpu")}
        for discarded, samples in ((False, self.seconds), (True, self.discarded)):
            clocks_hz = () if discarded else self.sm_clocks_hz
            pairs = itertools.zip_longest(samples, clocks_hz)
            for number, (seconds, clock_hz) in enumerate(pairs):
                yield {
                    "name": self.name,
                    "sample": number,
                    "seconds": seconds,
                    "discarded": discarded,
                    "sm_clock_hz": clock_hz,
                    **same,
                }

    def to_frame(self) -> pandas.DataFrame:
        """Return the samples as a data frame, one row each; discarded samples are last.

        The columns are name, sample, seconds, discarded, sm_clock_hz, the conditions (method,
        metric, queue, cache, placement, pages, regime), device and gpu. Other fields (kernels,
        reasons, clocks, …) are not included, and :func:`convtime.read_measurements` cannot restore
        them from the frame.

        Raises:
            ImportError: pandas is not installed.
        """
        return forms.frame_of(self.to_rows(), SAMPLE_COLUMNS)

    def to_torch(
        self, label: str | None = None, sub_label: str | None = None, description: str | None = None
    ) -> torch.utils.benchmark.Measurement:
        """Convert to a measurement of ``torch.utils.benchmark``, for its ``Compare``.

        Its ``metadata`` contains all fields, from which :func:`convtime.read_measurements` restores
        this measurement.

        Args:
            label: title of Compare's table. Default: the device.
            sub_label: label of the row. Default: the name.
            description: label of the column. Default: the method.
        """
        from torch.utils import benchmark  # slow to import, and prints a warning without a GPU

        return benchmark.Measurement(
            number_per_run=1,
            raw_times=list(self.seconds),
            task_spec=benchmark.TaskSpec(
                stmt=self.name,
                setup="",
                label=label or self.device,
                sub_label=sub_label or self.name,
                description=description or self.method.used,
                num_threads=self.provenance.get("threads") or 1,
            ),
            metadata={forms.PAYLOAD: self.to_dict()},
        )

    def plot_samples(self) -> Figure:
        """Plot the samples in the order taken, with their clocks, and discarded ones to the side.

        Of more than 160 samples, a part is shown, with the extremes of each stretch. Vertical
        lines separate batches. For discarded samples, neither the clock nor the position among the
        others is stored. Power is plotted if it was read (``conditions``).

        Returns:
            A figure to save or show, e.g. ``measured.plot_samples().save("samples.png")``.
        """
        figure: Figure = self._drawing().sample_figure(self)
        return figure


#: The conditions of every measurement: fields that say what was requested and what was used.
CONDITIONS = tuple(
    field.name for field in dataclasses.fields(Measurement) if field.type == "Condition[str]"
)
#: Columns of the samples as rows: those of a sample, and the conditions of all.
SAMPLE_COLUMNS = (
    *("name", "sample", "seconds", "discarded", "sm_clock_hz"),
    *CONDITIONS,
    *("device", "gpu"),
)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Measurements(
    codec.Stored, Shown, Mapping[str, Measurement], show="convtime.timing.show_measurements"
):
    """Measurements by name, in the order of their source: a read-only mapping.

    Attributes:
        measurements: the measurements; each has its key as its name.
    """

    measurements: Annotated[Mapping[str, Measurement], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        named = {
            name: measured if measured.name == name else dataclasses.replace(measured, name=name)
            for name, measured in self.measurements.items()
        }
        object.__setattr__(self, "measurements", named)

    def __getitem__(self, name: str) -> Measurement:
        return self.measurements[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.measurements)

    def __len__(self) -> int:
        return len(self.measurements)

    def to_frame(self) -> pandas.DataFrame:
        """Return all samples as one data frame; see :meth:`Measurement.to_frame`.

        Raises:
            ImportError: pandas is not installed.
        """
        return forms.frame_of(self._rows(), SAMPLE_COLUMNS)

    def to_csv(self) -> str:
        """Return the rows of :meth:`to_frame` as CSV, without rounding numbers."""
        return forms.csv_of(self._rows(), SAMPLE_COLUMNS)

    def _rows(self) -> Iterator[dict[str, object]]:
        return itertools.chain.from_iterable(
            measured.to_rows() for measured in self.measurements.values()
        )
