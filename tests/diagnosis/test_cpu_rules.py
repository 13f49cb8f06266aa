"""The rules of a diagnosis on a CPU: on evidence by hand, and on what was recorded."""

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from convtime.core import codec
from convtime.diagnosis import cpu_rules
from convtime.diagnosis.advice import advise
from convtime.diagnosis.effects import LEAST_EFFECT_ON_CPU, LIKELY, POSSIBLE, SURE
from convtime.diagnosis.evidence import Evidence, Host, Operators, Waits
from convtime.diagnosis.rules import judge
from tests.helpers import RESULTS
from tests.helpers.clean_evidence import CALLS, US, WORK, but, times, timing


def codes(evidence: Evidence) -> list[str]:
    return [cause.code for cause in judge(evidence)]


def waits(looks: int = 1000, **counts: int) -> Waits:
    """Of a thread that was ready at all other looks."""
    return Waits(seconds=100 * US, looks=looks, ready=looks - sum(counts.values()), **counts)


HOST = Host(
    seconds=100 * US, cpu=100 * US, kernel=1 * US, cores=2.0, waiting=0.0, longest_wait=0.0,
    threads=1.0, others=0.02, background=0.01, throttled=0.0, stolen=0.0, fault_seconds=0.5 * US,
    waits=waits(), rested_hz=3.0e9, loaded_hz=2.9e9,
)  # fmt: skip
# A call takes 101 µs in a loop.
ON_CPU = but(
    Evidence(on_gpu=False, calls=CALLS, work=WORK, host=HOST),
    calls={"running": 1.0},
    work={"held": None, "highest_clock_hz": None, "kernels": 0},
    operators=Operators(
        count=2.0,
        outermost=1.0,
        seconds=98 * US,
        dispatching=1 * US,
        loop=100 * US,
        smallest=0.5 * US,
    ),
)
AWAY = {"placement": {"as-is": timing(150), "moved": timing(100)}}
PAGES = {"pages": {"as-is": timing(100), "retained": timing(40)}}
CROWD: dict[str, Any] = {"cpu": 200 * US, "waiting": 400 * US, "longest_wait": 60 * US}
QUEUED: dict[str, Any] = {"waiting": 40 * US, "longest_wait": 40 * US}
FAULTS: dict[str, Any] = {"minor_faults": 120.0, "kernel": 70 * US}
ELSEWHERE = {"process": {"here": timing(100), "in a fresh process": timing(130)}}
FLUSHED = {"denormals": {"as-is": timing(100), "flushed": timing(30)}}


def host(contrasts: dict[str, Any] | None = None, **changes: Any) -> Evidence:
    return but(ON_CPU, contrasts, host=changes)


@pytest.mark.parametrize(
    ("code", "seen", "effect", "confidence"),
    [
        ("contention", host(others=1.0, **QUEUED), 0.4, SURE),
        ("quota", host(throttled=50 * US), 0.5, SURE),
        ("blocking", host(waits=waits(sleeping=400)), 40 / 101, SURE),
        ("blocking", host(waits=waits(files=300, pages=100)), 40 / 101, SURE),
        ("blocking", host(waits=waits(100, locks=30)), 30 / 101, LIKELY),
        ("blocking", host(waits=waits(processes=300)), 30 / 101, SURE),
        ("blocking", but(ON_CPU, host=None, calls={"running": 0.1}), 0.9, LIKELY),
        ("threads", host({"threads": {"as-is": timing(100), "1 thread": timing(40)}}), 60 / 101,
         SURE),
        ("threads", host(background=1.0, longest_wait=45 * US), 0.45, SURE),
        ("threads", host(background=1.0, waits=waits(other_threads=500)), 0.5, SURE),
        ("threads", host(**CROWD), 0.6, LIKELY),
        ("page-faults", host(PAGES, **FAULTS), 0.6, SURE),
        ("page-faults", host(**FAULTS), 0.6, LIKELY),
        ("allocation", host(PAGES), 60 / 101, SURE),
        ("python-overhead", but(ON_CPU, operators={"seconds": 50 * US}), 50.995 / 101, SURE),
        ("python-overhead", but(ON_CPU, operators={"dispatching": 50 * US}), 51.9998 / 101, SURE),
        ("denormals", host(FLUSHED), 70 / 101, SURE),
        ("numa", host(AWAY, remote_share=0.9), 1 / 3, SURE),
        ("placement", host(AWAY, remote_share=0.1), 1 / 3, SURE),
        ("clock", host(loaded_hz=2.1e9), 0.3, POSSIBLE),
        ("cache", host({"cache": times(cold=200, warm=100)}), 0.5, SURE),
        ("data", but(ON_CPU, {"data": times(as_given=900, random=100)}, work={
            "remarkable_inputs": 1}), 8 / 9, SURE),
        ("process", host(ELSEWHERE), 30 / 130, LIKELY),
    ],
)  # fmt: skip
def test_what_is_planted_comes_first(
    code: str, seen: Evidence, effect: float, confidence: float
) -> None:
    assert codes(ON_CPU) == []
    first, *_ = judge(seen)
    assert first.code == code
    assert (first.effect, first.confidence) == pytest.approx((effect, confidence))
    assert first.effect >= LEAST_EFFECT_ON_CPU[first.code]
    assert advise(first, seen)


@given(
    others=st.floats(0, 4),
    cpu=st.floats(0, 400),
    waiting=st.floats(0, 400),
    cores=st.sampled_from([1.0, 2.0, 4.0]),
)
@settings(max_examples=50)
def test_waits_are_those_of_others_only_as_far_as_own_threads_find_cores(
    others: float, cpu: float, waiting: float, cores: float
) -> None:
    seen = host(others=others, cpu=cpu * US, waiting=waiting * US, cores=cores).host
    assert seen is not None
    own = max(0, (cpu + waiting) / 100 - cores)
    expected = 0 if others < 0.2 else others / (others + own)
    assert cpu_rules.of_others(seen) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (host(others=0.19, **QUEUED), []),
        (host(background=0.19, waits=waits(other_threads=500)), []),
        (host(background=0.2, waits=waits(other_threads=500)), ["threads"]),
        (host(**CROWD, cores=5.4), ["threads"]),
        (host(**CROWD, cores=5.6), []),
        (host(minor_faults=3.0, fault_seconds=9 * US, kernel=70 * US), []),
        (host(minor_faults=4.0, fault_seconds=9 * US, kernel=70 * US), ["page-faults"]),
        (host(PAGES, minor_faults=30.0, kernel=70 * US), ["allocation"]),  # a quarter of it
        (host(PAGES, minor_faults=50.0, kernel=70 * US), ["page-faults"]),
        (but(ON_CPU, host=None, calls={"running": 0.55}), []),
        (but(ON_CPU, host=None, calls={"running": 0.45}), ["blocking"]),
        (host(AWAY, remote_share=0.49), ["placement"]),
        (host(AWAY, remote_share=0.5), ["numa", "placement"]),
        (host(loaded_hz=2.71e9), []),
        (host(loaded_hz=2.69e9), ["clock"]),
        # The calling thread waits while others compute for it.
        (host(waits=waits(other_threads=500)), []),
        # A cold cache comes after what takes as much.
        (host({"cache": times(cold=200, warm=100)}, waits=waits(sleeping=300)),
         ["blocking", "cache"]),
        # Timings of the same process beside the fresh one are part of what it takes.
        (host(ELSEWHERE | {"threads": {"as-is": timing(135)}}), []),
    ],
)  # fmt: skip
def test_what_is_a_cause_and_what_is_none(seen: Evidence, expected: list[str]) -> None:
    assert codes(seen) == expected


@pytest.mark.parametrize(("background", "told"), [(0.0, False), (0.19, False), (0.2, True)])
def test_other_threads_work_is_advised_against_where_there_is_some(
    background: float, told: bool
) -> None:
    seen = host(**CROWD, background=background)
    texts = [each.text for each in advise(judge(seen)[0], seen)]
    assert [text.startswith("stop the work of this process's other") for text in texts] == (
        [True, False] if told else [False]
    )
    assert texts[-1].endswith("torch.set_num_threads(2)")


def test_what_a_call_waits_for_is_named() -> None:
    kinds = ("sleeping", "files", "pages", "processes", "locks")
    words = ("sleeps", "a file", "disk", "another process", "a lock")
    for kind, word in zip(kinds, words, strict=True):
        (cause,) = judge(host(waits=waits(**{kind: 500})))
        assert word in cause.sentence


def test_under_a_quota_all_else_is_less_sure() -> None:
    cached = {"cache": times(cold=200, warm=100)}
    first, second = judge(host(cached, throttled=50 * US))
    assert (first.code, second.code) == ("quota", "cache")
    assert second.confidence == pytest.approx(0.6 * SURE)


RECORDED = {
    row["key"]: row
    for row in json.loads((RESULTS / "cpu.json").read_text("utf-8"))["rows"]
    if "cause" in row
}


def test_what_was_planted_on_a_cpu_is_found_in_what_was_recorded_there() -> None:
    assert len(RECORDED) > 5
    for key, row in RECORDED.items():
        found = codes(codec.decode(Evidence, row["evidence"]))
        assert found == [cause["code"] for cause in row["causes"]], key
        assert found[:1] == ([] if row["cause"] == "nothing" else [row["cause"]]), key
