"""The rows; those of convolutions are over so many iterations, in the loop and by themselves."""

import functools
import itertools
import statistics
import time
from collections.abc import Iterable, Sequence

import results
import torch
from common.running import AS_IS, Call, Measure, counted, run

import convtime
from forum_thread import advice
from forum_thread import counted as counters
from forum_thread.net import LAYERS, Training

ITERATIONS = (1, 10, 100, 1000)
REST = 0.5  # seconds, from which every run begins
IDLE = 0.5  # seconds in which the idle clock is read
RUNS = {1: 11, 10: 3}  # of so many iterations, since a few samples say little; of others, one
_CLOCK_INTERVAL = 0.005
_STAMPS = 4  # of the clocks at each end of a run: two must be of one multiprocessor
_LONGEST = 120.0  # seconds of samples


def make_cases(device: torch.device) -> dict[str, Measure]:
    cases: dict[str, Measure] = {"idle": functools.partial(idle_clock, device)}
    for iterations in ITERATIONS:
        cases[f"{iterations} iterations"] = functools.partial(measure_point, device, iterations)
    for name in LAYERS:
        cases[f"counters of {name}"] = functools.partial(counters.measure, device, name)
    for name in advice.ADVICE:
        cases[f"advice: {name}"] = functools.partial(advice.measure, device, name)
    return cases


def idle_clock(device: torch.device) -> results.Row:
    with convtime.trace_clocks(device, interval=_CLOCK_INTERVAL) as trace:
        time.sleep(REST + IDLE)
    clocks = [reading.sm_clock_hz for reading in trace.readings if reading.seconds > REST]
    return {"sm_clock_hz": _median(clocks)}


def measure_point(device: torch.device, iterations: int) -> results.Row:
    training = Training(device)
    training.step()  # what is done only once
    runs = RUNS.get(iterations, 1)
    in_place = [_recorded(training.step, iterations) for _ in range(runs)]
    layers = {}
    for name in LAYERS:
        call = convtime.region("isolated")(training.isolated(name))
        call()
        isolated = [_recorded(call, iterations) for _ in range(runs)]
        layers[name] = {
            "in_place": _summed_up(in_place, name),
            "isolated": _summed_up(isolated, "isolated"),
            "same_regime": _behind_the_step(device, training, name, iterations, runs),
        }
    return {
        "iterations": iterations,
        "in_place_clock_hz": _median([clock for _, clock in in_place]),
        "layers": layers,
    }


def _behind_the_step(
    device: torch.device, training: Training, name: str, iterations: int, runs: int
) -> results.Row:
    """The convolution by itself, timed by convtime with a step of the loop before each call."""
    call = training.isolated(name)
    options = {**AS_IS, **counted(iterations), "cache": "warm", "queue": "none", "warmup": 1}
    options |= {"before": call.behind(training.step), "device": device, "budget": _LONGEST}
    found = []
    for _ in range(runs):
        _rest()
        found.append(convtime.time_op(call, **options))
    return {
        **_statistics([second for run in found for second in run.seconds]),
        "sm_clock_hz": _median([clock for run in found for clock in run.sm_clocks_hz]),
        "kernels": [activity.name for activity in found[0].activities],
    }


Recorded = tuple[convtime.Recording, float | None]  # and the clock during it


def _recorded(call: Call, iterations: int) -> Recorded:
    """So many calls from a rest on, and the clock meanwhile.

    The GPU reads its clocks itself, before the first call and after the last: what NVML says is of
    the rest around a short run, too.
    """
    _rest()
    with convtime.record("kernel") as recording:
        before = _stamps()
        for _ in range(iterations):
            call()
        after = _stamps()
    if recording.fault or recording.method != "kernel":
        raise RuntimeError(recording.fault or recording.method_reason)
    return recording, clock_hz(before, after)


def _stamps() -> list[torch.Tensor]:
    return [torch.ops.convtime.read_clocks() for _ in range(_STAMPS)]


def clock_hz(before: Iterable[torch.Tensor], after: Iterable[torch.Tensor]) -> float | None:
    """The mean rate between two of the stamps; None where no multiprocessor made both.

    Stamps are of nanoseconds, cycles and the multiprocessor.
    """
    pairs = itertools.product(*([stamp.tolist() for stamp in end] for end in (before, after)))
    for (began, first, by), (ended, last, also_by) in pairs:
        if by == also_by:
            return 1e9 * float(last - first) / float(ended - began)
    return None


def _rest() -> None:
    torch.cuda.synchronize()
    time.sleep(REST)


def _summed_up(recorded: Sequence[Recorded], name: str) -> results.Row:
    regions = [recording.region(name) for recording, _ in recorded]
    return {
        **_statistics([second for region in regions for second in region.kernel_seconds]),
        "sm_clock_hz": _median([clock for _, clock in recorded]),
        "kernels": [activity.name for activity in regions[0].activities],
    }


def _statistics(seconds: Sequence[float]) -> results.Row:
    return {
        "launches": len(seconds),
        "mean": statistics.fmean(seconds),
        "median": statistics.median(seconds),
        "min": min(seconds),
        "max": max(seconds),
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


if __name__ == "__main__":
    run("forum_thread", make_cases)
