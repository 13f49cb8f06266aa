"""Another tool's number: read it, and split its difference from ours, by arithmetic alone."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from convtime.core.checks import is_finite
from convtime.core.errors import InputError
from convtime.diagnosis.diagnosis import Difference, Part
from convtime.diagnosis.evidence import Evidence
from convtime.exchange.files import read_measurements
from convtime.timing.candidate import Candidate
from convtime.timing.measurement import Measurement

#: For each additional part, a timing method must come closer by this share of the number.
_FOR_A_PART = 0.01


@dataclasses.dataclass(frozen=True)
class Other:
    """Another tool's number.

    Attributes:
        seconds: the other tool's time in seconds.
        tool: key of :data:`WAYS`; empty if unknown.
    """

    seconds: float
    tool: str = ""


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
        found = evidence.seconds("method", method)
        return None if found is None else found - so_far

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


def split(evidence: Evidence, other: Other) -> Difference:
    """Split the difference between another tool's number and ours into parts.

    For an unknown tool, the closest timing method is assumed, with a preference for fewer parts.
    For any tool, the GPU's clock under sustained load is assumed if that comes closer.
    """
    ways = WAYS if evidence.on_gpu else _ON_CPU
    known = other.tool in ways
    tried = [other.tool] if known else list(ways)
    found = [each for tool in tried for each in _differences(evidence, other, tool, ways[tool])]
    best = min(
        found,
        key=lambda each: abs(each.unexplained) + _FOR_A_PART * other.seconds * len(each.parts),
    )
    return dataclasses.replace(best, assumed=not known)


def _differences(
    evidence: Evidence, other: Other, tool: str, steps: Sequence[str]
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
            theirs=other.seconds,
            ours=ours,
            parts=tuple(parts),
            unexplained=other.seconds - so_far,
        )


_TOOLS_OF_FILES = {"nvbench": "nvbench", "torch.utils.benchmark": "torch Timer"}
_TAKEN = (
    "a number of seconds, a callable that returns one, 'do_bench', 'do_bench_cudagraph' or "
    "'timer', a file or Measurement of another tool"
)


def other_of(against: Any, candidate: Candidate) -> Other:
    """Return another tool's number for a candidate; a tool given by name is run.

    Raises:
        InputError: ``against`` has another type, the number is not a valid time, or the tool is not
            installed.
    """
    if isinstance(against, str) and against in _RUN:
        return _RUN[against](candidate)
    if isinstance(against, str | os.PathLike):
        return _of_file(against)
    if type(against).__module__.startswith("torch.utils.benchmark"):
        (against,) = read_measurements(against).values()
    if isinstance(against, Measurement):
        return _of_measurement(against)
    if callable(against):
        return Other(_time(against(), "the callable against"))
    return Other(_time(against, "against"))


def _time(value: Any, what: str) -> float:
    if not is_finite(value) or not 0 < float(value) < math.inf:
        raise InputError(f"{what} must give {_TAKEN}; the time must be above 0, got {value!r}")
    return float(value)


def _of_file(path: str | os.PathLike[str]) -> Other:
    found = read_measurements(path)
    if len(found) != 1:
        raise InputError(
            f"against must be a file with one measurement, got {os.fspath(path)} with "
            f"{len(found)}; pass one element of convtime.read_measurements(…)"
        )
    return _of_measurement(next(iter(found.values())))


def _of_measurement(measured: Measurement) -> Other:
    tool = str(measured.provenance.get("tool", ""))
    # nvbench's own number is the mean of its samples.
    seconds = measured.mean if tool == "nvbench" else measured.median
    return Other(seconds, _TOOLS_OF_FILES.get(tool, ""))


def _triton(function: str, candidate: Candidate) -> Other:
    if not torch.cuda.is_available():
        raise InputError(
            f"against={function!r} needs a GPU, and PyTorch finds none; use against='timer'"
        )
    try:
        testing: Any = importlib.import_module("triton.testing")
    except ImportError as error:
        raise InputError(
            f"against={function!r} requires triton, which cannot be imported ({error})"
        ) from error
    return Other(1e-3 * float(getattr(testing, function)(_bare(candidate))), f"triton {function}")


def _timer(candidate: Candidate) -> Other:
    from torch.utils.benchmark import Timer

    timer: Any = Timer(stmt="call()", globals={"call": _bare(candidate)})
    return Other(float(timer.blocked_autorange(min_run_time=0.2).median), "torch Timer")


def _bare(candidate: Candidate) -> Callable[[], object]:
    return lambda: candidate.fn(*candidate.args, **candidate.kwargs)


_RUN: dict[str, Callable[[Candidate], Other]] = {
    "do_bench": functools.partial(_triton, "do_bench"),
    "do_bench_cudagraph": functools.partial(_triton, "do_bench_cudagraph"),
    "timer": _timer,
}
