"""What was measured, how, and under which conditions. Pure data: nothing here times anything."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import operator
import statistics
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from convtime._json import with_tuples
from convtime._load import _C
from convtime.ceilings import Ceilings

if TYPE_CHECKING:
    import pandas
    import torch.utils.benchmark

    from convtime.clocks import ClockReading

SCHEMA = 3
#: What measurements of schema 2 do not say: they were all made so.
_OF_SCHEMA_2 = {
    "regime": "as-is",
    "regime_requested": "as-is",
    "regime_reason": "",
    "clocks": "observe",
    "conditions": (),
    "conditions_reason": "",
    "pin": None,
    "idle_seconds": 0.0,
}

_PER_SAMPLE = ("seconds", "discarded", "raw_seconds", "spans", "sm_clocks")
_THROTTLED_BELOW = 0.95  # of the highest clock
_FEWEST_AT_A_CLOCK = 5
_CLEARLY_HIGHER = 1.05  # of two clocks, how much the higher one must be over the lower
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def format_seconds(seconds: float, digits: int = 4) -> str:
    """Writes a time in the unit that suits it, e.g. "12.34 µs".

    Args:
        seconds: the time in seconds.
        digits: significant digits.
    """
    if not math.isfinite(seconds):
        return f"{seconds} s"
    fitting = (one for one in _UNITS if abs(seconds) >= one[0])
    scale, unit = next(fitting, _UNITS[-1])
    value = seconds / scale
    whole_digits = len(str(int(abs(value))))
    return f"{value:.{max(digits - whole_digits, 0)}f} {unit}"


@dataclasses.dataclass(frozen=True)
class DeviceActivity:
    """One kernel, copy or memset that calls have in common, and how long it took in each.

    Attributes:
        kind: ``kernel``, ``memcpy`` or ``memset``.
        name: the kernel's name; empty for the others.
        grid: blocks of the launch, in x, y and z.
        block: threads of a block, in x, y and z.
        registers_per_thread: registers that a thread uses.
        shared_memory_bytes: shared memory of a block, static and dynamic.
        bytes: bytes copied or set; 0 for a kernel.
        seconds: its duration in each sample, None in a sample without it.
    """

    kind: str
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers_per_thread: int
    shared_memory_bytes: int
    bytes: int
    seconds: tuple[float | None, ...]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DeviceActivity:
        """Reverses dataclasses.asdict, also after JSON has made lists of the tuples."""
        return cls(**with_tuples(data))


@dataclasses.dataclass(frozen=True)
class ScaledTime:
    """What an operation takes at a clock; see :meth:`Measurement.at_clock`.

    Attributes:
        seconds: the time at that clock.
        mhz: the clock of the multiprocessors, in MHz.
        fixed_seconds: the part of the time that is the same at any clock.
        cycles: the part that scales with the clock, in its cycles.
        measured_mhz: the two clocks that this is known from, in MHz, the lower one first.
        source: what was measured at those.
    """

    seconds: float
    mhz: float
    fixed_seconds: float
    cycles: float
    measured_mhz: tuple[float, float]
    source: str

    def __str__(self) -> str:
        low, high = self.measured_mhz
        return (
            f"{format_seconds(self.seconds)} at {self.mhz:.0f} MHz: "
            f"{format_seconds(self.fixed_seconds)} and {self.cycles:.4g} cycles, known from "
            f"{self.source} at {low:.0f} and {high:.0f} MHz"
        )


def _middle(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Medians of clock and time."""
    if len(points) < _FEWEST_AT_A_CLOCK:
        raise ValueError(
            f"times at other clocks are not available: {len(points)} samples have a clock that can "
            f"tell one of two, and {_FEWEST_AT_A_CLOCK} or more must"
        )
    clocks, seconds = zip(*points, strict=True)
    return statistics.median(clocks), statistics.median(seconds)


def _outer_thirds(
    points: list[tuple[float, float]],
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Medians of clock and time of the thirds with the lowest and the highest clocks."""
    points = sorted(points, key=operator.itemgetter(0))
    third = len(points) // 3
    return _middle(points[:third]), _middle(points[len(points) - third :])


def _scale(
    hertz: float, slow: tuple[float, float], fast: tuple[float, float], source: str
) -> ScaledTime:
    """The time at a clock, from the line through clock and time of two others."""
    (low, at_low), (high, at_high) = slow, fast
    if high < _CLEARLY_HIGHER * low:
        raise ValueError(
            f"times at other clocks are not available: those measured were taken at "
            f"{low / 1e6:.0f} and {high / 1e6:.0f} MHz, less than {_CLEARLY_HIGHER - 1:.0%} apart; "
            "measure it at another clock, too (regime='burst' and 'sustained', or "
            "convtime.locked_clocks), and pass that as other="
        )
    cycles = (at_low - at_high) / (1 / low - 1 / high)
    fixed = at_high - cycles / high
    if cycles < 0:  # faster at the lower clock: the clock makes no difference
        cycles, fixed = 0.0, (at_low + at_high) / 2
    elif fixed < 0:  # more cycles at the lower clock: all of it scales
        cycles, fixed = (at_low * low + at_high * high) / 2, 0.0
    return ScaledTime(
        seconds=fixed + cycles / hertz,
        mhz=hertz / 1e6,
        fixed_seconds=fixed,
        cycles=cycles,
        measured_mhz=(low / 1e6, high / 1e6),
        source=source,
    )


@dataclasses.dataclass(frozen=True, repr=False)
class Measurement:
    """The samples of one operation, with how and where they were taken. All times in seconds.

    Attributes:
        name: what was measured.
        seconds: every sample, in the order taken.
        discarded: samples that are not in ``seconds`` because the queue could not be held when they
            were taken, or the GPU was not in the regime asked for.
        overhead: for the methods ``event`` and ``graph``, what was subtracted from each raw sample:
            what a pair of events, or the gap to a graph's next node, adds to a single kernel on
            this device, measured against CUPTI; 0 where it is not known, and for other methods.
        raw_seconds: for these methods, the samples before that; empty if ``overhead`` is 0.
        spans: for the method ``kernel``, the time of each sample from the start of the call's first
            kernel to the end of its last, gaps included; empty for other methods.
        activities: for the method ``kernel``, what the device did, in order of first occurrence.
        sm_clocks: the rate of the GPU's multiprocessor clock around each sample, over a window of
            at least 50 µs, in hertz; None where it is not known. Empty on a CPU.
        max_sm_clock: the highest rate of that clock, in hertz; None on a CPU.
        method: what was timed: ``kernel`` (the device's own time for the call's kernels, copies and
            memsets, added up), ``event`` (between two CUDA events around the call, less
            ``overhead``), ``graph`` (one of many calls in CUDA graphs, less ``overhead``), ``sync``
            (host clock from an idle device to an idle device) or ``cpu`` (host clock around the
            call).
        method_requested: the method asked for.
        method_reason: why ``method`` is not ``method_requested``; empty where it is.
        queue: how the device was kept from starting before all calls of a batch were issued:
            ``gate`` (a kernel waited for the host's word), ``sleep`` (a kernel slept for about as
            long as it takes) or ``none`` (it was not).
        queue_requested: what was asked for.
        queue_reason: why ``queue`` is not ``queue_requested``; empty where it is.
        cache: what each call finds in the GPU's L2, or the CPU's, cache: ``cold`` (none of its
            data), ``rotate`` (none of its tensors, which are others than in the calls before),
            ``partly warm`` (those that could not be rotated, which ``cache_reason`` names),
            ``warm`` (what the call before it left there) or ``uncontrolled``.
        cache_requested: what was asked for.
        cache_reason: why ``cache`` is not ``cache_requested``; empty where it is.
        regime: the state that the GPU was in: ``burst`` (at the highest clock that it gives these
            calls, as after idling), ``sustained`` (in the equilibrium that it comes to under
            lasting load by these calls) or ``as-is`` (whichever it was in).
        regime_requested: what was asked for.
        regime_reason: why ``regime`` is not ``regime_requested``; empty where it is.
        clocks: whether the GPU's clocks were left alone (``observe``) or locked (``lock``).
        conditions: the GPU's clocks, power, temperature and what throttled it, by NVML, from before
            the first call until after the last. Empty on a CPU, and where neither a regime nor a
            lock was asked for.
        conditions_reason: why there are no ``conditions`` beside that, or no more of them (NVML
            cannot be used); empty where there are.
        pin: the CPU that the calling thread was kept on; None where it was not.
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
        stop_reason: what ended it: ``settled`` (that criterion), ``max_samples`` or ``budget``.
        flops: floating-point operations of a call, where the caller said so.
        nbytes: bytes that a call has to move, where the caller said so.
        ceilings: the rates that this device reaches, where ``flops`` or ``nbytes`` is known.
        provenance: hardware, software and source state (see convtime.provenance).
    """

    name: str
    seconds: tuple[float, ...]
    discarded: tuple[float, ...]
    overhead: float
    raw_seconds: tuple[float, ...]
    spans: tuple[float, ...]
    activities: tuple[DeviceActivity, ...]
    sm_clocks: tuple[float | None, ...]
    max_sm_clock: float | None
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
    warmup_calls: int
    warmup_seconds: float
    first_call_seconds: float
    sampling_seconds: float
    idle_seconds: float
    stop: str
    stop_reason: str
    flops: float | None
    nbytes: float | None
    ceilings: Ceilings | None
    provenance: Mapping[str, Any]

    @cached_property
    def _summary(self) -> _C.Summary:
        return _C.summarize(self.seconds)

    @property
    def median(self) -> float:
        """The samples' median; where the clock's tick makes many of them equal, within that tick.

        Equal samples are taken to lie evenly within their tick, as is usual for grouped data
        (:func:`statistics.median_grouped`).
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

        From order statistics, so without an assumption on the distribution (sign test); with five
        samples or fewer it is their whole range.
        """
        return self._summary["median_interval"]

    @property
    def throttled(self) -> tuple[bool, ...]:
        """For each sample, whether its clock is known and below 95 % of the highest one.

        Such a sample is as true as any other: it says what the operation takes at that clock.
        """
        limit = _THROTTLED_BELOW * (self.max_sm_clock or 0)
        return tuple(clock is not None and clock < limit for clock in self.sm_clocks)

    @property
    def cycles(self) -> tuple[float | None, ...]:
        """Each sample in cycles of the multiprocessors' clock; None where that is not known."""
        pairs = zip(self.seconds, self.sm_clocks, strict=True) if self.sm_clocks else ()
        return tuple(None if clock is None else second * clock for second, clock in pairs)

    @property
    def median_cycles(self) -> float | None:
        """The median of those :attr:`cycles` that are known; None where none are."""
        known = [one for one in self.cycles if one is not None]
        return statistics.median(known) if known else None

    def at_clock(self, mhz: float, other: Measurement | None = None) -> ScaledTime:
        """What the operation takes at another clock of the multiprocessors.

        Part of a time scales with the clock (work in the multiprocessors), part of it does not
        (memory, which has a clock of its own). How much each is, only times at two clocks can tell:
        a line through them, t = fixed_seconds + cycles / clock, neither of the two below 0. The two
        are the medians of the thirds of the samples with the lowest and the highest clocks (the
        resistant line of Tukey, 1977), or, with ``other``, the medians of both measurements.

        Args:
            mhz: the clock, in MHz.
            other: the same operation, measured in the same way at another clock (in another
                regime, or locked).

        Raises:
            ValueError: where the clock is not a positive number, and "not available" where the two
                clocks are less than 5 % apart, there are too few samples with a known clock, or
                ``other`` was measured in another way.
        """
        if not (math.isfinite(mhz) and mhz > 0):
            raise ValueError(f"mhz must be a positive number, got {mhz!r}")
        if other is None:
            slow, fast = _outer_thirds(self._at_known_clocks())
            source = "samples of this measurement"
        else:
            for what in ("method", "cache", "device"):
                mine, theirs = getattr(self, what), getattr(other, what)
                if mine != theirs:
                    raise ValueError(
                        f"times at other clocks are not available: {what} is {mine!r} here and "
                        f"{theirs!r} in the other measurement, and must be the same"
                    )
            both = (_middle(self._at_known_clocks()), _middle(other._at_known_clocks()))
            slow, fast = sorted(both)
            source = "this measurement and another"
        return _scale(1e6 * mhz, slow, fast, source)

    def _at_known_clocks(self) -> list[tuple[float, float]]:
        """Clock in hertz and time in seconds of each sample whose clock is known."""
        pairs = zip(self.sm_clocks, self.seconds, strict=True) if self.sm_clocks else ()
        return [(clock, second) for clock, second in pairs if clock is not None]

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

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, with a schema version."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in _PER_SAMPLE:
            fields[name] = list(fields[name])
        fields["activities"] = [dataclasses.asdict(one) for one in self.activities]
        fields["conditions"] = [dataclasses.asdict(one) for one in self.conditions]
        fields["ceilings"] = None if self.ceilings is None else dataclasses.asdict(self.ceilings)
        fields["provenance"] = dict(self.provenance)
        return {"schema": SCHEMA, **fields}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """Reverses :meth:`to_dict`; reads also what schema 2 wrote, which knew no regimes.

        Raises:
            ValueError: for another schema version, or missing or unknown fields.
        """
        schema = data.get("schema")
        if schema not in (2, SCHEMA):
            raise ValueError(
                f"a measurement of schema {schema!r} cannot be read, only of schema 2 or {SCHEMA}; "
                "read it with the convtime that wrote it"
            )
        fields = {name: value for name, value in data.items() if name != "schema"}
        if schema == 2:
            fields |= _OF_SCHEMA_2
        known = {field.name for field in dataclasses.fields(cls)}
        if fields.keys() != known:
            raise ValueError(
                "a measurement must have exactly the fields of convtime.Measurement; missing: "
                f"{sorted(known - fields.keys())}, unknown: {sorted(fields.keys() - known)}"
            )
        for name in _PER_SAMPLE:
            fields[name] = tuple(fields[name])
        if fields["ceilings"] is not None:
            fields["ceilings"] = Ceilings(**fields["ceilings"])
        fields["activities"] = tuple(map(DeviceActivity.from_dict, fields["activities"]))
        if fields["conditions"]:
            from convtime.clocks import ClockReading

            fields["conditions"] = map(ClockReading.from_dict, fields["conditions"])
        fields["conditions"] = tuple(fields["conditions"])
        return cls(**fields)

    def to_json(self) -> str:
        """:meth:`to_dict` as strict JSON text."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def to_frame(self) -> pandas.DataFrame:
        """The samples as a data frame with the columns name, sample, seconds and discarded.

        Raises:
            ImportError: where pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "Measurement.to_frame needs pandas; install it with pip install 'convtime[frame]'"
            ) from error
        kept, discarded = len(self.seconds), len(self.discarded)
        return pandas.DataFrame(
            {
                "name": self.name,
                "sample": [*range(kept), *range(discarded)],
                "seconds": [*self.seconds, *self.discarded],
                "discarded": [False] * kept + [True] * discarded,
            }
        )

    def to_torch(
        self, label: str | None = None, sub_label: str | None = None, description: str | None = None
    ) -> torch.utils.benchmark.Measurement:
        """The samples as PyTorch's own kind of measurement, which its ``Compare`` works on.

        Args:
            label: the table that Compare puts it in; the device unless given.
            sub_label: its row; the name unless given.
            description: its column; the method unless given.
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
                description=description or self.method,
                num_threads=self.provenance.get("threads") or 1,
            ),
        )

    def _facts(self) -> dict[str, str]:
        low, high = self.median_interval
        return {
            "median": format_seconds(self.median),
            "95 % interval": f"{format_seconds(low)} .. {format_seconds(high)}",
            "range": f"{format_seconds(self.min)} .. {format_seconds(self.max)}",
            "samples": f"{len(self.seconds)}"
            + (f" ({len(self.discarded)} discarded)" if self.discarded else ""),
            **self._device_facts(),
            **({"method's own cost": format_seconds(self.overhead)} if self.overhead else {}),
            **self._rate_facts(),
            "method": self._used(self.method, self.method_requested, self.method_reason),
            "queue": self._used(self.queue, self.queue_requested, self.queue_reason),
            "cache": self._used(self.cache, self.cache_requested, self.cache_reason),
            **self._regime_facts(),
            "device": f"{self.provenance.get('gpu') or self.provenance.get('cpu') or self.device} "
            f"({self.device_reason})",
            **self._host_facts(),
            **self._clock_facts(),
            **self._condition_facts(),
            "warm-up": self._warmup_fact(),
            "stopped by": self.stop if self.stop_reason == "settled" else self.stop_reason,
        }

    def _rate_facts(self) -> dict[str, str]:
        facts = {}
        if self.ceilings is not None and self.flops_per_second is not None:
            share = self.flops_per_second / self.ceilings.flops_per_second
            facts["compute"] = (
                f"{self.flops_per_second / 1e12:.4g} TFLOP/s ({share:.1%} of this device's "
                f"{self.ceilings.matmul_dtype} matmul)"
            )
        if self.ceilings is not None and self.bytes_per_second is not None:
            share = self.bytes_per_second / self.ceilings.bytes_per_second
            facts["memory"] = (
                f"{self.bytes_per_second / 1e9:.4g} GB/s ({share:.1%} of this device's copy)"
            )
        return facts

    def _regime_facts(self) -> dict[str, str]:
        if self.regime_requested == "as-is":
            return {}
        regime = self._used(self.regime, self.regime_requested, self.regime_reason)
        idled = f"; idled for {format_seconds(self.idle_seconds)}" if self.idle_seconds else ""
        return {"regime": regime + idled}

    def _host_facts(self) -> dict[str, str]:
        facts = {}
        if self.device == "cpu":
            threads, load, governor = map(
                self.provenance.get, ("threads", "load_average", "governor")
            )
            facts["CPU"] = (
                f"{threads} threads, load average {load:.2f}, governor {governor or 'not known'}"
            )
        if self.pin is not None:
            facts["pinned to"] = f"CPU {self.pin}"
        return facts

    def _clock_facts(self) -> dict[str, str]:
        known = [clock for clock in self.sm_clocks if clock is not None]
        if not known or self.max_sm_clock is None:
            return {}
        text = (
            f"{min(known) / 1e6:.0f} .. {max(known) / 1e6:.0f} MHz of {self.max_sm_clock / 1e6:.0f}"
        )
        if any(self.throttled):
            text += f"; {sum(self.throttled)} samples below {_THROTTLED_BELOW:.0%} of it"
        return {"SM clock": text + (" (locked)" if self.clocks == "lock" else "")}

    def _condition_facts(self) -> dict[str, str]:
        facts = {}
        for name, unit in (("power", "W"), ("temperature", "°C")):
            known = [value for one in self.conditions if (value := getattr(one, name)) is not None]
            if known:
                facts[name] = f"{min(known):.0f} .. {max(known):.0f} {unit}"
        reasons = sorted({why for one in self.conditions for why in one.throttle_reasons or ()})
        if reasons:
            facts["throttled by"] = ", ".join(reasons)
        if self.conditions_reason:
            facts["conditions"] = f"not known: {self.conditions_reason}"
        return facts

    def _warmup_fact(self) -> str:
        end = {None: "", True: ", steady", False: ", not steady"}[self.steady]
        return (
            f"{self.warmup_calls} calls in {format_seconds(self.warmup_seconds)}{end}; "
            f"the first took {format_seconds(self.first_call_seconds)}"
        )

    def _device_facts(self) -> dict[str, str]:
        if not self.spans:
            return {}
        span = _C.summarize(self.spans)["median"]
        return {
            "span": f"{format_seconds(span)} (first start to last end)",
            "activities": f"{len(self.activities)}",
        }

    @staticmethod
    def _used(used: str, requested: str, reason: str) -> str:
        return used if used == requested else f"{used} (asked for {requested}: {reason})"

    def __repr__(self) -> str:
        facts = "\n".join(f"  {name}: {value}" for name, value in self._facts().items())
        return f"<convtime.Measurement {self.name}\n{facts}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for name, value in self._facts().items()
        )
        return f"<table><caption>{html.escape(self.name)}</caption>{rows}</table>"
