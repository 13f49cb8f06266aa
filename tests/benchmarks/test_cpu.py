"""The benchmark of calls on the CPU: its summary, its operations and its load."""

from __future__ import annotations

import itertools
import math
import operator
import os
import time
from pathlib import Path
from typing import Any

import cpu
import pytest
import results
from cpu_parts import causes, fresh, load, measure, truth
from cpu_parts.truth import Interval

from convtime.diagnosis.weighing import LEAST_EFFECT_ON_CPU
from tests.helpers.waiting import wait_until

LOAD = [0.1, 0.2]


def pair(verdict: str, *, planted: bool = False, loaded: bool = False) -> dict[str, Any]:
    return {
        "planted": planted,
        "load": LOAD if loaded else [],
        "verdict": verdict,
        "ratio": 1.05 if planted else 1.0,
    }


def timed(
    low: float | None, high: float | None, disturbance: str = "", *, loaded: bool = True
) -> dict[str, Any]:
    return {
        "load": LOAD if loaded else [],
        "interval": [low, high],
        "median": 1.0,
        "disturbance": disturbance,
        "true_seconds_interval": [0.99, 1.01],
    }


def row(*entries: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """An operation that takes 1 s, give or take 0.01 s."""
    return {
        "key": "elementwise/1/7/0",
        "family": "elementwise",
        "threads": 1,
        "pairs": [entry for entry in entries if "verdict" in entry],
        "timed": [entry for entry in entries if "verdict" not in entry],
        "true_seconds": 1.0,
        "took": {},
    } | fields


@pytest.mark.parametrize(
    ("name", "rows", "value"),
    [
        ("aa_pairs", [row(pair("same"), pair("same", loaded=True)), row(pair("same"))], 3),
        ("aa_pairs", [row(pair("slower", planted=True))], 0),
        (
            "aa_false_verdicts",
            [row(pair("same"), pair("faster"), pair("slower", loaded=True), pair("uncertain"))],
            0.5,
        ),
        ("aa_false_verdicts", [row(pair("same"), pair("slower", planted=True))], 0),
        (
            "covered_or_marked",
            [row(timed(0.98, 1.0), timed(1.3, 1.4), timed(0.5, 0.6, "why"))],
            2 / 3,
        ),
        ("covered_or_marked", [row(timed(1.3, 1.4, loaded=False), timed(0.9, 1.1))], 1),
        (
            "found_5pct_quiet",
            [row(*(pair(verdict, planted=True) for verdict in ("slower", "same", "uncertain")))],
            1 / 3,
        ),
        (
            "found_5pct_quiet",
            [row(pair("slower", planted=True), pair("same", planted=True, loaded=True))],
            1,
        ),
        (
            "found_5pct_loaded",
            [row(pair("slower", planted=True), pair("same", planted=True, loaded=True))],
            0,
        ),
        (
            "opposite_verdicts",
            [row(pair("faster"), pair("faster", planted=True), pair("slower", planted=True))],
            1,
        ),
    ],
)
def test_each_value_of_the_summary(name: str, rows: list[dict[str, Any]], value: float) -> None:
    assert cpu.summarise(rows)[name] == pytest.approx(value)


def diagnosed(cause: str, *named: str) -> dict[str, Any]:
    causes = [{"code": code, "effect": 0.5, "confidence": 0.9} for code in named]
    first = named[0] if named else "nothing"
    return {
        "key": f"{cause}: {first}",
        "cause": cause,
        "first": first,
        "causes": causes,
        "drawn": {"MiB": 5},
        "seconds": 7.0,
    }


def test_causes_count_if_they_are_named_first_and_controls_if_nothing_is() -> None:
    rows = [
        diagnosed("blocking", "blocking", "cache"),
        diagnosed("threads", "cache", "threads"),
        diagnosed("nothing"),
        diagnosed("nothing", "cache"),
    ]
    summary = cpu.summarise(rows)
    assert summary["causes_planted"] == 2
    assert summary["causes_named_first"] == 0.5
    assert summary["controls_clean"] == 0.5
    assert "aa_false_verdicts" not in summary


def test_as_many_causes_are_planted_as_the_goals_ask_for() -> None:
    goals = results.load_goals()["cpu"]
    assert results.meets(len(causes.CAUSES), goals["causes_planted"])
    assert len(causes.CONTROLS) >= 6
    planted = {plant.cause for plant in causes.CAUSES.values()}
    assert planted <= set(LEAST_EFFECT_ON_CPU)
    # No machine here has several nodes, or a clock that can be lowered.
    unplanted = {"numa", "clock", "placement", "data", "process", "allocation"}
    assert planted | unplanted == set(LEAST_EFFECT_ON_CPU)


def test_the_summary_has_the_names_of_the_goals() -> None:
    goals = results.load_goals()["cpu"]
    entries = [
        pair("slower" if planted else "same", planted=planted, loaded=loaded)
        for planted in (False, True)
        for loaded in (False, True)
    ]
    rows = [row(*entries, timed(0.9, 1.1))] * 100
    rows += [diagnosed("blocking", "blocking")] * 14 + [diagnosed("nothing")] * 6
    measured = set(cpu.summarise(rows))
    assert measured <= set(goals)
    judged = results.make_summary(rows, cpu.summarise, goals)
    assert all(entry["met"] for entry in judged if entry["name"] in measured)
    nothing = results.make_summary([], cpu.summarise, goals)
    assert not any(entry["met"] for entry in nothing)


@pytest.mark.parametrize(
    ("low", "high", "covers"),
    [
        (0.99, 1.01, True),
        (1.005, 1.1, True),  # by the true time's own interval
        (0.9, 0.995, True),
        (1.02, 1.1, False),
        (0.9, 0.98, False),
        (None, 1.1, True),
        (None, 0.9, False),
        (1.2, None, False),
        (None, None, True),
    ],
)
def test_intervals_that_cover_the_true_time(
    low: float | None, high: float | None, covers: bool
) -> None:
    assert cpu.covers(timed(low, high)) == covers


FLOOR, PER_ROW = 2e-6, 30e-9


@pytest.mark.parametrize(
    ("ratio", "kept"), [(1.041, True), (1.059, True), (1.039, False), (1.061, False)]
)
def test_pairs_of_another_ratio_are_drawn_again(ratio: float, kept: bool) -> None:
    assert bool(measure.ratio_refusal(ratio)) != kept


@pytest.mark.parametrize(
    ("seconds", "kept"), [(5.1e-6, True), (49e-3, True), (4.9e-6, False), (51e-3, False)]
)
def test_calls_of_another_duration_are_drawn_again(seconds: float, kept: bool) -> None:
    known = Interval(seconds, 0.98 * seconds, 1.02 * seconds)
    assert bool(measure.duration_refusal(known)) != kept


def test_true_times_that_are_not_known_well_are_drawn_again() -> None:
    quiet, wide = Interval(1.0, 0.98, 1.02), Interval(1.0, 0.98, 1.04)
    assert measure.unrest(quiet, quiet) == ""
    assert "6.0% wide" in measure.unrest(quiet, wide)
    assert "6.0% wide" in measure.unrest(wide, quiet)
    assert "-6.0%" in measure.unrest(quiet, Interval(0.94, 0.93, 0.95))
    assert "not quiet" in measure.duration_refusal(Interval(1e-3, 0.97e-3, 1.03e-3))


def test_intervals_of_medians_are_those_of_the_sign_test() -> None:
    assert truth.median_interval(range(1, 12)) == (6, 2, 10)  # 1 - 2 * 12 / 2048 = 98.8 %
    assert truth.median_interval(range(1, 6)) == (3, 1, 5)  # too few
    assert truth.median_interval([2.0]) == (2, 2, 2)


def test_intervals_of_true_times_are_as_wide_as_the_drift() -> None:
    steps = [1 + 0.01 * (index // 1000) for index in range(15_000)]
    median, low, high = truth.over_blocks(steps)
    assert median == pytest.approx(1.07)
    assert low < 1.05
    assert high > 1.09
    assert truth.over_blocks([1.0, 3.0, 2.0]) == (2, 1, 3)


def cpu_seconds_of(pid: int) -> float | None:
    """Seconds that a process has computed; None once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in "ZX":
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_load_computes_and_ends_with_its_block() -> None:
    with load.planted_load("7", 1e3, 1e-3) as pid:
        wait_until(lambda: (cpu_seconds_of(pid) or 0) >= 0.05, 5)
    assert cpu_seconds_of(pid) is None
    with pytest.raises(KeyError), load.planted_load("7", 1e-3, 1e3) as pid:
        raise KeyError
    assert cpu_seconds_of(pid) is None


def test_intervals_of_the_load_alternate_and_have_their_means() -> None:
    drawn = load.intervals("7", 0.1, 0.3)
    first = [next(drawn) for _ in range(4000)]
    again = load.intervals("7", 0.1, 0.3)
    assert first == [next(again) for _ in range(4000)]
    assert all(one[0] != other[0] for one, other in itertools.pairwise(first))
    for computing, mean in ((True, 0.1), (False, 0.3)):
        seconds = [each for state, each in first if state == computing]
        assert math.fsum(seconds) / len(seconds) == pytest.approx(mean, rel=0.1)


def test_functions_run_in_fresh_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "_PRELOADED", [])
    first, second = fresh.run_forked(os.getpid), fresh.run_forked(os.getpid)
    assert len({first, second, os.getpid()}) == 3
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        fresh.run_forked(operator.truediv, 1, 0)
    with pytest.raises(RuntimeError, match="ended with 3"):
        fresh.run_forked(os._exit, 3)
    with pytest.raises(RuntimeError, match="longer than 0.2 s"):
        fresh.run_forked(time.sleep, 60, timeout=0.2)
