"""What is said of two stored runs: of samples that were recorded on a GPU, and of written ones."""

import dataclasses
import math
import warnings
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convtime.regression.baseline import Baseline
from convtime.regression.changes import Changes
from convtime.regression.compare_runs import compare_runs
from convtime.regression.noise import Repeats
from convtime.timing.measurement import Measurement
from tests.helpers.measurements import changed as with_fields
from tests.helpers.runs import ON_CPU, PROVENANCE, counting, noisy, of, shared_cpu
from tests.helpers.traces import trace

UNCOMMITTED = "uncommitted changes"
# From process to process, as a share: what twelve fresh ones differed by on an H200.
BETWEEN_PROCESSES = 0.0026


def changed(after: Mapping[str, Any] = PROVENANCE, **fields: Any) -> Changes:
    """Equal times, of which the later ones have another provenance or field."""
    rng = np.random.default_rng(1)
    before, now = (with_fields(noisy(rng), sm_clocks_hz=(1.98e9,) * 200) for _ in range(2))
    return compare_runs({"one": before}, {"one": with_fields(now, provenance=after, **fields)})


def test_verdicts_are_those_of_planted_changes() -> None:
    rng = np.random.default_rng(0)
    factors = {"slow": 1.05, "fast": 0.95, "as it was": 1.0}
    before = {name: noisy(rng) for name in (*factors, "gone")}
    after = {name: noisy(rng, 1e-5 * factor) for name, factor in factors.items()}
    changes = compare_runs(before, after | {"added": noisy(rng)})
    names = ("slow", "fast", "as it was", "gone", "added")
    verdicts = [changes[name].verdict for name in names]
    assert verdicts == ["slower", "faster", "same", "missing", "new"]
    assert len(changes.changes) == len(names)
    for name, factor in factors.items():
        ratio = changes[name].ratio
        assert ratio is not None
        assert ratio.low <= factor <= ratio.high
        assert ratio.value == pytest.approx(after[name].median / before[name].median)
    assert changes["gone"].after is None
    assert changes["added"].before is None


def test_what_span_says_otherwise_is_told_and_can_fail_a_run() -> None:
    rng = np.random.default_rng(0)

    def busy_and_span(gaps: float) -> Measurement:
        samples = 1e-5 * (1 + 0.005 * rng.standard_normal(200))
        return of(samples, metric="busy", span_seconds=tuple(samples + gaps), busy_seconds=())

    before, after = busy_and_span(1e-6), busy_and_span(4e-6)
    changes = compare_runs({"one": before}, {"one": after})
    assert changes["one"].verdict == "same"
    assert "same in busy time, but slower in span" in changes["one"].sentence
    assert "slower in span" in changes.details()
    assert changes.exit_code("slower") == 0
    assert changes.exit_code("contradictory") == 1
    assert compare_runs({"one": before}, {"one": before}).exit_code("contradictory") == 0


@settings(max_examples=40)
@given(
    st.floats(0.9, 1.1), st.floats(0.001, 0.02), st.floats(0.0, 0.05), st.sampled_from([1e-4, 0.05])
)
def test_verdict_on_a_single_name_follows_from_its_interval_at_the_rate_of_discoveries(
    factor: float, spread: float, margin: float, rate: float
) -> None:
    assume(factor != 1)  # equal samples are the same at any margin
    samples = 1e-5 * (1 + spread * np.linspace(-1, 1, 60))
    before, after = {"one": of(samples)}, {"one": of(factor * samples)}
    change = compare_runs(before, after, margin=margin, false_discoveries=rate)["one"]
    ratio = change.ratio
    assert ratio is not None
    assert change.p_value is not None
    assert ratio.value == pytest.approx(factor)
    assert ratio.value**2 == pytest.approx(ratio.low * ratio.high, rel=1e-3)
    beyond = ratio.low > 1 + margin or ratio.high < 1 - margin
    assert (change.p_value < 0.05) == beyond  # the interval's confidence is 95 %
    within = 1 - margin <= ratio.low and ratio.high <= 1 + margin
    if change.p_value <= rate:
        assert change.verdict == ("slower" if factor > 1 else "faster")
    else:
        assert change.verdict == ("same" if within else "uncertain")
        assert (change.reason is None) == within


def test_more_instructions_are_found_apart_from_times() -> None:
    changes = compare_runs({"one": counting(1e6)}, {"one": counting(1.02e6)})
    change = changes["one"]
    assert change.verdict == "same"
    assert change.kinds == ("same", "more-instructions")
    assert change.instructions_ratio == pytest.approx(1.02)
    assert "2.00% more instructions" in change.sentence
    assert "not time" in change.sentence
    assert changes.exit_code() == 0
    assert changes.exit_code("more-instructions", uncertain=125) == 1
    assert "more instructions" in changes.details()
    assert "more instructions" in changes.to_markdown()
    assert changes.unjudged_instructions == ()
    for after, margin in ((1.009e6, 0.01), (0.9e6, 0.01), (1.02e6, 0.03)):
        changes = compare_runs(
            {"one": counting(1e6)}, {"one": counting(after)}, instructions_margin=margin
        )
        assert changes["one"].instructions_ratio == pytest.approx(after / 1e6)
        assert changes.exit_code("more-instructions", uncertain=125) == 0
        assert "instructions" not in changes.details()


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (counting(None, counters_reason="perf is not allowed"), "later run .*perf is not allowed"),
        (counting(None, host=()), "later run has no instruction counts"),
        (counting(2e6, threads=4), "several threads"),
        (counting(2e6, cache="warm"), "its cache: cold → warm"),
        (counting(None, device="cuda:0", method="kernel"), "on the CPU only"),
    ],
)
def test_why_instructions_are_not_judged_is_said_where_they_are_asked_for(
    after: Measurement, reason: str
) -> None:
    changes = compare_runs({"one": counting(1e6)}, {"one": after})
    with pytest.warns(UserWarning, match=f"not judged for one: .*{reason}"):
        assert changes.exit_code(("slower", "more-instructions"), uncertain=125) == 125
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert changes.exit_code("slower") == 0


@pytest.mark.parametrize(("factor", "verdict"), [(1.05, "slower"), (0.95, "faster"), (1.0, "same")])
def test_beside_a_baseline_the_clock_of_a_shared_cpu_drops_out(factor: float, verdict: str) -> None:
    rng = np.random.default_rng(4)
    before, after = shared_cpu(rng, 1.0, 1.0), shared_cpu(rng, 1.08, factor)
    changes = compare_runs(before, after, margin=0.02, relative=True)
    (change,) = changes.changes
    assert (change.name, change.verdict) == ("call", verdict)
    assert change.ratio is not None
    assert change.ratio.value == pytest.approx(factor, rel=0.003)
    assert change.before == pytest.approx(before["call"].median, rel=0.01)
    (drift,) = changes.differences
    assert drift.what == "baseline baseline"

    by_time = compare_runs(before, after, margin=0.02)
    assert {change.name for change in by_time.changes} == {"baseline", "call"}
    ratio = by_time["call"].ratio
    assert ratio is not None
    assert ratio.value == pytest.approx(1.08 * factor, rel=0.03)


@pytest.mark.parametrize(
    "wrong",
    [
        {"provenance": PROVENANCE},
        {"provenance": PROVENANCE | {"baseline": "gone"}},
        {"provenance": PROVENANCE | {"baseline": "call"}},
        {"provenance": PROVENANCE | {"baseline": ["baseline"]}},
        {"seconds": (2e-4,) * 50},
    ],
)
def test_what_has_no_baseline_is_judged_by_its_time(wrong: Mapping[str, Any]) -> None:
    rng = np.random.default_rng(5)
    before, after = shared_cpu(rng, 1.0, 1.0), shared_cpu(rng, 1.0, 1.0)
    after["call"] = dataclasses.replace(after["call"], **wrong)
    changes = compare_runs(before, after, relative=True)
    assert [change.name for change in changes.changes] == ["baseline", "call"]
    assert "baseline of call: baseline → unknown" in map(str, changes.differences)


@pytest.mark.parametrize(("speed", "told"), [(1.019, 0), (1.021, 1), (0.981, 0), (0.979, 1)])
def test_a_baseline_that_changed_beyond_the_margin_is_told(speed: float, told: int) -> None:
    def run(speed: float) -> dict[str, Measurement]:
        beside = PROVENANCE | {"baseline": "baseline"}
        return {
            "baseline": of([speed * 1e-4] * 20, **ON_CPU),
            "call": of([speed * 2e-4] * 20, beside, **ON_CPU),
        }

    changes = compare_runs(run(1.0), run(speed), relative=True, margin=0.02)
    assert changes["call"].verdict == "same"
    assert len(changes.differences) == told


def test_the_larger_of_both_spreads_between_processes_counts() -> None:
    """Of the mean of several processes, and of a single one."""
    rng = np.random.default_rng(12)
    one, medians = of(1e-5 * (1 + 1e-4 * rng.standard_normal(200))), (0.98e-5, 1e-5, 1.02e-5)
    several = Baseline({"one": one}, {"one": Repeats(medians, (0.001,) * 3)})
    spread = np.std(np.log(medians), ddof=1)
    for before, after in ((several, {"one": one}), ({"one": one}, several)):
        ratio = compare_runs(before, after)["one"].ratio
        assert ratio is not None
        half = math.log(ratio.high / ratio.low) / 2
        assert half == pytest.approx(1.96 * spread * math.sqrt(1 + 1 / 3), rel=0.02)


def test_a_run_compared_with_itself_reports_nothing() -> None:
    rng = np.random.default_rng(6)
    dirty = PROVENANCE | {"git": {"commit": "a" * 40, "dirty": True}}
    run = {"a": noisy(rng), "b": of(1e-5 * rng.lognormal(0, 0.5, 20))}  # b is too noisy to judge
    run = {name: dataclasses.replace(each, provenance=dirty) for name, each in run.items()}
    changes = compare_runs(run, run)
    assert changes.findings == (("a", "same"), ("b", "same"))
    assert len(changes.details().splitlines()) == 1
    counts, _, environment = changes.to_markdown().splitlines()
    assert counts.startswith("**2 compared: 2 same")
    assert environment.startswith("gpu ")


def test_a_baseline_of_no_duration_is_no_yardstick() -> None:
    rng = np.random.default_rng(6)
    before, after = shared_cpu(rng, 1.0, 1.0), shared_cpu(rng, 1.0, 1.0)
    after["baseline"] = dataclasses.replace(after["baseline"], seconds=(0.0,) * 200)
    changes = compare_runs(before, after, relative=True)
    assert changes["baseline"].reason == "no-time"
    assert changes["call"].ratio is not None


def in_batches(rng: np.random.Generator, median: float, batches: int, apart: float) -> Measurement:
    """Forty samples a batch, on a CPU; batches differ by a share of their own."""
    steps = np.repeat(np.arange(batches), 40)
    noise = apart * rng.standard_normal(batches)[steps] + 1e-3 * rng.standard_normal(len(steps))
    return of(median * (1 + noise), batches=tuple(map(int, steps)), device="cpu", method="cpu")


@pytest.mark.parametrize("batches", [1, 2, 3, 8])
def test_few_batches_that_agree_leave_what_processes_differ_by(batches: int) -> None:
    rng = np.random.default_rng(7)
    before, after = (in_batches(rng, median, batches, 0.0) for median in (1e-4, 1.05e-4))
    (change,) = compare_runs({"a": before}, {"a": after}, margin=0.02).changes
    assert change.ratio is not None
    expected = 2 * 1.96 * math.sqrt(2) * 0.005
    assert math.log(change.ratio.high / change.ratio.low) == pytest.approx(expected, rel=0.05)
    assert change.verdict == "slower"


@pytest.mark.parametrize("batches", [2, 3, 8])
def test_few_batches_that_differ_are_no_finding(batches: int) -> None:
    rng = np.random.default_rng(8)
    found = 0
    for _ in range(100):
        pair = [in_batches(rng, 1e-4, batches, 0.03) for _ in range(2)]
        changes = compare_runs({"a": pair[0]}, {"a": pair[1]}, margin=0.0)
        found += changes.exit_code(("slower", "faster"))
    assert found <= 0.05 * 100


BATCHES = tuple(index // 20 for index in range(200))


class Suite:
    """Recorded samples, of which each test of a run draws its own."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        names = ("relu cold", "relu by events", "the same", "2 % slower")
        self.samples = [np.array(trace(name)["seconds"]) for name in names]
        self.samples.append(np.array(trace("matmul from idle")["seconds"][-400:]))  # settled

    def run(self, slower: Collection[int] = ()) -> dict[str, Measurement]:
        """As from a process of its own; some tests take 5 % longer."""
        return {
            f"test {test}": self.measured(test, 1.05 if test in slower else 1.0)
            for test in range(300)
        }

    def measured(self, test: int, factor: float) -> Measurement:
        recorded = self.samples[test % len(self.samples)]
        starts = self.rng.integers(0, len(recorded) - 10, 20)  # stretches keep what neighbors share
        drawn = np.concatenate([recorded[start : start + 10] for start in starts])
        process = 1 + BETWEEN_PROCESSES * self.rng.standard_normal()
        return of((factor * process * drawn).tolist(), batches=BATCHES, clock_tick=32e-9)


@pytest.mark.thorough
def test_of_30_runs_of_300_equal_tests_at_least_28_find_nothing() -> None:
    suite = Suite(3)
    codes = [
        compare_runs(suite.run(), suite.run(), margin=0.01).exit_code(("slower", "faster"))
        for _ in range(30)
    ]
    assert codes.count(0) >= 28


def test_what_is_5_percent_slower_is_found_among_300() -> None:
    suite = Suite(4)
    planted = range(0, 300, 12)
    slower = compare_runs(suite.run(), suite.run(slower=planted)).of("slower")
    assert {change.name for change in slower} <= {f"test {test}" for test in planted}
    # Those of known duration; the other recorded times are spread by more than that.
    quiet = {f"test {test}" for test in planted if test % len(suite.samples) in (2, 3)}
    found = quiet & {change.name for change in slower}
    assert len(found) >= 0.8 * len(quiet)


def test_one_of_many_is_uncertain_where_it_would_be_slower_alone() -> None:
    rng = np.random.default_rng(5)
    quiet = {f"test {number}": noisy(rng) for number in range(300)}
    spread = np.linspace(0.9, 1.1, 401)
    base, later = (of(median * rng.permutation(spread)) for median in (1e-5, 1.06e-5))
    alone = compare_runs({"x": base}, {"x": later})["x"]
    among = compare_runs({"x": base, **quiet}, {"x": later, **quiet})["x"]
    assert alone.verdict == "slower"
    assert (among.verdict, among.reason) == ("uncertain", "one-of-many")
    assert "by chance" in among.sentence


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"queue": "none"}, "queue"),
        ({"clocks": "lock"}, "clocks"),
        ({"pin": 3}, "pin"),
        ({"sm_clocks_hz": (1.4e9,) * 200}, "SM clock"),
        ({"after": PROVENANCE | {"load_average": 8.0}}, "load average"),
        ({"after": PROVENANCE | {"gpu_uuid": "GPU-2"}}, "gpu_uuid"),
        ({"after": PROVENANCE | {"governor": "powersave"}}, None),  # the other did not record it
        ({"after": PROVENANCE | {"git": {"commit": "a" * 40, "dirty": True}}}, UNCOMMITTED),
        ({"after": PROVENANCE | {"git": {"commit": "a" * 40}}}, None),
        ({"after": PROVENANCE | {"driver": ["580.1"]}}, "driver"),
    ],
)
def test_differences_are_listed_and_judged_all_the_same(
    fields: dict[str, Any], what: str | None
) -> None:
    changes = changed(**fields)
    assert [found.what for found in changes.differences] == ([what] if what else [])
    assert changes["one"].verdict == "same"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"method": "event"}, "its method: kernel → event"),
        ({"cache": "warm"}, "its cache: cold → warm"),
        ({"placement": "random"}, "its placement: as-is → random"),
        ({"pages": "retained"}, "its pages: as-is → retained"),
        ({"device": "cpu"}, "ran on cuda:0 and runs on cpu"),
        ({"after": PROVENANCE | {"gpu": "B200"}}, "another GPU (gpu: NVIDIA H200 → B200)"),
    ],
)
def test_times_of_different_things_are_not_judged(fields: dict[str, Any], told: str) -> None:
    changes = changed(**fields)
    assert (changes["one"].verdict, changes["one"].reason) == ("uncertain", "other-conditions")
    assert told in changes["one"].sentence
    assert changes["one"].ratio is not None
    assert changes.geomean is None


def test_what_the_same_gpu_is_can_be_said() -> None:
    rng = np.random.default_rng(8)
    before, after = (
        {"one": dataclasses.replace(noisy(rng), provenance=PROVENANCE | facts)}
        for facts in ({}, {"gpu_uuid": "GPU-2", "git": {"commit": "b" * 40, "dirty": False}})
    )
    model = compare_runs(before, after)
    assert model["one"].verdict == "same"
    assert "gpu_uuid: GPU-1 → GPU-2" in model.details()
    very_one = compare_runs(before, after, same_gpu="uuid")
    assert very_one["one"].verdict == "uncertain"
    assert "another GPU of the same model" in very_one["one"].sentence


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        ([1e-5] * 3, "too-few-samples"),
        ([0.0] * 20, "no-time"),
        ([-1e-6] * 20, "no-time"),
        (np.linspace(0.5e-5, 1.5e-5, 20), "wide-interval"),
        (np.linspace(1.02e-5, 1.04e-5, 60), "at-the-margin"),
    ],
)
def test_why_a_verdict_is_uncertain_is_said(seconds: Any, reason: str) -> None:
    before = of(np.linspace(0.999e-5, 1.001e-5, 60))
    change = compare_runs({"one": before}, {"one": of(seconds)})["one"]
    assert (change.verdict, change.reason) == ("uncertain", reason)
    assert change.sentence


def test_suspects_that_are_slower_alike_are_not_the_hardware_if_others_are_unchanged() -> None:
    rng = np.random.default_rng(0)
    factors = {f"slow {n}": 1.1 for n in range(6)} | {f"same {n}": 1.0 for n in range(10)}
    before = {name: noisy(rng) for name in factors}
    after = {name: noisy(rng, 1e-5 * factor) for name, factor in factors.items()}
    first = compare_runs(before, after)
    slower = {change.name for change in first.of("slower")}
    assert slower == {name for name in factors if name.startswith("slow")}
    suspects = [{name: run[name] for name in slower} for run in (before, after)]
    causes = {
        others: {
            change.attribution.cause
            for change in compare_runs(*suspects, others=others).changes
            if change.attribution is not None
        }
        for others in ((), first.changes)
    }
    assert causes[()] == {"hardware or clocks"}
    assert "hardware or clocks" not in causes[first.changes]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"margin": -0.1}, "margin must be a share, 0 or more and below 1, got -0.1"),
        ({"margin": "3%"}, "margin must be a share"),
        ({"false_discoveries": 0}, "false_discoveries must be a share, above 0"),
        ({"same_gpu": "name"}, "same_gpu must be one of"),
        ({"instructions_margin": 1}, "instructions_margin must be a share"),
    ],
)
def test_options_outside_of_their_range_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        compare_runs({}, {}, **options)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_samples_that_are_no_times_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="'odd': its seconds must be finite numbers"):
        compare_runs({"odd": of([1e-5, wrong])}, {})
    with pytest.raises(ValueError, match="places must be known for all 2 samples .*, got 1"):
        compare_runs({}, {"odd": of([1e-5, 1e-5], places=(1,))})
