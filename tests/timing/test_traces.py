"""What convtime says of samples that were recorded on a GPU (tests/data/record.py)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from convtime.core.load import _C
from convtime.timing.comparison import Comparison
from tests.helpers.texts import flat
from tests.helpers.traces import TRACES, measurement, trace

RULE: dict[str, Any] = {
    "min_samples": 10,
    "max_samples": 10_000,
    "budget": 1.0,
    "tolerance": 0.005,
    "margin": 0.01,
}


def first_stop(name: str, stop: str) -> int:
    """How many rounds of a trace are sampled until a criterion is settled; 0 if it never is."""
    candidates = [candidate["seconds"] for candidate in TRACES[name]]
    for count in range(1, len(candidates[0]) + 1):
        sampled = [seconds[:count] for seconds in candidates]
        if _C.stop_reason(samples=sampled, elapsed_seconds=0.0, stop=stop, **RULE) == "settled":
            return count
    return 0


def test_a_gpu_that_heats_up_is_steady_once_its_clock_has_fallen() -> None:
    heating = trace("matmul from idle")
    seconds, clocks = heating["seconds"], heating["sm_clocks_hz"]
    elapsed = np.cumsum(seconds)

    def steady(count: int) -> bool:
        return _C.is_steady(seconds[:count]) and _C.is_steady(clocks[:count])

    assert steady(30)  # at first the clock is high and does not move: that is what to wait beyond
    assert elapsed[30] < _C.WATCH_SECONDS
    long_enough = int(np.searchsorted(elapsed, _C.WATCH_SECONDS))
    found = next(count for count in range(long_enough, 600) if steady(count))
    assert 0.1 < elapsed[found] < 0.4
    assert clocks[found] < 0.9 * clocks[0]
    # Near the end its power is capped once more.
    assert not steady(560)
    for name in ("relu by events", "the same", "2 % slower"):
        assert _C.is_steady(trace(name)["seconds"][:60]), "short kernels are steady at once"


def test_the_clock_explains_the_times_of_a_gpu_that_heats_up() -> None:
    one = measurement(trace("matmul from idle"))
    assert one.throttled == tuple(clock < 0.95 * 1.98e9 for clock in one.sm_clocks_hz)
    assert sum(one.throttled) > 500
    assert f"{sum(one.throttled)} samples below 95%" in flat(one)
    assert not any(measurement(trace("the same")).throttled)


def test_criteria_settle_where_the_median_is_known() -> None:
    seconds = trace("the same")["seconds"]
    for stop in ("interval", "noise"):
        count = first_stop("the same", stop)
        assert 10 <= count <= 200
        assert np.median(seconds[:count]) == pytest.approx(np.median(seconds), rel=0.005)
    assert first_stop("matmul from idle", "entropy") == 0, "it goes on growing"


@pytest.mark.parametrize("name", ["matmul from idle", "relu cold", "relu by events", "the same"])
def test_the_interval_of_a_stretch_holds_the_median_of_the_rest(name: str) -> None:
    seconds = trace(name)["seconds"][-400:]  # the matmul's clock has fallen by then
    length = 80
    held = []
    for start in range(0, len(seconds) - length + 1, length // 2):
        rest = seconds[:start] + seconds[start + length :]
        stretch = dataclasses.replace(
            measurement(trace(name)),
            seconds=tuple(seconds[start : start + length]),
            batches=tuple(index // 20 for index in range(length)),
            clock_tick=32e-9,
        )
        low, high = stretch.median_interval
        held.append(low <= _C.summarize(rest)["median"] <= high)
    assert sum(held) >= 0.9 * len(held)


@pytest.mark.parametrize(
    ("name", "ratio", "verdict"), [("the same", 1.0, "same"), ("2 % slower", 1.02, "slower")]
)
def test_verdicts_are_true_and_soon_settled(name: str, ratio: float, verdict: str) -> None:
    base, other = map(measurement, TRACES[name])
    comparison = Comparison({"base": base, "other": other})
    found = comparison.ratio("other")
    assert found.value == pytest.approx(ratio, abs=0.002)
    assert found.value == pytest.approx(np.median(np.divide(other.seconds, base.seconds)))
    assert found.low - 0.001 <= ratio <= found.high + 0.001
    assert comparison.verdict("other") == verdict
    assert comparison.exit_code() == (verdict == "slower")
    assert 30 <= first_stop(name, "verdict") < 60
