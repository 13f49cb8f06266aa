"""The GPU's clocks, power and temperature while something runs; and locking the clocks."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from convtime import nvml
from convtime.clock_lock import LockedClocks, locked_clocks, reset_clocks, warn_of_left_over

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from convtime.measurement import Measurement

__all__ = [
    "ClockMonitor",
    "ClockReading",
    "ClockTrace",
    "LockedClocks",
    "locked_clocks",
    "reset_clocks",
    "trace_clocks",
]

SCHEMA = 1

_LONGEST_QUERY = 5.0  # seconds that a driver may take to answer before it is no longer waited for


@dataclasses.dataclass(frozen=True)
class ClockReading:
    """What NVML said at one moment; None for what this GPU or driver does not tell.

    Attributes:
        seconds: since the readings began.
        sm_clock: the rate of the multiprocessors' clock, in hertz.
        memory_clock: the rate of the memory's clock, in hertz.
        power: what the GPU draws, in watts: at that moment, or where the driver does not know
            that, on average over the last second.
        temperature: of the GPU's core, in °C.
        throttle_reasons: what kept the clocks from being higher, by nvidia-smi's names, e.g.
            ``sw_power_cap``.
    """

    seconds: float
    sm_clock: float | None
    memory_clock: float | None
    power: float | None
    temperature: float | None
    throttle_reasons: tuple[str, ...] | None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ClockReading:
        """Reverses dataclasses.asdict, also after JSON has made a list of the tuple."""
        reasons = data["throttle_reasons"]
        return cls(**{**data, "throttle_reasons": None if reasons is None else tuple(reasons)})


class ClockMonitor:
    """Reads a GPU's clocks from a thread of its own while the ``with`` block runs.

    Nothing that goes wrong with the readings reaches the block: they then end, or there are none,
    and ``reason`` says why. A reading takes the driver up to some milliseconds, in which the thread
    does not hold the interpreter.

    Attributes:
        device: the GPU, e.g. ``cuda:0``.
        reason: why there are no readings, or no more of them; empty where there are.
        started: when the block was entered, in seconds of ``time.perf_counter``.

    Args:
        device: the GPU as a torch device or its index; the current one unless given.
        interval: seconds between two readings.

    Raises:
        ValueError: for another device, or an interval that is not positive.
    """

    def __init__(
        self, device: torch.device | str | int | None = None, interval: float = 0.02
    ) -> None:
        if not (isinstance(interval, int | float) and 0 < interval < math.inf):
            raise ValueError(f"interval must be a positive number of seconds, got {interval!r}")
        self.device = "cuda"
        self.reason = ""
        self.started = math.nan
        self._interval = interval
        self._readings: list[ClockReading] = []
        try:
            self.device = str(nvml.resolve(device))
        except nvml.NvmlUnavailableError as error:
            self.reason = str(error)
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._session = contextlib.ExitStack()

    @property
    def readings(self) -> tuple[ClockReading, ...]:
        """In order of time; all of them once the block is left."""
        return tuple(self._readings)

    def __enter__(self) -> ClockMonitor:
        self.started = time.perf_counter()
        if self.reason:
            return self
        try:
            gpu = self._session.enter_context(nvml.session(torch.device(self.device)))
            thread = threading.Thread(
                target=self._read, args=(gpu,), name="convtime clocks", daemon=True
            )
            thread.start()
            self._thread = thread
        except RuntimeError as error:  # NVML is not to be had, or the system has no more threads
            self.reason = str(error)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            self._session.close()
            return
        self._done.set()
        self._thread.join(_LONGEST_QUERY)
        if self._thread.is_alive():
            # NVML stays open, since a query is still in it.
            self.reason = f"NVML did not answer within {_LONGEST_QUERY:g} s"
        else:
            self._session.close()

    def _read(self, gpu: nvml.Gpu) -> None:
        try:
            ended = False
            while not ended:
                # The last reading comes after the end, so that short blocks have two, too.
                ended = self._done.is_set()
                self._readings.append(_reading(gpu, time.perf_counter() - self.started))
                self._done.wait(0 if ended else self._interval)
        except Exception as error:  # of whatever kind: it is said, and not raised in a thread
            self.reason = f"NVML failed after {len(self._readings)} readings: {error}"


def _reading(gpu: nvml.Gpu, seconds: float) -> ClockReading:
    return ClockReading(
        seconds=seconds,
        sm_clock=gpu.clock(gpu.nvml.NVML_CLOCK_SM),
        memory_clock=gpu.clock(gpu.nvml.NVML_CLOCK_MEM),
        power=gpu.power(),
        temperature=gpu.temperature(),
        throttle_reasons=gpu.throttle_reasons(),
    )


@dataclasses.dataclass
class ClockTrace:
    """A GPU's clocks, power and temperature while a block of code ran; see :func:`trace_clocks`.

    Attributes:
        device: the GPU, e.g. ``cuda:0``.
        interval: seconds between two readings.
        started: when the block was entered, in seconds of ``time.perf_counter``.
        readings: in order of time; empty until the block is left.
        reason: why there are no readings, or no more of them; empty where there are.
    """

    device: str
    interval: float
    started: float
    readings: tuple[ClockReading, ...] = ()
    reason: str = ""

    def plot(self, times: Measurement | Sequence[tuple[float, float]] | None = None) -> Figure:
        """Draws clock, power, temperature and throttle reasons over time.

        Args:
            times: what is drawn above them: pairs of start (``time.perf_counter()``) and duration
                of each iteration, both in seconds; or a Measurement that was the last thing in the
                block, whose samples are drawn at even distances over its sampling time, or their
                sum where a steady warm-up gave some of them, since they have no time stamps.

        Returns:
            A figure to save or show, e.g. ``trace.plot().savefig("trace.png")``.

        Raises:
            ValueError: where there are no readings, and it says why, or no matplotlib.
        """
        if not self.readings:
            raise ValueError(
                f"a trace without readings cannot be drawn: {self.reason or 'it has not ended'}"
            )
        from convtime.plot import clock_figure  # which needs what is timed, which needs this module

        return clock_figure(self, () if times is None else self._placed(times))

    def _placed(
        self, times: Measurement | Sequence[tuple[float, float]]
    ) -> list[tuple[float, float]]:
        """Start since the trace's own start, and duration, of each iteration."""
        from convtime.measurement import Measurement

        if not isinstance(times, Measurement):
            return [(start - self.started, duration) for start, duration in times]
        lasted = max(times.sampling_seconds, sum(times.seconds))
        began = self.readings[-1].seconds - lasted
        step = lasted / len(times.seconds)
        return [(began + place * step, one) for place, one in enumerate(times.seconds)]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, with a schema version."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ClockTrace:
        """Reverses :meth:`to_dict`.

        Raises:
            ValueError: for another schema version, or missing or unknown fields.
        """
        if data.get("schema") != SCHEMA:
            raise ValueError(
                f"a clock trace of schema {data.get('schema')!r} cannot be read, only of schema "
                f"{SCHEMA}; read it with the convtime that wrote it"
            )
        fields = {name: value for name, value in data.items() if name != "schema"}
        known = {field.name for field in dataclasses.fields(cls)}
        if fields.keys() != known:
            raise ValueError(
                "a clock trace must have exactly the fields of convtime.ClockTrace; missing: "
                f"{sorted(known - fields.keys())}, unknown: {sorted(fields.keys() - known)}"
            )
        readings = tuple(map(ClockReading.from_dict, fields["readings"]))
        return cls(**{**fields, "readings": readings})


@contextlib.contextmanager
def trace_clocks(
    device: torch.device | str | int | None = None, interval: float = 0.02
) -> Iterator[ClockTrace]:
    """Records a GPU's clocks, power, temperature and throttle reasons while a block of code runs.

    Where NVML cannot be used the block runs all the same, and the trace's ``reason`` says why it is
    empty.

    Args:
        device: the GPU; the current one unless given.
        interval: seconds between two readings.

    Yields:
        The trace, which has its readings once the block is left.

    Raises:
        ValueError: for another device, or an interval that is not positive.

    Warns:
        RuntimeWarning: where a process that was killed has left this GPU's clocks locked.
    """
    monitor = ClockMonitor(device, interval)
    trace = ClockTrace(monitor.device, interval, math.nan)
    try:
        with monitor:
            if not monitor.reason:
                warn_of_left_over(monitor.device)
            trace.started = monitor.started
            yield trace
    finally:
        trace.readings, trace.reason = monitor.readings, monitor.reason
