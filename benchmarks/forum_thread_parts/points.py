"""The same convolutions in a training loop and by themselves, over so many iterations."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import results
import torch

import convtime
from forum_thread_parts.net import LAYERS, Size, Training

REST = 1.0  # seconds, from which every run begins
IDLE = 0.5  # seconds in which the idle clock is read
_CLOCK_INTERVAL = 0.005
_LONGEST = 120.0  # seconds of samples


def idle_clock(device: torch.device) -> results.Row:
    """The clock of a GPU that has rested."""
    with convtime.trace_clocks(device, interval=_CLOCK_INTERVAL) as trace:
        time.sleep(REST + IDLE)
    read = [reading for reading in trace.readings if reading.seconds > REST]
    return {
        "sm_clock_hz": _median(reading.sm_clock_hz for reading in read),
        "power": _median(reading.power for reading in read),
        "temperature": _median(reading.temperature for reading in read),
        "reason": trace.reason,
    }


def measure(device: torch.device, size: Size, iterations: int) -> results.Row:
    """A row for so many iterations, each run of which begins with a GPU at rest."""
    training = Training(device, size)
    training.step()  # what is done only once
    first_loss = float(training.loss)
    in_place, clock = _recorded(device, training.step, iterations)
    last_loss = float(training.loss)
    return {
        "iterations": iterations,
        "batch": size.batch,
        "loss": [first_loss, last_loss],
        "in_place_clock_hz": clock,
        "layers": {
            name: {
                "in_place": _told(in_place.region(name)),
                "isolated": _alone(device, training, name, iterations),
                "same_regime": _behind_the_step(device, training, name, iterations),
            }
            for name in LAYERS
        },
    }


def _alone(device: torch.device, training: Training, name: str, iterations: int) -> results.Row:
    """The convolution called again and again on the same data, as the thread's tool does."""
    call = training.isolated(name)
    call()

    def named() -> None:
        with convtime.region("isolated"):
            call()

    recording, clock = _recorded(device, named, iterations)
    return {**_told(recording.region("isolated")), "sm_clock_hz": clock}


def _behind_the_step(
    device: torch.device, training: Training, name: str, iterations: int
) -> results.Row:
    """The convolution by itself, timed by convtime with a step of the loop before each call."""
    call = training.isolated(name)
    _rest(device)
    measured = convtime.time_op(
        call,
        setup=call.behind(training.step),
        device=device,
        cache="warm" if device.type == "cuda" else "auto",
        placement="as-is",
        regime="as-is",
        queue="none",
        warmup=1,
        stop="count",
        min_samples=iterations,
        max_samples=iterations,
        budget=_LONGEST,
    )
    return {
        **_summed_up(measured.seconds),
        "method": measured.method,
        "cache": measured.cache,
        "sm_clock_hz": _median(measured.sm_clocks_hz),
        "kernels": [activity.name for activity in measured.activities],
    }


def _recorded(
    device: torch.device, call: Callable[[], object], iterations: int
) -> tuple[convtime.Recording, float | None]:
    """So many calls from a rest on, and the clock meanwhile.

    Raises:
        RuntimeError: Some of the records are missing.
    """
    _rest(device)
    on_gpu = device.type == "cuda"
    with (
        convtime.trace_clocks(device, _CLOCK_INTERVAL) if on_gpu else _no_clocks() as trace,
        convtime.record("kernel" if on_gpu else "cpu") as recording,
    ):
        for _ in range(iterations):
            call()
    if recording.fault or (on_gpu and recording.method != "kernel"):
        raise RuntimeError(recording.fault or recording.method_reason)
    return recording, _median(reading.sm_clock_hz for reading in trace.readings)


def _no_clocks() -> contextlib.nullcontext[convtime.ClockTrace]:
    return contextlib.nullcontext(convtime.ClockTrace("cpu", _CLOCK_INTERVAL, 0.0))


def _rest(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        time.sleep(REST)


def _told(region: convtime.RegionTimes) -> results.Row:
    return {
        **_summed_up(region.kernel_seconds or region.host_seconds),
        "kernels": [activity.name for activity in region.activities],
    }


def _summed_up(seconds: Sequence[float]) -> results.Row:
    return {
        "launches": len(seconds),
        "mean": statistics.fmean(seconds),
        "median": statistics.median(seconds),
        "min": min(seconds),
        "max": max(seconds),
    }


def _median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
