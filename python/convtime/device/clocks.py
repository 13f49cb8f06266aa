"""Read a GPU's clocks, power and temperature while code runs."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator

import torch

from convtime.core.checks import is_finite, require
from convtime.device import nvml
from convtime.device.clock_lock import warn_of_left_over
from convtime.device.clock_trace import ClockReading, ClockTrace
from convtime.device.resolve import resolve_gpu

_LONGEST_QUERY = 5.0  # seconds to wait for an answer of the driver


class ClockMonitor:
    """Reads a GPU's clocks in a separate thread while the ``with`` block runs.

    Failures never reach the block: the readings stop, or there are none, and ``reason`` says why. A
    reading takes the driver up to a few milliseconds, during which the thread does not hold the
    GIL.

    Attributes:
        device: the GPU, e.g. ``cuda:0``.
        reason: why readings are missing or stopped early; empty if they did not.
        started: time at which the block was entered, in seconds of ``time.perf_counter``.

    Args:
        device: the GPU, as a torch device or an index. Default: the current one.
        interval: seconds between two readings.

    Raises:
        ValueError: the device is not a GPU, or the interval is not positive.
    """

    def __init__(
        self, device: torch.device | str | int | None = None, interval: float = 0.02
    ) -> None:
        require(
            is_finite(interval) and interval > 0,
            f"interval must be a positive number of seconds, got {interval!r}",
        )
        self.device = "cuda"
        self.reason = ""
        self.started = math.nan
        self._interval = interval
        self._readings: list[ClockReading] = []
        try:
            self.device = str(resolve_gpu(device))
        except nvml.NvmlUnavailableError as error:
            self.reason = str(error)
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._session = contextlib.ExitStack()

    @property
    def readings(self) -> tuple[ClockReading, ...]:
        """The readings in order of time; complete once the block has ended."""
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
        except RuntimeError as error:  # NVML is unavailable, or no thread could be started
            self.reason = str(error)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            self._session.close()
            return
        self._done.set()
        self._thread.join(_LONGEST_QUERY)
        if self._thread.is_alive():
            # NVML stays open: a query is still running.
            self.reason = f"NVML did not answer within {_LONGEST_QUERY:g} s"
        else:
            self._session.close()

    def _read(self, gpu: nvml.Gpu) -> None:
        try:
            self._readings.append(read_clocks(gpu, time.perf_counter() - self.started))
            ended = False
            while not ended:
                # Read once more after the end, so that short blocks also have two readings.
                ended = self._done.wait(self._interval)
                self._readings.append(read_clocks(gpu, time.perf_counter() - self.started))
        except Exception as error:  # reported in `reason`; a thread has no caller to raise to
            self.reason = f"NVML failed after {len(self._readings)} readings: {error}"


def read_clocks(gpu: nvml.Gpu, seconds: float) -> ClockReading:
    """Return the GPU's present values, as read at that time."""
    return ClockReading(
        seconds=seconds,
        sm_clock_hz=gpu.clock_hz(gpu.nvml.NVML_CLOCK_SM),
        memory_clock_hz=gpu.clock_hz(gpu.nvml.NVML_CLOCK_MEM),
        power=gpu.power(),
        temperature=gpu.temperature(),
        throttle_reasons=gpu.throttle_reasons(),
    )


@contextlib.contextmanager
def trace_clocks(
    device: torch.device | str | int | None = None, interval: float = 0.02
) -> Iterator[ClockTrace]:
    """Record a GPU's clocks, power, temperature and throttle reasons while a block of code runs.

    If NVML is unavailable, the block still runs, and the trace's ``reason`` says why the trace is
    empty.

    Args:
        device: the GPU. Default: the current one.
        interval: seconds between two readings.

    Yields:
        The trace; its readings are filled in when the block ends.

    Raises:
        ValueError: the device is not a GPU, or the interval is not positive.

    Warns:
        RuntimeWarning: a killed process has left this GPU's clocks locked.
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
