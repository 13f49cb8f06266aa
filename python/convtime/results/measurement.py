"""What was measured of one operation, how, and under which conditions."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from convtime.core import codec
from convtime.core.load import _C
from convtime.results import forms
from convtime.results.activity import DeviceActivity
from convtime.results.ceilings import Ceilings
from convtime.results.clock_reading import ClockReading
from convtime.results.host_reading import HostReading
from convtime.results.scaling import ClockedTime, ScaledTime, scale

if TYPE_CHECKING:
    import pandas
    import torch.utils.benchmark
    from matplotlib.figure import Figure


# Of samples that fall into two groups.
_FEWEST_OF_GROUPS = 20
_SHARE_OF_GROUP = 0.2
_GAP_OF_GROUPS = 0.2

#: Of the highest clock: a sample below it is said to be throttled.
THROTTLED_BELOW = 0.95

# The core's are unsigned and as long; msgspec knows no larger bound.
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]


@dataclasses.dataclass(frozen=True, repr=False)
class Measurement(codec.Stored):
    """The samples of one operation, with how and where they were taken. All times in seconds.

    Where another tool has measured (:func:`convtime.read_measurements`) and does not say it, texts
    are ``unknown`` and numbers None or empty.

    Attributes:
        name: what was measured.
        seconds: every sample, in the order taken; at least one.
        discarded: samples that are not in ``seconds`` because the queue could not be held when they
            were taken, or the GPU was not in the regime asked for; less ``overhead``, too.
        places: for each sample, which of the places of its tensors the call worked at; empty where
            there is one place only, and where a sample is of several calls (``graph``).
        batches: for each sample, the number of the batch of calls that it was issued in; numbers
            rise, and leave out those of batches that gave no samples.
        clock_tick: of the clock that the samples were read from, where it matters; else 0.
        placement_variance_share: how much of the samples' variance is between places, from 0 to 1,
            as the one-way analysis of variance with random effects estimates it; None where fewer
            than four places have two samples or more.
        overhead: for the methods ``event`` and ``graph``, what was subtracted from each raw sample:
            what a pair of events, or the gap to a graph's next node, adds to a single kernel on
            this device, measured against CUPTI; 0 where it is not known, and for other methods.
        overhead_uncertainty: how far ``overhead`` may be off, either way, with 95 % confidence; it
            is part of :attr:`median_interval`, and of a comparison's ratios.
        overhead_reason: why ``overhead`` is not known; empty where it is, and for other methods.
        raw_seconds: for these methods, the samples before that; empty if ``overhead`` is 0.
        metric: which time of a call ``seconds`` are. For the method ``kernel``, of the call's
            kernels, copies and memsets: ``busy`` (the time in which at least one of them ran),
            ``span`` (from the first start to the last end, gaps included) or ``sum`` (their
            durations added up). For other methods ``elapsed``.
        metric_requested: the metric asked for.
        metric_reason: why ``metric`` is not ``metric_requested``; empty if it is.
        busy_seconds: for the method ``kernel``, the busy time of each sample; otherwise empty.
        span_seconds: likewise, the span.
        sum_seconds: likewise, the sum; more than ``busy_seconds`` where work overlaps.
        unrecorded: for the method ``kernel``, CUDA functions that the call used to give the GPU
            work of which CUPTI has no record; that work is in none of these times.
        activities: for the method ``kernel``, what the device did, in order of first occurrence.
        sm_clocks_hz: the rate of the GPU's multiprocessor clock around each sample, over a window
            of at least 50 µs, in hertz; None where it is not known. Empty on a CPU.
        max_sm_clock_hz: the highest rate of that clock; None on a CPU.
        method: what was timed: ``kernel`` (the device's own time for the call's kernels, copies and
            memsets; see ``metric``), ``event`` (between two CUDA events around the call, less
            ``overhead``), ``graph`` (one of many calls in CUDA graphs, less ``overhead``), ``sync``
            (host clock from an idle device to an idle device) or ``cpu`` (host clock around the
            call).
        method_requested: the method asked for.
        method_reason: why ``method`` is not ``method_requested``; empty where it is.
        queue: how the device was kept from starting before all calls of a batch were issued:
            ``gate`` (a kernel waited for the host's word), ``sleep`` (a kernel slept for about as
            long as it takes) or ``none`` (it was not).
        queue_requested: what was asked for.
        queue_reason: why ``queue`` is not ``queue_requested``, or why each call was made on an
            idle device; otherwise empty.
        cache: what each call finds in the GPU's L2, or the CPU's, cache: ``cold`` (none of its
            data, but lines that were written before it, and are written back while it runs),
            ``cold-clean`` (none of its data, but lines that were only read), ``rotate`` (none of
            its tensors, which are others than in the calls before), ``partly warm`` (those that
            could not be rotated, which ``cache_reason`` names), ``warm`` (what the call before it
            left there) or ``uncontrolled``.
        cache_requested: what was asked for.
        cache_reason: why ``cache`` is not ``cache_requested``, and why lines of a GPU's L2 cache
            may have outlasted a flush, where some of it is set aside for persisting accesses.
        placement: where the call's tensors lay: ``random`` (at random multiples of 512 bytes, at
            another place in the next sample), ``aligned`` (at multiples of 2 MiB, likewise) or
            ``as-is`` (where they were).
        placement_requested: what was asked for.
        placement_reason: why ``placement`` is not ``placement_requested``, and what is not placed
            so; empty where there is nothing to be said.
        placements: how many places calls took in turn.
        regime: the state that the GPU was in: ``burst`` (at the highest clock that it gives these
            calls, as after idling), ``sustained`` (in the equilibrium that it comes to under
            lasting load by these calls) or ``as-is`` (whichever it was in).
        regime_requested: what was asked for.
        regime_reason: why ``regime`` is not ``regime_requested``; empty where it is. For ``auto``:
            how the clock fell under the calls, that it did not, or why neither is known.
        clocks: whether the GPU's clocks were left alone (``observe``) or locked (``lock``).
        conditions: the GPU's clocks, power, temperature and what throttled it, by NVML, from before
            the first call until after the last. Empty on a CPU, and where neither ``burst``,
            ``sustained`` nor a lock was asked for.
        conditions_reason: why there are no ``conditions`` beside that, or no more of them (NVML
            cannot be used); empty where there are.
        pin: the CPU that the calling thread was kept on; None where it was not.
        host: what the operating system did to the samples and for them, in their order: readings
            cover some samples each. Empty for methods that time the GPU by itself.
        used_cores: for work on the CPU, the cores that its threads were on at the end, those of the
            threads that computed.
        host_reason: what of that this system does not tell, and why; empty where it tells all.
        counters_reason: why ``host`` lacks the CPU's performance counters, in some readings or all;
            empty if it has them.
        disturbance: why the samples may be longer than the call takes undisturbed, e.g. since its
            threads waited for a core; empty where nothing disturbed those in ``seconds``.
        between_runs: for work on the CPU, by how much the median may differ in another run, as a
            share of it, which the samples of one run do not show: 0.01 for one thread, 0.03 for
            several. It is assumed, and part of :attr:`median_interval`. 0 for work on a GPU.
        repeats: how many calls a sample is of. Samples are the time of one, on average; there are
            several where the host's clock could not tell the time of one well enough.
        pages: the memory pages of the tensors that calls on a CPU allocate: ``fresh`` (never
            touched before, so that the call has them mapped), ``retained`` (those of earlier
            results) or ``as-is`` (those that the C library's allocator provides).
        pages_requested: the pages requested.
        pages_reason: why ``pages`` is not ``pages_requested``; empty if it is.
        device: where the work ran, e.g. ``cuda:0``.
        device_reason: how that is known.
        stream: the CUDA stream's handle; 0 is the default stream. None on a CPU.
        warmup_requested: ``steady``, a number of calls, or a float of seconds.
        steady: whether times and clocks had stopped drifting when sampling began; None where the
            warm-up was not to be ``steady``.
        warmup_calls: calls made first that gave no samples, of all candidates together.
        warmup_seconds: what the warm-up took, with what was sampled once it was steady.
        first_call_seconds: what the very first call took until its work was done, with whatever is
            done only once: loading, compiling, choosing algorithms, allocating.
        sampling_seconds: what sampling took after that, of all candidates together, idling not
            included.
        idle_seconds: for how long the GPU was left idle between batches, for ``burst``.
        stop: the criterion that was to end the sampling (see ``time_op``).
        stop_reason: what ended it: ``settled`` (that criterion), ``max_samples``, ``budget`` or
            ``timeout`` (there may be fewer samples than ``min_samples``).
        flops: floating-point operations of a call, where the caller said so.
        nbytes: bytes that a call has to move, where the caller said so.
        ceilings: the rates that this device reaches, where ``flops`` or ``nbytes`` is known.
        other_launches: kernels, copies and memsets that other threads of the process gave the GPU
            meanwhile, and that are in no sample; seen by the method ``kernel`` alone.
        faulty_batches: batches that were thrown away and repeated, since CUPTI's records of them
            were incomplete.
        fault: what was wrong with the last of them; empty where none was.
        ceilings_reason: why they are not known although one of these is; empty where they are.
        exclusive: whether other processes and threads of this user had to wait before they timed on
            the same GPU.
        exclusive_requested: whether they were to.
        exclusive_reason: why they did not where they were to; others may then have disturbed this.
        waited_seconds: for how long this waited for others before it began.
        inputs: what is remarkable about the numbers in arguments, modules and variables, a sentence
            each: tensors that are constant, all zeros, or largely NaN or denormal, by a sample of
            their elements before the first call. What the calls overwrite is left out.
        sustained: for ``regime="both"``, the same operation in that regime, measured right after
            this; None where it was not asked for.
        provenance: hardware, software and source state (see convtime.core.provenance).
    """

    SCHEMA: ClassVar[str] = "5.3"

    name: str
    seconds: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]
    discarded: tuple[float, ...]
    overhead: float
    raw_seconds: tuple[float, ...]
    activities: tuple[DeviceActivity, ...]
    sm_clocks_hz: tuple[float | None, ...]
    max_sm_clock_hz: float | None
    method: str
    method_requested: str
    method_reason: str
    queue: str
    queue_requested: str
    queue_reason: str
    cache: str
    cache_requested: str
    cache_reason: str
    regime: str
    regime_requested: str
    regime_reason: str
    clocks: str
    conditions: tuple[ClockReading, ...]
    conditions_reason: str
    pin: int | None
    device: str
    device_reason: str
    stream: int | None
    warmup_requested: str | int | float
    steady: bool | None
    warmup_calls: int | None
    warmup_seconds: float | None
    first_call_seconds: float | None
    sampling_seconds: float | None
    idle_seconds: float | None
    stop: str
    stop_reason: str
    flops: float | None = None
    nbytes: float | None = None
    ceilings: Ceilings | None = None
    metric: str = "elapsed"
    metric_requested: str = "busy"
    metric_reason: str = ""
    busy_seconds: tuple[float, ...] = ()
    span_seconds: tuple[float, ...] = ()
    sum_seconds: tuple[float, ...] = ()
    unrecorded: tuple[str, ...] = ()
    other_launches: int = 0
    faulty_batches: int = 0
    fault: str = ""
    overhead_uncertainty: _NotNegative = 0.0
    overhead_reason: str = ""
    ceilings_reason: str = ""
    exclusive: bool = False
    exclusive_requested: bool = False
    exclusive_reason: str = ""
    waited_seconds: float = 0.0
    inputs: tuple[str, ...] = ()
    sustained: Measurement | None = None
    places: tuple[_Number, ...] = ()
    batches: tuple[_Number, ...] = ()
    clock_tick: _NotNegative = 0.0
    placement: str = "as-is"
    placement_requested: str = "as-is"
    placement_reason: str = ""
    placements: int = 1
    placement_variance_share: float | None = None
    host: tuple[HostReading, ...] = ()
    used_cores: tuple[int, ...] = ()
    host_reason: str = ""
    counters_reason: str = ""
    disturbance: str = ""
    between_runs: _NotNegative = 0.0
    repeats: _Number = 1
    pages: str = "as-is"
    pages_requested: str = "as-is"
    pages_reason: str = ""
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

        Where the clock's tick (``clock_tick``) hides their spread, it is found as the mean of the
        rounded samples, which is right on average since calls begin at random phases of the tick.
        Where the tick is not known, equal samples are taken to lie evenly within it, as is usual
        for grouped data (:func:`statistics.median_grouped`).
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
        """Interval that holds the true median with 95 % confidence.

        From order statistics, so without an assumption on the distribution (sign test), of what
        :attr:`interval_over` says; no narrower than the clock's tick allows, and wider by
        ``overhead_uncertainty`` and ``between_runs`` on each side, but not below 0. Five samples or
        fewer say nothing with that confidence: their interval is unbounded, ``(-inf, inf)``.
        Samples that fall into two :attr:`groups` have an interval that holds both.
        """
        low, high, _, _ = self._interval
        of_groups = [seconds for _, seconds in self.groups]
        return min([low, *of_groups]), max([high, *of_groups])

    @property
    def interval_over(self) -> str:
        """What :attr:`median_interval` takes for independent draws.

        ``placements`` where samples worked at six places or more, else ``batches`` where there are
        several, else ``samples``. Where neighbouring samples agree more with each other than with
        the rest, the interval is wider than these would make it.
        """
        return self._interval[2]

    @property
    def interval_count(self) -> int:
        """How many of :attr:`interval_over` there are; the rest of a batch is none by itself."""
        return self._interval[3]

    @property
    def no_gpu_work(self) -> bool:
        """Whether GPU times were taken of a call that issues no work to the GPU, and are all 0.

        That happens in a comparison, where the other candidates do; by itself, such a call is timed
        on the host.
        """
        return self.method == "kernel" and not any(self.seconds)

    @property
    def throttled(self) -> tuple[bool, ...]:
        """For each sample, whether its clock is known and below 95 % of the highest one.

        Such a sample is as true as any other: it says what the operation takes at that clock.
        """
        limit = THROTTLED_BELOW * (self.max_sm_clock_hz or 0)
        return tuple(clock_hz is not None and clock_hz < limit for clock_hz in self.sm_clocks_hz)

    @property
    def cycles(self) -> tuple[float | None, ...]:
        """Each sample in cycles of the multiprocessors' clock; None where that is not known."""
        pairs = zip(self.seconds, self.sm_clocks_hz, strict=True) if self.sm_clocks_hz else ()
        return tuple(None if clock_hz is None else second * clock_hz for second, clock_hz in pairs)

    @property
    def median_cycles(self) -> float | None:
        """The median of those :attr:`cycles` that are known; None where none are."""
        known = [cycles for cycles in self.cycles if cycles is not None]
        return statistics.median(known) if known else None

    def at_clock(self, clock_mhz: float, other: Measurement | None = None) -> ScaledTime:
        """What the operation takes at another clock of the multiprocessors.

        Part of a time scales with the clock (work in the multiprocessors), part of it does not
        (memory, which has a clock of its own). How much each is, only times at two clocks can tell:
        a line through them, t = fixed_seconds + cycles / clock, neither of the two below 0. The two
        are the medians of the thirds of the samples with the lowest and the highest clocks (the
        resistant line of Tukey, 1977), or, with ``other``, the medians of both measurements.

        Args:
            clock_mhz: the clock, in MHz.
            other: the same operation, measured in the same way at another clock (in another
                regime, or locked).

        Raises:
            ValueError: where the clock is not a positive number, and "not available" where the two
                clocks are less than 5 % apart, there are too few samples with a known clock, or
                ``other`` was measured in another way.
        """
        if other is None:
            return scale(clock_mhz, self._at_known_clocks(), None)
        for condition in ("method", "cache", "device"):
            mine, theirs = getattr(self, condition), getattr(other, condition)
            if mine != theirs:
                raise ValueError(
                    f"times at other clocks are not available: {condition} is {mine!r} here and "
                    f"{theirs!r} in the other measurement, and must be the same"
                )
        return scale(clock_mhz, self._at_known_clocks(), other._at_known_clocks())

    def _at_known_clocks(self) -> list[ClockedTime]:
        pairs = zip(self.sm_clocks_hz, self.seconds, strict=True) if self.sm_clocks_hz else ()
        return [(clock_hz, second) for clock_hz, second in pairs if clock_hz is not None]

    @property
    def groups(self) -> tuple[tuple[float, float], ...]:
        """The shares and medians of two groups that the samples of a CPU fall into; mostly empty.

        There are two where no sample lies in the widest gap between neighbouring ones, which is a
        fifth of the lower or more, and either side has a fifth of the samples: as of a call whose
        memory is mapped anew in some calls only. A median says little of such samples, and
        :attr:`median_interval` holds the medians of both.
        """
        if self.method != "cpu" or len(self.seconds) < _FEWEST_OF_GROUPS:
            return ()
        ordered = sorted(self.seconds)
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

    @property
    def cpu_seconds(self) -> float | None:
        """The CPU time of a call, of all threads, on average; None where it was not read."""
        return self._per_call("cpu_seconds")

    @property
    def waiting_share(self) -> float | None:
        """How much of the calls' time the thread that waited longest waited for a core.

        None where this system does not tell.
        """
        waited = [reading.longest_wait_seconds for reading in self.host]
        if not waited or None in waited:
            return None
        elapsed = math.fsum(reading.seconds for reading in self.host)
        return math.fsum(wait or 0.0 for wait in waited) / elapsed if elapsed > 0 else 0.0

    @property
    def free_cores(self) -> float | None:
        """Of the cores that the process may run on, how many nothing used meanwhile, on average.

        None where this system does not tell what others used, or it was not read.
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
        """Pages that a call had mapped, or read from a disk; None where it was not read."""
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
        """``flops`` over the median; None where they are not known."""
        return self._rate(self.flops)

    @property
    def bytes_per_second(self) -> float | None:
        """``nbytes`` over the median; None where they are not known."""
        return self._rate(self.nbytes)

    def _rate(self, amount: float | None) -> float | None:
        if amount is None:
            return None
        return amount / self.median if self.median > 0 else math.inf

    def quantile(self, q: float) -> float:
        """Quantile ``q``, between 0 and 1, interpolated linearly (as numpy's default).

        Raises:
            ValueError: for a ``q`` outside of [0, 1].
        """
        return _C.quantile(self.seconds, q)

    def to_frame(self) -> pandas.DataFrame:
        """The samples as a data frame, a row each; those that were discarded are the last.

        The columns are name, sample, seconds, discarded, sm_clock_hz, method, queue, cache,
        placement, regime, device and gpu. What else there is (kernels, reasons, conditions, …) is
        not in it; :func:`convtime.read_measurements` reads it back without that.

        Raises:
            ImportError: where pandas is not installed.
        """
        return forms.to_frame([self])

    def to_torch(
        self, label: str | None = None, sub_label: str | None = None, description: str | None = None
    ) -> torch.utils.benchmark.Measurement:
        """The samples as PyTorch's own kind of measurement, which its ``Compare`` works on.

        Its ``metadata`` holds all that is known, from which :func:`convtime.read_measurements`
        makes this measurement again.

        Args:
            label: the table that Compare puts it in; the device unless given.
            sub_label: its row; the name unless given.
            description: its column; the method unless given.
        """
        return forms.to_torch(
            self.seconds,
            name=self.name,
            label=label or self.device,
            sub_label=sub_label or self.name,
            description=description or self.method,
            threads=self.provenance.get("threads") or 1,
            payload=self.to_dict(),
        )

    def __str__(self) -> str:
        """One line: median, interval, how it was measured, and what is not as asked for."""
        from convtime.show.measurement import line

        return line(self)

    def __repr__(self) -> str:
        return f"<convtime.Measurement {self}>"

    def details(self) -> str:
        """All that is known, a line for each fact."""
        from convtime.show.measurement import sheet

        return sheet(self)

    def plot_samples(self) -> Figure:
        """Draws every sample in the order taken, with its clock, and the discarded ones beside.

        Lines across separate batches. What the clocks were of samples that were discarded, and
        when these were taken, is not kept. Power is drawn where it was read (``conditions``).

        Returns:
            A figure to save or show, e.g. ``measured.plot_samples().savefig("samples.png")``.

        Raises:
            ValueError: where there is no matplotlib.
        """
        from convtime.show.plot import sample_figure

        return sample_figure(self)

    def _repr_html_(self) -> str:
        from convtime.show.measurement import html_sheet

        return html_sheet(self)
