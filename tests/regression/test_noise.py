"""The noise of tests, baselines of several runs, common changes and causes, by simulation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from convtime.regression.attribution import attribute
from convtime.regression.baseline import Baseline
from convtime.regression.compare_runs import compare_runs
from convtime.regression.noise import FALSE_ALARMS, POWER, Repeats, margin_of, outlying
from convtime.timing.activity import DeviceActivity
from convtime.timing.host_reading import HostReading
from convtime.timing.measurement import Measurement
from convtime.timing.verdict import Ratio
from tests.regression.test_compare_runs import PROVENANCE, of, shared_cpu


@pytest.mark.parametrize("processes", [5, 10, 20])
def test_a_margin_is_found_as_often_as_it_says_and_nothing_else_is(processes: int) -> None:
    """By a simulation that shares only the definition of the test with the formula."""
    rng = np.random.default_rng(processes)
    count, spread = 200_000, 0.01
    calibrated = spread * rng.standard_normal((count, processes))
    means, found_spreads = calibrated.mean(1), calibrated.std(1, ddof=1)
    t = {5: 8.610, 10: 4.781, 20: 3.883}[processes]  # 1 - 0.0005, from tables
    threshold = t * found_spreads * math.sqrt(1 + 1 / processes)
    equal = spread * rng.standard_normal(count) - means
    assert np.mean(np.abs(equal) > threshold) == pytest.approx(FALSE_ALARMS, rel=0.25)
    margins = np.array([margin_of(each, processes) for each in found_spreads[:20_000]])
    looks = (spread * rng.standard_normal((2, len(margins))) + np.log1p(margins)) - means[:20_000]
    confirmed = np.all(looks > threshold[:20_000], axis=0)
    assert POWER <= np.mean(confirmed) < 0.99


@pytest.mark.parametrize(
    ("medians", "found"),
    [
        ((1.0, 1.001, 1.3), (2,)),
        ((0.7, 1.0, 1.0), (0,)),
        ((1.0, 1.0, 1.02), ()),  # differs by too little to matter
        ((0.9, 1.0, 1.1), ()),  # all of them differ
        ((1.0, 1.3), ()),  # which one is wrong?
        ((1.0, 1.01, 0.99, 1.4, 1.5, 1.0, 1.01), (3, 4)),
    ],
)
def test_outlying_processes_are_recognized(
    medians: tuple[float, ...], found: tuple[int, ...]
) -> None:
    assert outlying(medians) == found
    repeats = Repeats(medians, (0.001,) * len(medians))
    assert len(repeats.kept) == len(medians) - len(found)
    center = math.exp(repeats.log_median)
    assert min(medians[each] for each in repeats.kept) <= center
    assert center <= max(medians[each] for each in repeats.kept)


def test_a_second_mode_is_part_of_the_noise() -> None:
    medians = (1.0, 1.001, 0.999, 1.0, 1.002, 0.998, 1.0, 1.05)
    one, two = (Repeats(each, (0.001,) * len(each)) for each in (medians, (*medians, 1.05)))
    once, twice = (each.calibrated(0.0).noise for each in (one, two))
    assert once is not None
    assert twice is not None
    assert once.processes == 7  # one that is outlying is an accident
    assert once.spread < 0.002
    assert twice.processes == 9
    assert twice.spread == pytest.approx(0.021, abs=0.001)


def process(
    rng: np.random.Generator, median: float = 1e-5, spread: float = 0.004, **fields: Any
) -> Measurement:
    """A fresh process's measurement: its median is off by a share of its own."""
    own = median * (1 + spread * rng.standard_normal())
    return of(own * (1 + 0.005 * rng.standard_normal(200)), **fields)


def baseline(rng: np.random.Generator, runs: int = 10, spread: float = 0.004) -> Baseline:
    tests = {name: name for name in ("one", "two")}
    return Baseline.of(
        [{name: process(rng, spread=spread) for name in tests} for _ in range(runs)],
        tests,
        calibrated=True,
    )


def test_noise_within_and_between_processes_is_told_apart() -> None:
    rng = np.random.default_rng(1)
    found = baseline(rng, runs=60)
    for name in ("one", "two"):
        noise = found.repeats[name].noise
        assert noise is not None
        assert noise.processes == 60
        assert noise.between == pytest.approx(0.004, rel=0.3)
        # Of a median of 200 normal samples: 1.25 of the mean's; its interval is not narrower.
        assert noise.within == pytest.approx(1.25 * 0.005 / math.sqrt(200), rel=0.5)
    assert Baseline.from_dict(found.to_dict()).repeats == found.repeats
    assert "60" in found.details()
    assert Baseline.of([{"one": process(rng)}], {"one": "one"}, calibrated=True).repeats == {}


def test_samples_that_all_read_the_same_tick_are_not_free_of_noise() -> None:
    runs = [{"one": of([4.096e-6] * 50, clock_tick=32e-9)} for _ in range(10)]
    noise = Baseline.of(runs, {"one": "one"}, calibrated=True).repeats["one"].noise
    assert noise is not None
    assert noise.spread == pytest.approx(32e-9 / 4.096e-6 / math.sqrt(12))


def test_each_calibrated_test_has_its_own_margin() -> None:
    rng = np.random.default_rng(2)
    quiet, noisy = baseline(rng, spread=0.001), baseline(rng, spread=0.02)
    before = Baseline(
        {"quiet": quiet.measurements["one"], "noisy": noisy.measurements["one"]},
        {"quiet": quiet.repeats["one"], "noisy": noisy.repeats["one"]},
    )
    slower = {name: process(rng, 1.02e-5, 0.0) for name in ("quiet", "noisy")}
    changes = compare_runs(before, slower)
    assert changes["quiet"].verdict == "slower"
    assert changes["noisy"].verdict != "slower"
    margins = [changes[name].margin for name in ("quiet", "noisy")]
    assert margins[0] is not None
    assert margins[1] is not None
    assert margins[0] < 0.02 < margins[1]
    assert [name for name, found in changes.findings if found == "slower"] == ["quiet"]
    fixed = compare_runs(before, slower, margin=0.05)
    assert fixed["quiet"].margin == fixed["noisy"].margin == 0.05
    assert fixed["quiet"].verdict == "same"
    (sentence,) = before.too_noisy
    assert "noisy takes" in sentence


def test_an_unchanged_calibrated_test_is_the_same() -> None:
    rng = np.random.default_rng(3)
    verdicts = [
        change.verdict
        for _ in range(100)
        for change in compare_runs(
            baseline(rng), {"one": process(rng), "two": process(rng)}
        ).changes
    ]
    assert verdicts.count("same") >= 0.95 * len(verdicts)
    assert not {"slower", "faster"} & set(verdicts)


def test_a_disturbed_process_is_not_judged_by_the_noise_of_quiet_ones() -> None:
    rng = np.random.default_rng(4)
    quiet = baseline(rng, spread=0.001)
    disturbed = of(1.03e-5 * rng.lognormal(0, 0.3, 200))
    change = compare_runs(quiet, {"one": disturbed, "two": process(rng)})["one"]
    assert change.verdict == "uncertain"


def test_runs_under_load_do_not_make_later_ones_faster() -> None:
    rng = np.random.default_rng(5)
    runs = [{"one": process(rng, median)} for median in (1.4e-5, 1e-5, 1e-5)]
    several = Baseline.of(runs, {"one": "one"}, calibrated=False)
    assert compare_runs(several, {"one": process(rng)})["one"].verdict == "same"
    assert compare_runs(runs[0], {"one": process(rng)})["one"].verdict == "faster"
    assert "run 1 is outlying and does not count for one (1.4" in several.details()


def test_a_second_mode_is_named_and_counts_for_the_noise() -> None:
    def calibrated(*slow: int) -> Baseline:
        rng = np.random.default_rng(11)
        runs = [{"one": process(rng, 1.4e-5 if run in slow else 1e-5)} for run in range(10)]
        return Baseline.of(runs, {"one": "one"}, calibrated=True)

    single, several = calibrated(2), calibrated(2, 5, 7)
    assert "run 3 is outlying and does not count for one (1.4" in single.details()
    assert "second mode" not in single.details()
    assert "3 runs are a second mode of one, which counts for its noise" in several.details()
    assert "outlying" not in several.details()
    noise, with_mode = single.repeats["one"].noise, several.repeats["one"].noise
    assert noise is not None
    assert with_mode is not None
    assert (noise.processes, with_mode.processes) == (9, 10)
    assert noise.margin < 0.1 < with_mode.margin


def test_runs_that_are_outlying_only_relative_to_a_reference_are_named() -> None:
    def calibrated(*slow: int) -> Baseline:
        rng = np.random.default_rng(7)
        runs = [
            shared_cpu(rng, rng.lognormal(0, 0.2), 1.3 if run in slow else 1.0) for run in range(10)
        ]
        return Baseline.of(runs, {"baseline": "t", "call": "t"}, calibrated=True)

    (sentence,) = calibrated(3).outlying[4]
    assert sentence.startswith("call, relative (1.3")
    assert calibrated(3, 6, 8).second_modes == {"call, relative": 3}


def test_a_merged_baseline_keeps_tests_that_did_not_run() -> None:
    rng = np.random.default_rng(6)
    names = ("a", "a x", "b", "b y")
    old = Baseline({name: process(rng) for name in names})
    new = Baseline({"a": process(rng)})
    merged = new.merged(old, {"a"})
    assert merged.measurements == {
        "b": old.measurements["b"],
        "b y": old.measurements["b y"],
        "a": new.measurements["a"],
    }


def test_relative_to_a_reference_the_noise_of_a_shared_clock_does_not_count() -> None:
    rng = np.random.default_rng(7)
    tests = {"baseline": "t", "call": "t"}
    runs = [shared_cpu(rng, rng.lognormal(0, 0.06), 1.0) for _ in range(10)]
    before = Baseline.of(runs, tests, calibrated=True)
    by_time, ratio = before.repeats["call"].noise, before.relative["call"].noise
    assert by_time is not None
    assert ratio is not None
    assert ratio.margin < 0.03 < 0.2 < by_time.margin
    assert before.too_noisy == ()  # relative to the reference, and that is not judged
    slower = compare_runs(before, shared_cpu(rng, 1.1, 1.05), relative=True)
    assert slower["call"].verdict == "slower"
    assert slower["call"].margin == ratio.margin
    assert compare_runs(before, shared_cpu(rng, 1.1, 1.0), relative=True)["call"].verdict == "same"


def test_a_change_that_all_tests_have_in_common_is_one_finding() -> None:
    rng = np.random.default_rng(8)
    names = [f"test {number}" for number in range(10)]
    before = {name: process(rng, spread=0.001) for name in names}
    factors = dict.fromkeys(names, 1.08) | {"test 3": 1.5}
    after = {name: process(rng, 1e-5 * factors[name], 0.001) for name in names}
    changes = compare_runs(before, after)
    common = changes.common
    assert common is not None
    assert (len(common.names), common.verdict) == (9, "slower")
    assert common.ratio == pytest.approx(1.08, rel=0.01)
    rows = [line for line in changes.to_markdown("slower").splitlines() if "| slower" in line]
    assert len(rows) == 1
    assert "test 3" in rows[0]
    assert changes.to_markdown("slower").startswith("**failed: 9 of 10 tests are slower alike")
    assert changes.exit_code() == 1
    few = {name: after[name] if name < "test 3" else before[name] for name in names}
    assert compare_runs(before, few).common is None
    mixed = {name: after[name] if number % 2 else before[name] for number, name in enumerate(names)}
    assert compare_runs(before, mixed).common is None


CODE = {"git": {"commit": "b" * 40, "dirty": False}}


def kernels(*labels: str) -> tuple[DeviceActivity, ...]:
    shape = ((8, 1, 1), (128, 1, 1), 32, 0, 0)
    return tuple(DeviceActivity("kernel", label, *shape, (1e-5,) * 200) for label in labels)


def counted(instructions: float, cycles: float = 2e6) -> tuple[HostReading, ...]:
    return (HostReading(200, 1e-3, 1e-3, instructions=instructions, cycles=cycles),)


@pytest.mark.parametrize(
    ("before", "after", "provenance", "cause", "evidence"),
    [
        ({}, {}, CODE, "code", "commit: aaa"),
        ({}, {}, {"torch": "2.16"}, "code", "torch: 2.15.0 → 2.16"),
        ({"activities": kernels("a")}, {"activities": kernels("b")}, {}, "code", "a, grid 8×1×1"),
        ({"host": counted(1e6)}, {"host": counted(1.1e6)}, {}, "code", "1.1× the instructions"),
        ({}, {"queue": "none"}, CODE, "method", "queue: gate → none"),
        ({}, {}, CODE | {"convtime": "0.2"}, "method", "convtime: 0.1 → 0.2"),
        ({}, {}, CODE | {"gpu_uuid": "GPU-2"}, "code", "commit"),
        ({}, {}, CODE | {"driver": "590"}, "hardware or clocks", "driver: 580.1 → 590"),
        (
            {"sm_clocks_hz": (1.98e9,) * 200},
            {"sm_clocks_hz": (1.8e9,) * 200},
            CODE,
            "hardware or clocks",
            "1980 → 1800 MHz, explains 100%",
        ),
        (
            {"sm_clocks_hz": (1.98e9,) * 200},
            {"sm_clocks_hz": (1.95e9,) * 200},  # accounts for 1.5 of 10 %
            CODE,
            "code",
            "commit",
        ),
        (
            {"host": counted(1e6, 2.2e6)},
            {"host": counted(1e6, 2.0e6)},
            CODE,
            "hardware or clocks",
            "2200 → 2000 MHz",
        ),
        ({}, {}, {}, "noise", "the commit is the same"),
        ({}, {"disturbance": "was preempted"}, {}, "noise", "later run was preempted"),
        ({"host": counted(1e6)}, {"host": counted(1e6), "disturbance": "x"}, CODE, "noise", "x"),
        ({}, {"disturbance": "x"}, CODE, "code", "commit"),  # whether it computes more is unknown
        ({"disturbance": "x"}, {"disturbance": "x"}, {"git": None}, "code", "unknown"),
        ({}, {}, {"load_average": 9.0}, "noise", "load average: 1.0 → 9.0"),
    ],
)
def test_a_change_has_the_cause_that_the_evidence_points_to(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    provenance: dict[str, Any],
    cause: str,
    evidence: str,
) -> None:
    known = {**PROVENANCE, "convtime": "0.1"}
    pair = (
        of([1e-5] * 200, known, queue="gate", **before),
        of([1.1e-5] * 200, known | provenance, **{"queue": "gate"} | dict(after)),
    )
    found = attribute(*pair, Ratio(1.1, 1.09, 1.11))
    assert found.cause == cause
    assert evidence in found.evidence


def test_what_all_tests_have_in_common_points_to_the_machine() -> None:
    pair = (of([1e-5] * 20), of([1.1e-5] * 20, PROVENANCE | CODE))
    found = attribute(*pair, Ratio(1.1, 1.09, 1.11), others_alike="9 of 9 tests alike")
    assert (found.cause, found.evidence) == ("hardware or clocks", "9 of 9 tests alike")
    others = dataclasses.replace(pair[1], activities=kernels("new"))
    was = dataclasses.replace(pair[0], activities=kernels("old"))
    assert attribute(was, others, Ratio(1.1, 1.09, 1.11), others_alike="9 of 9").cause == "code"


def test_a_failure_comes_with_its_cause() -> None:
    rng = np.random.default_rng(9)
    before, after = {"a": process(rng)}, {"a": process(rng, 1.1e-5, provenance=PROVENANCE | CODE)}
    changes = compare_runs(before, after)
    assert changes["a"].attribution is not None
    assert "cause: code: commit: aaa" in changes.details()
    assert compare_runs(before, before)["a"].attribution is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"medians": (1.0, 2.0), "errors": (0.1,)}, "an error for each median, got 1 for 2"),
        ({"medians": (1.0, 0.0), "errors": (0.1, 0.1)}, "medians must be above 0"),
    ],
)
def test_repeats_that_cannot_be_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Repeats(**fields)
