"""Another tool's number: read it, and split its difference from ours, by arithmetic alone."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from convtime.core.checks import is_finite, require
from convtime.core.errors import InputError
from convtime.diagnosis.diagnosis import Difference, Part
from convtime.diagnosis.evidence import Evidence
from convtime.exchange.files import read_measurements
from convtime.timing.candidate import Candidate
from convtime.timing.measurement import Measurement

#: For each additional part, a timing method must come closer by this share of the number.
_FOR_A_PART = 0.01


# From the evidence, and the time so far on the way from our method to the tool's: the seconds of a
# part of the difference; None if they are unknown.
_Seconds = Callable[[Evidence, float], float | None]


def _between(contrast: str, ours: str, theirs: str) -> _Seconds:
    """Return what computes the part between two conditions of a contrast."""

    def seconds(evidence: Evidence, _so_far: float) -> float | None:
        before, after = evidence.seconds(contrast, ours), evidence.seconds(contrast, theirs)
        return None if before is None or after is None else after - before

    return seconds


def _up_to(method: str) -> _Seconds:
    """Return what computes the part up to the time by another method."""

    def seconds(evidence: Evidence, so_far: float) -> float | None:
        theirs = evidence.seconds("method", method)
        return None if theirs is None else theirs - so_far

    return seconds


# On a CPU, a loop differs by its cache state, not by launches.
_LOOP_ON_CPU = "its loop finds the caches in the state that the previous call left"

#: By name of a step: the part's name, its sentence, and its seconds.
_STEPS: Final[Mapping[str, tuple[str, str, _Seconds]]] = {
    "cache": (
        "cache",
        "it calls with a warm cache, and we with a cold one",
        _between("cache", "cold", "warm"),
    ),
    "flush": (
        "flush",
        "its flush leaves nothing to be written back",
        _between("cache", "cold", "cold-clean"),
    ),
    "placement": (
        "placement",
        "it calls at one choice of addresses, and we at many",
        _between("places", "random", "as-is"),
    ),
    "clock": (
        "clock",
        "it loads the GPU until power lowers the clock",
        _between("regime", "burst", "sustained"),
    ),
    "threads": (
        "threads",
        "it calls with one thread, and we with PyTorch's",
        _between("threads", "as-is", "1 thread"),
    ),
    "pages": (
        "pages",
        "its calls allocate memory as usual, and ours use memory that is already mapped",
        _between("pages", "retained", "as-is"),
    ),
    "launch between events": (
        "launch",
        "the GPU waits for launches between its events",
        _up_to("events, not queued"),
    ),
    "graph": ("gaps", "it counts the gaps between a graph's nodes", _up_to("graph")),
    "gaps": (
        "gaps",
        "it counts the gaps between kernels",
        lambda evidence, _: evidence.work.span - evidence.work.seconds or None,
    ),
    "event cost": (
        "event cost",
        "it includes the overhead of an event pair",
        lambda evidence, _: evidence.event_cost or None,
    ),
    "loop": (
        "launch",
        "the GPU waits for launches in its loop",
        lambda evidence, so_far: evidence.calls.loop.median - so_far,
    ),
    "loop on a CPU": (
        "cache",
        _LOOP_ON_CPU,
        lambda evidence, so_far: evidence.calls.loop.median - so_far,
    ),
    "loop of one thread": (
        "cache",
        _LOOP_ON_CPU,
        lambda evidence, so_far: (
            (evidence.seconds("one thread", "in a loop") or evidence.calls.loop.median) - so_far
        ),
    ),
    "waiting": (
        "waiting",
        "it waits for the GPU after each call",
        lambda evidence, _: evidence.calls.waiting.median - evidence.calls.loop.median,
    ),
    "mean": (
        "statistics",
        "it reports the mean, and we the median",
        lambda evidence, _: evidence.work.mean - evidence.work.seconds,
    ),
    "fastest": (
        "statistics",
        "it reports the fastest sample, and we the median",
        lambda evidence, _: evidence.work.fewest - evidence.work.seconds,
    ),
}

#: Timing methods of other tools, each as the steps from our method to theirs.
WAYS: Final[Mapping[str, tuple[str, ...]]] = {
    "kernel times of a profiler, cold": ("placement",),
    "kernel times of a profiler, warm": ("cache", "placement"),
    "the fastest of a profiler's kernel times, warm": ("cache", "placement", "fastest"),
    "ncu": ("flush", "placement"),
    "triton do_bench": ("placement", "gaps", "event cost", "mean"),
    "triton do_bench_cudagraph": ("cache", "placement", "graph", "mean"),
    "nvbench": ("placement", "gaps", "event cost", "mean"),
    "torch Timer": ("cache", "placement", "gaps", "loop"),
    "events around each call": (
        "cache",
        "placement",
        "gaps",
        "event cost",
        "launch between events",
    ),
    "a clock around each call and its wait": ("cache", "placement", "gaps", "loop", "waiting"),
}
_ON_CPU: Final[Mapping[str, tuple[str, ...]]] = {
    "torch Timer": ("threads", "pages", "loop of one thread"),
    "a clock around each call, cold": (),
    "a clock around a loop": ("loop on a CPU",),
    "the mean of a clock around each call": ("mean",),
    "the fastest of a clock around each call": ("fastest",),
}


def split(evidence: Evidence, theirs: float, tool: str = "") -> Difference:
    """Split the difference between another tool's time and ours into parts.

    For an unknown tool, the closest timing method is assumed, with a preference for fewer parts.
    For any tool, the GPU's clock under sustained load is assumed if that comes closer.

    Args:
        evidence: all observations.
        theirs: the other tool's time in seconds.
        tool: key of :data:`WAYS`; empty if unknown.
    """
    ways = WAYS if evidence.on_gpu else _ON_CPU
    tried = [tool] if tool in ways else list(ways)
    differences = [
        each for name in tried for each in _differences(evidence, theirs, name, ways[name])
    ]
    best = min(
        differences, key=lambda each: abs(each.unexplained) + _FOR_A_PART * theirs * len(each.parts)
    )
    return dataclasses.replace(best, assumed=tool not in ways)


def _differences(
    evidence: Evidence, theirs: float, tool: str, steps: Sequence[str]
) -> Iterator[Difference]:
    for clock in ((), ("clock",)):
        ours = so_far = evidence.work.seconds
        parts = []
        for step in (*clock, *steps):
            name, sentence, seconds_of = _STEPS[step]
            seconds = seconds_of(evidence, so_far)
            if seconds is not None:
                parts.append(Part(name, seconds, sentence))
                so_far += seconds
        yield Difference(
            tool=tool,
            assumed=False,
            theirs=theirs,
            ours=ours,
            parts=tuple(parts),
            unexplained=theirs - so_far,
        )


_TOOLS_OF_FILES = {"nvbench": "nvbench", "torch.utils.benchmark": "torch Timer"}
_TAKEN = (
    "a number of seconds, a callable that returns one, 'do_bench', 'do_bench_cudagraph' or "
    "'timer', a file or Measurement of another tool"
)


def time_by_other_tool(against: Any, candidate: Candidate) -> tuple[float, str]:
    """Return another tool's time for a candidate, and the tool; a tool given by name is run.

    Raises:
        InputError: ``against`` has another type, the number is not a valid time, or the tool is not
            installed.
    """
    if isinstance(against, str) and against in _RUN:
        return _RUN[against](candidate)
    if isinstance(against, str | os.PathLike):
        measurements = read_measurements(against)
        if len(measurements) != 1:
            raise InputError(
                f"against must be a file with one measurement, got {os.fspath(against)} with "
                f"{len(measurements)}; pass one element of convtime.read_measurements(…)"
            )
        (against,) = measurements.values()
    elif type(against).__module__.startswith("torch.utils.benchmark"):
        (against,) = read_measurements(against).values()
    if isinstance(against, Measurement):
        tool = str(against.provenance.get("tool", ""))
        # nvbench's own number is the mean of its samples.
        seconds = against.mean if tool == "nvbench" else against.median
        return seconds, _TOOLS_OF_FILES.get(tool, "")
    what, value = "against", against
    if callable(against):
        what, value = "the callable against", against()
    if not is_finite(value) or float(value) <= 0:
        raise InputError(f"{what} must give {_TAKEN}; the time must be above 0, got {value!r}")
    return float(value), ""


def _triton(function: str, candidate: Candidate) -> tuple[float, str]:
    require(
        torch.cuda.is_available(),
        f"against={function!r} needs a GPU, and PyTorch finds none; use against='timer'",
    )
    try:
        testing: Any = importlib.import_module("triton.testing")
    except ImportError as error:
        raise InputError(
            f"against={function!r} requires triton, which cannot be imported ({error})"
        ) from error
    milliseconds = getattr(testing, function)(_bare(candidate))
    return 1e-3 * float(milliseconds), f"triton {function}"


def _timer(candidate: Candidate) -> tuple[float, str]:
    from torch.utils.benchmark import Timer

    timer: Any = Timer(stmt="call()", globals={"call": _bare(candidate)})
    return float(timer.blocked_autorange(min_run_time=0.2).median), "torch Timer"


def _bare(candidate: Candidate) -> Callable[[], object]:
    return lambda: candidate.fn(*candidate.args, **candidate.kwargs)


_RUN: dict[str, Callable[[Candidate], tuple[float, str]]] = {
    "do_bench": functools.partial(_triton, "do_bench"),
    "do_bench_cudagraph": functools.partial(_triton, "do_bench_cudagraph"),
    "timer": _timer,
}
