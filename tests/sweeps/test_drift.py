"""Drift of the control and differences between workers, of drawn and of exact times."""

import dataclasses
import statistics
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from convtime import Measurement
from convtime.sweeps.drift import Controls
from tests.helpers.measurements import make


def taking(seconds: float) -> Measurement:
    """A measurement whose samples are within 1e-5 of a median."""
    return make(seconds=tuple(seconds * (1 + 1e-7 * (n - 50)) for n in range(101)))


def controls_of(**factors: Sequence[float]) -> Controls:
    by_worker = {
        name: [taking(1e-6 * factor) for factor in those] for name, those in factors.items()
    }
    return Controls("relu", {name: visits for name, visits in by_worker.items() if visits})


factors = st.integers(800, 1250).map(lambda each: each / 1000)


def verdicts_of(ratio: float) -> set[str]:
    """The possible ones: processes differ by 1 %, so none is certain near the margin of 3 %."""
    if 0.99 < ratio < 1.01:
        return {"same"}
    if not 0.93 < ratio < 1.07:
        return {"slower" if ratio > 1 else "faster"}
    outside = "slower" if ratio > 1.03 else "faster" if ratio < 0.97 else "same"
    return {outside, "uncertain"}


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(factors, min_size=1, max_size=4)))
@settings(max_examples=40)
def test_workers_are_compared_with_a_typical_one_and_with_themselves(
    by_worker: dict[str, list[float]],
) -> None:
    controls = controls_of(**by_worker)
    lasting = {name: those[-1] / those[0] for name, those in by_worker.items() if len(those) > 1}
    drift = controls.drift()
    if not lasting:
        assert drift is None
    else:
        assert drift is not None
        assert drift.ratio is not None
        most = max(max(ratio, 1 / ratio) for ratio in lasting.values())
        assert max(drift.ratio.value, 1 / drift.ratio.value) == pytest.approx(most)
        assert any(drift.ratio.value == pytest.approx(each) for each in lasting.values())
        assert drift.verdict in verdicts_of(drift.ratio.value)
    times = {name: statistics.median_low(those) for name, those in by_worker.items()}
    changes = controls.workers()
    if len(times) < 2:
        assert changes == {} == controls.ratios()
        return
    typical = times[controls.typical_worker]
    assert typical == statistics.median_low(times.values())
    expected = {name: each / typical for name, each in times.items()}
    assert controls.ratios() == pytest.approx(expected)
    assert set(changes) == set(times) - {controls.typical_worker}
    for name, change in changes.items():
        assert change.verdict in verdicts_of(times[name] / typical)


def test_what_is_said_of_drift_and_of_workers() -> None:
    steady, told = [*controls_of(a=(1, 1), b=(1.1, 1.1), c=(1.001,)).sentences({"b": 5})]
    assert "the machine was stable within 3%" in steady
    assert told.startswith("WARNING: worker b took 1.09")
    assert "it is slower by more than 3%, and so are the times of its 5 points" in told
    drifted, *_ = controls_of(a=(1, 1.2), b=(1.0,)).sentences({})
    assert "drift: relu on worker a ran at 1.2" in drifted
    assert "WARNING: the machine became slower during the run, by more than 3%" in drifted
    _, equal = controls_of(a=(1, 1), b=(1.001, 1.0)).sentences({})
    assert equal == "2 workers took equally long for the control, within 3%"
    once = controls_of(a=(1,))
    assert [*once.sentences({})] == [
        "drift is unknown: the control is relu, and it was measured fewer than two times"
    ]
    failed = dataclasses.replace(once, failure="E: x")
    assert "it failed: E: x" in next(failed.sentences({}))
    idle = controls_of(a=(0, 0))
    assert "its median before is 0 s, so there is no ratio" in next(idle.sentences({}))
    unsure = controls_of(a=(2, 2.06))
    assert "the machine's stability is uncertain" in next(unsure.sentences({}))
    change = unsure.drift(margin=0.5)
    assert change is not None
    assert change.verdict == "same"
