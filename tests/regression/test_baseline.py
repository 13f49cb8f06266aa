import math

import numpy as np
import pytest

from convtime.regression.baseline import Baseline
from convtime.regression.compare_runs import compare_runs
from convtime.regression.noise import Noise
from tests.helpers.runs import of, process, shared_cpu


def noise_of(found: Baseline, name: str = "one") -> Noise:
    noise = found.repeats[name].noise
    assert noise is not None
    return noise


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
        noise = noise_of(found, name)
        assert noise.processes == 60
        assert noise.between == pytest.approx(0.004, rel=0.3)
        # Of a median of 200 normal samples: 1.25 of the mean's; its interval is not narrower.
        assert noise.within == pytest.approx(1.25 * 0.005 / math.sqrt(200), rel=0.5)
    assert Baseline.from_dict(found.to_dict()).repeats == found.repeats
    assert "60" in found.details()
    assert Baseline.of([{"one": process(rng)}], {"one": "one"}, calibrated=True).repeats == {}


def test_samples_that_all_read_the_same_tick_are_not_free_of_noise() -> None:
    runs = [{"one": of([4.096e-6] * 50, clock_tick=32e-9)} for _ in range(10)]
    noise = noise_of(Baseline.of(runs, {"one": "one"}, calibrated=True))
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
    margins = [changes[name].margin or 0.0 for name in ("quiet", "noisy")]
    assert margins[0] < 0.02 < margins[1]
    assert [name for name, found in changes.findings if found == "slower"] == ["quiet"]
    fixed = compare_runs(before, slower, margin=0.05)
    assert fixed["quiet"].margin == fixed["noisy"].margin == 0.05
    assert fixed["quiet"].verdict == "same"
    (sentence,) = before.too_noisy
    assert "noisy takes" in sentence


def test_a_change_by_its_margin_is_found_and_much_less_is_not() -> None:
    rng = np.random.default_rng(12)
    before = baseline(rng)
    margin = noise_of(before).margin
    for share, verdict, least, most in (
        (1.0, "slower", 0.7, 1.0),
        (0.2, "slower", 0.0, 0.1),
        (0.0, "same", 0.95, 1.0),
    ):
        after = [process(rng, 1e-5 * (1 + share * margin)) for _ in range(40)]
        found = [compare_runs(before, {"one": each})["one"].verdict == verdict for each in after]
        assert least <= sum(found) / len(found) <= most


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
    noise, with_mode = noise_of(single), noise_of(several)
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
    merged = new.with_others_of(old, {"a"}).measurements
    kept = {name: old.measurements[name] for name in ("b", "b y")}
    assert merged == {**kept, **new.measurements}
    assert old.only({"a", "none"}).measurements == {"a": old.measurements["a"]}


def test_relative_to_a_reference_the_noise_of_a_shared_clock_does_not_count() -> None:
    rng = np.random.default_rng(7)
    tests = {"baseline": "t", "call": "t"}
    runs = [shared_cpu(rng, rng.lognormal(0, 0.06), 1.0) for _ in range(10)]
    before = Baseline.of(runs, tests, calibrated=True)
    ratio = before.relative["call"].noise
    assert ratio is not None
    assert ratio.margin < 0.03 < 0.2 < noise_of(before, "call").margin
    assert before.too_noisy == ()  # relative to the reference, and that is not judged
    slower = compare_runs(before, shared_cpu(rng, 1.1, 1.05), relative=True)
    assert slower["call"].verdict == "slower"
    assert slower["call"].margin == ratio.margin
    assert compare_runs(before, shared_cpu(rng, 1.1, 1.0), relative=True)["call"].verdict == "same"


def test_all_times_of_a_test_are_of_its_most_typical_run() -> None:
    """The second run's two times are both nearest to the medians; a run can lack a test."""
    times = {"a x": (1.3e-5, 1.01e-5, 0.7e-5, 1e-5), "a y": (2e-3, 2.02e-3, 2e-3, 2.4e-3)}
    names = {"a x": "a", "a y": "a", "b": "b"}
    runs = [
        {name: of([seconds[run]] * 20) for name, seconds in times.items()}
        | ({"b": of([(3 + run) * 1e-5] * 20)} if run != 1 else {})
        for run in range(4)
    ]
    runs[0]["b"] = of([4.9e-5] * 20)
    found = Baseline.of(runs, names, calibrated=False)
    assert [found.measurements[name].seconds[0] for name in names] == [1.01e-5, 2.02e-3, 5e-5]
    medians = found.repeats["b"].medians
    assert medians == pytest.approx((4.9e-5, 5e-5, 6e-5))
    assert found.repeats["b"].noise is None
