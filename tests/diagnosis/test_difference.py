"""Other tools' numbers, split into parts: drawn evidence, and what each tool would give by it."""

import dataclasses
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from convtime.diagnosis.difference import WAYS, split
from tests.helpers.clean_evidence import CLEAN, US, but, timing

microseconds = st.floats(10, 500)
DRAWN = (
    *("cold", "clean", "warm", "here", "random", "burst", "sustained", "graph", "events"),
    *("span", "mean", "fewest", "loop", "waiting", "own", "one_thread", "retained", "fresh"),
)
evidences = st.fixed_dictionaries(dict.fromkeys(DRAWN, microseconds))


def evidence_of(of: dict[str, float], *, on_gpu: bool) -> Any:
    def times(**names: str) -> dict[str, Any]:
        return {condition: timing(of[name]) for condition, name in names.items()}

    return but(
        dataclasses.replace(CLEAN, on_gpu=on_gpu),
        contrasts={
            "cache": times(cold="cold", warm="warm") | {"cold-clean": timing(of["clean"])},
            "places": times(random="random") | {"as-is": timing(of["here"])},
            "regime": times(burst="burst", sustained="sustained"),
            "method": times(graph="graph") | {"events, not queued": timing(of["events"])},
            "threads": {"as-is": timing(of["own"]), "1 thread": timing(of["one_thread"])},
            "pages": times(retained="retained") | {"as-is": timing(of["fresh"])},
            "one thread": {"in a loop": timing(of["loop"])},
        },
        work={
            "seconds": of["own"] * US,
            "span": (of["own"] + of["span"]) * US,
            "mean": of["mean"] * US,
            "fewest": of["fewest"] * US,
        },
        calls={"loop": timing(of["loop"]), "waiting": timing(of["waiting"])},
        event_cost=2.6 * US,
    )


def predicted(of: dict[str, float]) -> dict[str, float]:
    """What each tool gives, in microseconds, if the clock is as ours."""
    placed = of["own"] + of["here"] - of["random"]
    warm = of["warm"] - of["cold"]
    return {
        "kernel times of a profiler, cold": placed,
        "kernel times of a profiler, warm": placed + warm,
        "the fastest of a profiler's kernel times, warm": placed + warm + of["fewest"] - of["own"],
        "ncu": placed + of["clean"] - of["cold"],
        "triton do_bench": placed + of["span"] + 2.6 + of["mean"] - of["own"],
        "nvbench": placed + of["span"] + 2.6 + of["mean"] - of["own"],
        "triton do_bench_cudagraph": of["graph"] + of["mean"] - of["own"],
        "torch Timer": of["loop"],
        "events around each call": of["events"],
        "a clock around each call and its wait": of["waiting"],
    }


ABSOLUTE = ("graph", "Timer", "events", "wait")  # part of the names of those that end at a time


@given(evidences, st.sampled_from([*WAYS]), st.floats(-0.1, 0.1), st.floats(-0.1, 0.1))
@settings(max_examples=100)
def test_of_a_known_tool_the_rest_is_unexplained(
    of: dict[str, float], tool: str, unknown: float, slowed: float
) -> None:
    theirs = 100 + abs(predicted(of)[tool]) * (1 + unknown)
    of["sustained"] = of["burst"] + slowed * theirs
    found = split(evidence_of(of, on_gpu=True), theirs * US, tool)
    rest = theirs - predicted(of)[tool]
    hot = rest if any(each in tool for each in ABSOLUTE) else rest - of["sustained"] + of["burst"]
    # The clock of a loaded GPU is a part if that explains more than a hundredth of the number.
    explained = abs(rest) - abs(hot) - 0.01 * theirs
    assume(abs(explained) > 1e-9)  # or rounding decides
    with_clock = found.parts[0].name == "clock"
    assert with_clock == (explained > 0)
    assert found.unexplained == pytest.approx((hot if with_clock else rest) * US, abs=1e-12)
    parts = sum(part.seconds for part in found.parts)
    assert found.ours + parts + found.unexplained == pytest.approx(theirs * US)
    assert (found.ours, found.tool, found.assumed) == (of["own"] * US, tool, False)
    assert "\n" not in str(found)


@given(evidences, st.none() | st.sampled_from(["torch Timer"]), microseconds)
def test_on_a_cpu_loops_differ_by_threads_memory_and_cache(
    of: dict[str, float], tool: str | None, theirs: float
) -> None:
    found = split(evidence_of(of, on_gpu=False), theirs * US, tool or "")
    ways = {
        "torch Timer": of["loop"],
        "a clock around each call, cold": of["own"],
        "a clock around a loop": of["loop"],
        "the mean of a clock around each call": of["mean"],
        "the fastest of a clock around each call": of["fewest"],
    }
    assert found.assumed == (tool is None)
    if not any(part.name == "clock" for part in found.parts):
        rest = theirs - ways[found.tool]
        assert found.unexplained == pytest.approx(rest * US, abs=1e-12)
    if tool is not None:
        assert [part.name for part in found.parts][-3:] == ["threads", "pages", "cache"]
        assert [part.seconds for part in found.parts][-3:-1] == pytest.approx(
            [(of["one_thread"] - of["own"]) * US, (of["fresh"] - of["retained"]) * US]
        )


SEEN = but(
    contrasts={
        "cache": {"cold": timing(100), "cold-clean": timing(95), "warm": timing(80)},
        "places": {"as-is": timing(84), "random": timing(82)},
        "method": {"graph": timing(90), "events, not queued": timing(140)},
    },
    work={"span": 103 * US, "mean": 101 * US, "fewest": 97 * US},
    calls={"loop": timing(130), "waiting": timing(150)},
    event_cost=2.6 * US,
)


def test_a_tool_that_is_not_known_is_taken_for_what_comes_closest() -> None:
    found = split(SEEN, 150.2 * US)
    assert found.assumed
    assert found.tool == "a clock around each call and its wait"
    assert str(found).endswith(", waiting +20.00 µs, unexplained +200.0 ns")
    # One of few parts is taken before one of many that comes a little closer, as do_bench here.
    near = but(SEEN, work={"span": 101 * US, "mean": 100.2 * US}, event_cost=0.5 * US)
    assert split(near, 103 * US).tool == "kernel times of a profiler, cold"


def test_of_what_was_not_looked_at_nothing_is_a_part() -> None:
    found = split(dataclasses.replace(CLEAN, contrasts={}), 99 * US, "ncu")
    assert found.parts == ()
    assert found.unexplained == pytest.approx(-US)
