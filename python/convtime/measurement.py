"""What was measured, how, and under which conditions. Pure data: nothing here times anything."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from convtime._json import with_tuples
from convtime._load import _C
from convtime.ceilings import Ceilings

if TYPE_CHECKING:
    import pandas
    import torch.utils.benchmark

SCHEMA = 2

_PER_SAMPLE = ("seconds", "discarded", "raw_seconds", "spans", "sm_clocks")
_THROTTLED_BELOW = 0.95  # of the highest clock
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


@dataclasses.dataclass(frozen=True, repr=False)
class Measurement:
    """The samples of one operation, with how and where they were taken. All times in seconds.

    Attributes:
        name: what was measured.
        seconds: every sample, in the order taken.
        discarded: samples that are not in ``seconds`` because the queue could not be held when they
            were taken.
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
        cache: what each call finds in the device's L2 cache: ``cold`` (none of its data),
            ``rotate`` (none of its tensors, which are others than in the calls before), ``partly
            warm`` (those that could not be rotated, which ``cache_reason`` names), ``warm`` (what
            the call before it left there) or ``uncontrolled``.
        cache_requested: what was asked for.
        cache_reason: why ``cache`` is not ``cache_requested``; empty where it is.
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
        sampling_seconds: what sampling took after that, of all candidates together.
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
    device: str
    device_reason: str
    stream: int | None
    warmup_requested: str | int | float
    steady: bool | None
    warmup_calls: int
    warmup_seconds: float
    first_call_seconds: float
    sampling_seconds: float
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
        fields["ceilings"] = None if self.ceilings is None else dataclasses.asdict(self.ceilings)
        fields["provenance"] = dict(self.provenance)
        return {"schema": SCHEMA, **fields}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """Reverses :meth:`to_dict`.

        Raises:
            ValueError: for another schema version, or missing or unknown fields.
        """
        if data.get("schema") != SCHEMA:
            raise ValueError(
                f"a measurement of schema {data.get('schema')!r} cannot be read, only of schema "
                f"{SCHEMA}; read it with the convtime that wrote it"
            )
        fields = {name: value for name, value in data.items() if name != "schema"}
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
            "device": f"{self.provenance.get('gpu') or self.provenance.get('cpu') or self.device} "
            f"({self.device_reason})",
            **self._clock_facts(),
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

    def _clock_facts(self) -> dict[str, str]:
        known = [clock for clock in self.sm_clocks if clock is not None]
        if not known or self.max_sm_clock is None:
            return {}
        text = (
            f"{min(known) / 1e6:.0f} .. {max(known) / 1e6:.0f} MHz of {self.max_sm_clock / 1e6:.0f}"
        )
        if any(self.throttled):
            text += f"; {sum(self.throttled)} samples below {_THROTTLED_BELOW:.0%} of it"
        return {"SM clock": text}

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
