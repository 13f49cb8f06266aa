"""Drift of the control and differences between workers, of drawn and of exact times."""

import dataclasses
import statistics
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from convtime import Measurement
from convtime.sweeps import show
from convtime.sweeps.plan import SweepPlan
from convtime.sweeps.sweep_table import Sweep
from tests.helpers.measurements import make


def taking(seconds: float) -> Measurement:
    """A measurement whose samples are within 1e-5 of a median."""
    return make(seconds=tuple(seconds * (1 + 1e-7 * (n - 50)) for n in range(101)))


PLAN = SweepPlan({"relu": "a"}, {"n": (1,)})


def swept_by(**factors: Sequence[float]) -> Sweep:
    """A sweep whose workers measured the control with these times."""
    return Sweep(
        PLAN,
        (),
        tuple(
            dataclasses.replace(PLAN.control, worker=name, measurement=taking(1e-6 * factor))
            for name, those in factors.items()
            for factor in those
        ),
    )


def cautions(swept: Sweep) -> list[str]:
    return [*show.cautions(swept, "points")]


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
    swept = swept_by(**by_worker)
    lasting = {name: those[-1] / those[0] for name, those in by_worker.items() if len(those) > 1}
    drift = swept.drift()
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
    changes = swept.workers()
    if len(times) < 2:
        assert changes == {} == swept.worker_ratios()
        return
    typical = times[swept.typical_worker]
    assert typical == statistics.median_low(times.values())
    expected = {name: each / typical for name, each in times.items()}
    assert swept.worker_ratios() == pytest.approx(expected)
    assert set(changes) == set(times) - {swept.typical_worker}
    for name, change in changes.items():
        assert change.verdict in verdicts_of(times[name] / typical)


def test_what_is_said_of_drift_and_of_workers() -> None:
    swept = swept_by(a=(1, 1), b=(1.1, 1.1), c=(1.001,))
    points = (dataclasses.replace(PLAN.points()[0], worker="b", error="E"),)
    steady, worker = cautions(dataclasses.replace(swept, points=points))
    assert "the machine was stable within 3%" in steady
    assert worker.startswith("WARNING: worker b took 1.09")
    assert "it is slower by more than 3%, and so are the times of its 1 point" in worker
    drifted, *_ = cautions(swept_by(a=(1, 1.2), b=(1.0,)))
    assert "drift: relu n=1 on worker a ran at 1.2" in drifted
    assert "WARNING: the machine became slower during the run, by more than 3%" in drifted
    _, equal = cautions(swept_by(a=(1, 1), b=(1.001, 1.0)))
    assert equal == "2 workers took equally long for the control, within 3%"
    once = swept_by(a=(1,))
    assert cautions(once) == [
        "drift is unknown: the control is relu n=1, and it was measured fewer than two times"
    ]
    failed = dataclasses.replace(PLAN.control, error="E: x")
    (unknown,) = cautions(dataclasses.replace(once, controls=(failed,)))
    assert "it failed: E: x" in unknown
    (idle,) = cautions(swept_by(a=(0, 0)))
    assert "its median before is 0 s, so there is no ratio" in idle
    unsure = swept_by(a=(2, 2.06))
    assert "the machine's stability is uncertain" in cautions(unsure)[0]
    change = unsure.drift(margin=0.5)
    assert change is not None
    assert change.verdict == "same"
