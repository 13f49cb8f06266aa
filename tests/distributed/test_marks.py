"""Timestamps of a device's work, on a device whose clock is the test's."""

from __future__ import annotations

import pytest

from convtime import Candidate
from convtime.core.load import _C
from convtime.distributed.calls import Calls
from convtime.distributed.clocks import EventTimestamps


class FakeEvent:
    clock = 0.0

    def record(self) -> None:
        self.milliseconds = 1e3 * FakeEvent.clock

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: FakeEvent) -> float:
        return other.milliseconds - self.milliseconds


def spin_on_fake_device(nanoseconds: int) -> None:
    """A kernel, with gaps of 4 µs around it."""
    FakeEvent.clock += 1e-9 * nanoseconds + 4e-6


def test_events_are_related_to_the_hosts_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading takes 4 µs, but the third one 1 µs: its event is 0.5 µs after its first time."""
    steps = [50_000, 4_000, 0, 4_000, 0, 1_000] + [0, 4_000] * 20
    times = [sum(steps[: place + 1]) for place in range(len(steps))]
    readings = iter(times)
    monkeypatch.setattr("convtime.distributed.clocks.now", lambda: next(readings))
    timestamps = EventTimestamps(FakeEvent, spin_on_fake_device)
    timestamps.begin()
    FakeEvent.clock += 1e-3
    (found,) = timestamps.times([timestamps.mark()])
    assert found == pytest.approx(times[4] + 500 + 1e6)
    assert timestamps.uncertainty == pytest.approx(0.5e-6 + 0.5e-6)  # half a reading, and a tick


def test_gaps_around_the_work_between_two_events_are_not_part_of_it() -> None:
    timestamps = EventTimestamps(FakeEvent, spin_on_fake_device)
    candidates = [Candidate(spin_on_fake_device, 25_000), Candidate(int)]
    calls = Calls(candidates, timestamps, _C.CollectiveStamps(), on_gpu=True)
    calls.begin(None, [0.0, 0.0])
    assert timestamps.excess == pytest.approx(4_000)
    for candidate in calls.candidates:
        candidate.fn(*candidate.args)
    assert calls.progress()[0] == 4  # with the first call of each, which was only watched
    (spin,), (nothing,) = (
        [end - begin for begin, end in zip(each.begin, each.end, strict=True)]
        for each in calls.take()
    )
    assert spin == pytest.approx(25_000)
    assert nothing == 0
