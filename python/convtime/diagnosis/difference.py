"""Split the difference between another tool's number and ours, by arithmetic alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from convtime.diagnosis.diagnosis import Difference, Part
from convtime.diagnosis.evidence import Evidence

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


# On a CPU, a loop differs by its cache state, not by launches.
_LOOP_ON_CPU = "its loop finds the caches in the state that the previous call left"

_Step = Callable[[Evidence, float], Part | None]


def _between(
    name: str,
    contrast: str,
    ours: str,
    theirs: str,
    sentence: str,
    evidence: Evidence,
    so_far: float,  # noqa: ARG001
) -> Part | None:
    """Return the part between two conditions of a contrast."""
    before, after = evidence.seconds(contrast, ours), evidence.seconds(contrast, theirs)
    return None if before is None or after is None else Part(name, after - before, sentence)


def _up_to(
    name: str, condition: str, sentence: str, evidence: Evidence, so_far: float
) -> Part | None:
    """Return the part up to the time by another method."""
    seconds = evidence.seconds("method", condition)
    return None if seconds is None else Part(name, seconds - so_far, sentence)


_cache = partial(
    _between,
    *("cache", "cache", "cold", "warm", "it calls with a warm cache, and we with a cold one"),
)
_flush = partial(
    _between,
    *("flush", "cache", "cold", "cold-clean", "its flush leaves nothing to be written back"),
)
_placement = partial(
    _between,
    *("placement", "places", "random", "as-is"),
    "it calls at one choice of addresses, and we at many",
)
_clock = partial(
    _between,
    *("clock", "regime", "burst", "sustained"),
    "it loads the GPU until power lowers the clock",
)
_threads = partial(
    _between,
    *("threads", "threads", "as-is", "1 thread"),
    "it calls with one thread, and we with PyTorch's",
)
_pages = partial(
    _between,
    *("pages", "pages", "retained", "as-is"),
    "its calls allocate memory as usual, and ours use memory that is already mapped",
)
_launch_of_events = partial(
    _up_to,
    *("launch", "events, not queued", "the GPU waits for launches between its events"),
)
_graph = partial(_up_to, *("gaps", "graph", "it counts the gaps between a graph's nodes"))


def _gaps(evidence: Evidence, so_far: float) -> Part | None:  # noqa: ARG001
    seconds = evidence.work.span - evidence.work.seconds
    return Part("gaps", seconds, "it counts the gaps between kernels") if seconds else None


def _event_cost(evidence: Evidence, so_far: float) -> Part | None:  # noqa: ARG001
    cost, sentence = evidence.event_cost, "it includes the overhead of an event pair"
    return Part("event cost", cost, sentence) if cost else None


def _launch_of_loop(evidence: Evidence, so_far: float) -> Part | None:
    seconds = evidence.calls.loop.median - so_far
    if not evidence.on_gpu:
        return Part("cache", seconds, _LOOP_ON_CPU)
    return Part("launch", seconds, "the GPU waits for launches in its loop")


def _waiting(evidence: Evidence, so_far: float) -> Part | None:  # noqa: ARG001
    seconds = evidence.calls.waiting.median - evidence.calls.loop.median
    return Part("waiting", seconds, "it waits for the GPU after each call")


def _loop_of_one_thread(evidence: Evidence, so_far: float) -> Part | None:
    seconds = evidence.seconds("one thread", "in a loop") or evidence.calls.loop.median
    return Part("cache", seconds - so_far, _LOOP_ON_CPU)


def _mean(evidence: Evidence, so_far: float) -> Part | None:  # noqa: ARG001
    seconds = evidence.work.mean - evidence.work.seconds
    return Part("statistics", seconds, "it reports the mean, and we the median")


def _fewest(evidence: Evidence, so_far: float) -> Part | None:  # noqa: ARG001
    seconds = evidence.work.fewest - evidence.work.seconds
    return Part("statistics", seconds, "it reports the fastest sample, and we the median")


#: Timing methods of other tools, each as the steps from our method to theirs.
WAYS: Final[dict[str, tuple[_Step, ...]]] = {
    "kernel times of a profiler, cold": (_placement,),
    "kernel times of a profiler, warm": (_cache, _placement),
    "the fastest of a profiler's kernel times, warm": (_cache, _placement, _fewest),
    "ncu": (_flush, _placement),
    "triton do_bench": (_placement, _gaps, _event_cost, _mean),
    "triton do_bench_cudagraph": (_cache, _placement, _graph, _mean),
    "nvbench": (_placement, _gaps, _event_cost, _mean),
    "torch Timer": (_cache, _placement, _gaps, _launch_of_loop),
    "events around each call": (_cache, _placement, _gaps, _event_cost, _launch_of_events),
    "a clock around each call and its wait": (
        _cache,
        _placement,
        _gaps,
        _launch_of_loop,
        _waiting,
    ),
}
_ON_CPU: Final[dict[str, tuple[_Step, ...]]] = {
    "torch Timer": (_threads, _pages, _loop_of_one_thread),
    "a clock around each call, cold": (),
    "a clock around a loop": (_launch_of_loop,),
    "the mean of a clock around each call": (_mean,),
    "the fastest of a clock around each call": (_fewest,),
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
    evidence: Evidence, other: Other, tool: str, steps: Sequence[_Step]
) -> Iterator[Difference]:
    for clock in ((), (_clock,)):
        ours = so_far = evidence.work.seconds
        parts = []
        for step in (*clock, *steps):
            part = step(evidence, so_far)
            if part is not None:
                parts.append(part)
                so_far += part.seconds
        yield Difference(
            tool=tool,
            assumed=False,
            theirs=other.seconds,
            ours=ours,
            parts=tuple(parts),
            unexplained=other.seconds - so_far,
        )
