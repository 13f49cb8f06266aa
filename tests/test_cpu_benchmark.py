"""The benchmark of calls on the CPU: its summary, its operations and its load."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import cpu  # noqa: E402
import results  # noqa: E402
from common.planting import Draw  # noqa: E402
from cpu_parts import causes, fresh, load, measure, operations, truth  # noqa: E402
from cpu_parts.truth import Interval  # noqa: E402

from convtime.diagnosis.weighing import LEAST_EFFECT_ON_CPU  # noqa: E402

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
    told = cpu.causes_table([*rows, row(pair("same"))])
    assert len(told.splitlines()) == 6
    assert "| blocking: blocking | MiB 5 | blocking | cache | 7.0 |" in told
    assert cpu.tell(rows[1]).startswith("MISSED threads: cache (0.50, 0.90), threads")


def test_as_many_causes_are_planted_as_the_goals_ask_for() -> None:
    goals = results.load_goals()["cpu"]
    assert results.meets(len(causes.CAUSES), goals["causes_planted"])
    assert len(causes.CONTROLS) >= 6
    planted = {plant.cause for plant in causes.CAUSES.values()}
    assert planted <= set(LEAST_EFFECT_ON_CPU)
    # No machine here has several nodes, or a clock that can be lowered.
    unplanted = {"numa", "clock", "placement", "data", "process", "allocation"}
    assert planted | unplanted == set(LEAST_EFFECT_ON_CPU)


@pytest.mark.parametrize("key", [*causes.CAUSES, *causes.CONTROLS])
def test_what_is_planted_can_be_called(key: str) -> None:
    if key == "quota: quota" and not causes.may_plant_quotas():
        pytest.skip("no cgroup can be made here")
    before = torch.get_num_threads(), os.sched_getaffinity(0)
    planted = {**causes.CAUSES, **causes.CONTROLS}[key].make(Draw("7", key))
    try:
        with planted.around():
            planted.fn(*planted.args)
    finally:
        torch.set_num_threads(before[0])
        os.sched_setaffinity(0, before[1])


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


def test_the_table_has_a_line_for_each_load() -> None:
    entries = [pair("slower"), pair("same", loaded=True), pair("slower", planted=True)]
    times = [timed(0.9, 1.1, loaded=False), timed(1.3, 1.4), timed(1.3, 1.4, "why")]
    told = cpu.table([row(*entries, *times)])
    assert (
        "| elementwise | 1 | no | 1 | 1000000 to 1000000 | 1 of 1 | 1 of 1 | 1 of 1 | 1 of 1 |"
        in told
    )
    assert (
        "| elementwise | 1 | yes | 1 | 1000000 to 1000000 | 0 of 1 | 0 of 0 | 0 of 2 | 1 of 2 |"
        in told
    )


def test_each_family_and_setting_has_its_share() -> None:
    cases = cpu.make_cases(7, 208)
    settings = [case.args[0] for case in cases.values()]  # type: ignore[attr-defined]
    assert len(cases) == 104
    for index, values in enumerate((cpu.FAMILIES, cpu.THREADS, cpu.PAGES)):
        counts = [sum(each[index] == value for each in settings) for value in values]
        assert sum(counts) == 104
        assert max(counts) - min(counts) <= 8
    assert set(cases) <= set(cpu.make_cases(7, 400))
    assert set(cases).isdisjoint(cpu.make_cases(8, 208))
    assert set(cpu.FAMILIES) == set(operations.FAMILIES)


def test_durations_are_drawn_over_four_decades() -> None:
    chance = random.Random(7)
    drawn = [operations.draw_seconds(chance) for _ in range(2000)]
    assert min(drawn) >= 5e-6
    assert max(drawn) <= 50e-3
    for decade in (1e-5, 1e-4, 1e-3):
        share = sum(decade <= seconds < 10 * decade for seconds in drawn) / len(drawn)
        assert share == pytest.approx(0.25, abs=0.05)


FLOOR, PER_ROW = 2e-6, 30e-9


def modelled(call: Any) -> float:
    """The time of a call as a function of its rows alone."""
    if call.func is operations.repeat:
        piece, count = call.args
        return count * (modelled(piece) if hasattr(piece, "func") else 1e-6)
    return FLOOR + PER_ROW * len(call.args[0])


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "quick_seconds", modelled)
    monkeypatch.setattr(
        operations, "interleaved", lambda calls, *_: [[modelled(call)] * 3 for call in calls]
    )


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("family", operations.FAMILIES)
@pytest.mark.parametrize("seconds", [5e-5, 1e-4, 2e-3])
def test_longer_operations_take_5_percent_more(family: str, seconds: float) -> None:
    made = operations.make_pair(family, random.Random(3), seconds)
    call, copy, longer = map(modelled, made[:3])
    assert call == copy == pytest.approx(seconds, rel=0.25)
    assert longer / call == pytest.approx(1.05, abs=0.005)


@pytest.mark.usefixtures("model")
def test_durations_that_an_operation_cannot_have_are_refused() -> None:
    with pytest.raises(ValueError, match="single row"):
        operations.make_pair("conv", random.Random(3), 3e-6)
    with pytest.raises(ValueError, match="whole number"):
        operations.make_pair("loop", random.Random(3), 2e-5)
    with pytest.raises(ValueError, match="no number of rows"):
        operations.fit_rows(lambda _rows: functools.partial(len, [1]), 1e-3)


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("family", operations.FAMILIES)
def test_copies_do_the_same_work_on_tensors_of_their_own(family: str) -> None:
    call, copy, longer, _ = operations.make_pair(family, random.Random(3), 1e-4)
    tensors = [_tensors(each) for each in (call, copy, longer)]
    for one, other, _ in zip(*tensors, strict=True):
        assert torch.equal(one, other)
    addresses = [each.data_ptr() for group in tensors for each in group]
    assert len(set(addresses)) == len(addresses)


def _tensors(call: Any) -> list[torch.Tensor]:
    if call.func is operations.repeat:
        return _tensors(call.args[0])
    return [value for value in call.args if isinstance(value, torch.Tensor)]


def test_pieces_are_repeated() -> None:
    counted = iter(range(100))
    assert operations.repeat(lambda: next(counted), 20) == 19


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


def test_pairs_are_drawn_until_one_is_as_required(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter(["too short", "ratio", "good"])
    ratios = {"ratio": 1.1, "good": 1.05, "copy": 1.0}

    def make_pair(family: str, _chance: object, _seconds: float) -> operations.Pair:
        what = next(made)
        if what == "too short":
            raise ValueError(what)
        return operations.Pair(lambda: None, lambda: "copy", lambda: what, what)

    monkeypatch.setattr(measure, "make_pair", make_pair)
    monkeypatch.setattr(
        measure, "true_ratio", lambda over, _under: Interval(ratios[over()], 1.0, 1.1)
    )
    monkeypatch.setattr(measure, "true_seconds", lambda _call: Interval(1e-3, 1e-3, 1e-3))
    refused: list[str] = []
    settings = measure.Settings("norm", 1, "fresh")
    known = measure._draw(settings, random.Random(7), refused)
    assert known.pair.what == "good"
    assert (known.ratio.median, known.copy_ratio.median) == (1.05, 1.0)
    assert [why.partition(":")[0] for why in refused] == ["norm", "ratio"]
    monkeypatch.setattr(measure, "make_pair", lambda *_: known.pair)
    monkeypatch.setattr(measure, "ratio_refusal", lambda _ratio: "no")
    with pytest.raises(ValueError, match="as required"):
        measure._draw(settings, random.Random(7), [])


def test_a_time_is_taken_again_while_the_true_time_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moves = [Interval(1.0, 0.99, 1.01), Interval(1.06, 1.05, 1.07)]
    trues = iter([*moves, Interval(1.0, 0.99, 1.01), Interval(1.04, 1.03, 1.05)])
    monkeypatch.setattr(measure, "true_seconds", lambda _call: next(trues))
    monkeypatch.setattr(measure, "timed_alone", lambda *_: {"median": 1.0})
    chance = random.Random(7)
    found = measure._timed_between_truths(lambda: None, "fresh", chance, False, {})
    assert found["true_seconds_interval"] == [0.99, 1.05]
    assert len(found["refused"]) == 1
    assert "not quiet" in found["refused"][0]
    trues = iter(moves * 100)
    with pytest.raises(measure.NotQuietError, match="none of 6 timings counts"):
        measure._timed_between_truths(lambda: None, "fresh", chance, False, {})
    pair = operations.Pair(lambda: None, lambda: None, lambda: None, "relu")
    known = measure.Known(pair, *[Interval(1.0, 1.0, 1.0)] * 3)
    monkeypatch.setattr(measure, "_draw", lambda *_: known)
    monkeypatch.setattr(measure, "compared", lambda *_: {"verdict": "same", "ratio": 1.0})
    settings = measure.Settings("elementwise", 0, "fresh")
    trues = iter(moves * 100)
    with pytest.raises(ValueError, match="none of 4 draws was measured, the last: relu: none of 6"):
        measure.operation_row(settings, "7")


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


def test_times_of_sleeping_calls() -> None:
    short, long = truth.interleaved([lambda: time.sleep(1e-3), lambda: time.sleep(3e-3)], 0.0, 3)
    assert len(short) == len(long) == 3
    assert min(short) >= 1e-3
    assert min(long) >= 3e-3


def cpu_seconds_of(pid: int) -> float | None:
    """Seconds that a process has computed; None once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in "ZX":
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until(condition: Any) -> bool:
    deadline = time.monotonic() + 5
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(met)


def test_the_load_computes_and_ends_with_its_block() -> None:
    with load.planted_load("7", 1e3, 1e-3) as pid:
        assert wait_until(lambda: (cpu_seconds_of(pid) or 0) >= 0.05)
    assert cpu_seconds_of(pid) is None
    with pytest.raises(KeyError), load.planted_load("7", 1e-3, 1e3) as pid:
        raise KeyError
    assert cpu_seconds_of(pid) is None


LOADED = """
import sys
sys.path.insert(0, sys.argv[1])
from cpu_parts import fresh
from cpu_parts.load import planted_load

def wait():
    with planted_load("7", 1e3, 1e-3) as pid:
        print(pid, flush=True)
        while True:
            pass

if __name__ == "__main__":
    fresh._PRELOADED = []
    wait() if sys.argv[2] == "itself" else fresh.run_forked(wait)
"""


@pytest.mark.parametrize("where", ["itself", "forked"])
def test_the_load_ends_when_the_benchmark_is_killed(where: str, tmp_path: Path) -> None:
    script = tmp_path / "loaded.py"
    script.write_text(LOADED)
    parent = subprocess.Popen(
        [sys.executable, script, str(BENCHMARKS), where], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert cpu_seconds_of(pid) is not None
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until(lambda: cpu_seconds_of(pid) is None)
    parent.stdout.read()  # ends when all processes have
    parent.stdout.close()


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
