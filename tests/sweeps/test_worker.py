"""A worker measures points, and the control in between; which workers fit each other."""

import dataclasses
import time

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from convtime.sweeps import worker
from convtime.sweeps.axes import Axes
from convtime.sweeps.plan import SweepPlan, SweepPoint

PLAN = SweepPlan({"relu": "a"}, {"size": (1,)}, seed=1)


@dataclasses.dataclass
class Simulated(worker.Worker[SweepPoint]):
    """Measures points that take some time on a clock."""

    clock: list[float] = dataclasses.field(default_factory=lambda: [0.0])
    seconds: float = 0.0
    control_seconds: float = 0.0

    def measure(self, point: SweepPoint) -> SweepPoint:
        self.clock[0] += self.control_seconds if point.control else self.seconds
        return point


@given(st.integers(1, 300), st.integers(1, 60))
def test_the_control_is_due_after_eight_points_or_enough_time(
    seconds: int, control_seconds: int
) -> None:
    """After three minutes, or eight times what the control takes; a simulation by whole seconds."""
    measuring = Simulated({}, Axes({}, {"device": "cpu"}), [0.0], seconds, control_seconds)
    (point,) = PLAN.points()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: measuring.clock[0])
        visits = [measuring.visit(point, PLAN.control, is_last=False)[1] for _ in range(30)]
        last = measuring.visit(point, PLAN.control, is_last=True)[1]
    expected, now, due, count = [], 0, 0, 0
    for _ in range(30):
        is_due = count == 8 or now >= due
        if is_due:
            now += control_seconds
            due, count = now + max(180, 8 * control_seconds), 0
        now, count = now + seconds, count + 1
        expected.append(is_due)
    assert [[each.control for each in those] for those in visits] == [
        [True, False] if is_due else [False] for is_due in expected
    ]
    assert last[-1].control


def test_runs_that_share_a_process_visit_the_control_as_often_as_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    axes = Axes({}, {"device": "cpu"})
    monkeypatch.setattr(worker, "_functions", {})
    monkeypatch.setattr(worker, "_unpickle", lambda _: Simulated({}, axes).visit)
    machine = worker.machine_of(torch.device("cpu"))
    (point,) = PLAN.points()

    def visits(run: str) -> int:
        _, made = worker.call(b"", run, "cpu", machine, point, PLAN.control, is_last=False)
        return len(made)

    assert [visits(run) for run in "abab"] == [2, 2, 1, 1]
    assert [visits(run) for run in "cdaefa"] == [2, 2, 1, 2, 2, 1]
    assert [*worker._functions] == ["d", "e", "f", "a"]  # the others are forgotten
