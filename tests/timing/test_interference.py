from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import convtime
from convtime.timing import interference
from convtime.timing.candidate import Candidate
from convtime.timing.comparison import Interference
from convtime.timing.options import Options
from tests.helpers.measurements import changed
from tests.helpers.texts import flat

QUICK: dict[str, Any] = {"device": "cpu", "warmup": 2, "stop": "count", "check": None}


class AfterEachOther:
    """Calls that take longer for a while after another one's, as where that filled a cache.

    By turns in random order, no more than two of a candidate's calls are back to back: all of
    them take longer, and none of those that are timed alone, after the warm-up.
    """

    def __init__(self) -> None:
        self._last = ""
        self._in_a_row = 3

    def call(self, name: str, seconds: float, more: float) -> None:
        self._in_a_row = self._in_a_row + 1 if self._last in ("", name) else 0
        self._last = name
        time.sleep(seconds + (more if self._in_a_row < 3 else 0))


@pytest.mark.timing
def test_a_candidate_that_suffers_from_another_is_named() -> None:
    """What it suffers is ten times its own time, since a busy machine adds some to either."""
    calls = AfterEachOther()
    compared = convtime.compare(
        [
            Candidate(calls.call, "suffers", 0.001, 0.010, name="suffers"),
            Candidate(calls.call, "does not", 0.001, 0.0, name="does not"),
        ],
        max_samples=200,
        margin=0.9,
        **QUICK,
    )
    assert (list(compared.interference), compared.interference_reason) == (["suffers"], "")
    found = compared.interference["suffers"]
    assert 3 < found.ratio < 15
    assert 0.001 <= found.alone_seconds < 0.004
    assert f"suffers: interference: {found.sentence}" in flat(compared)
    assert "interference not checked" not in flat(compared)


def test_it_can_be_left_out() -> None:
    calls: list[int] = []
    candidates = [Candidate(calls.append, 1, name=name) for name in "ab"]
    compared = convtime.compare(candidates, max_samples=10, interference=False, **QUICK)
    sampled = sum(10 * each.repeats for each in compared.measurements.values())
    assert len(calls) == sampled + compared.measurements["a"].warmup_calls
    assert (compared.interference, compared.interference_reason) == ({}, "")
    with pytest.raises(ValueError, match="interference must be True or False, got 1"):
        convtime.compare(candidates, interference=1, **QUICK)  # type: ignore[call-overload]


def timed(**fields: Any) -> convtime.Measurement:
    one = convtime.time_op(int, device="cpu", warmup=1, max_samples=10)
    usual = {
        "seconds": (1e-3,) * 495,
        "batches": (),
        "warmup_seconds": 0.1,
        "sampling_seconds": 0.9,
        "warmup_calls": 10,
        "between_runs": 0.0,
    }
    return changed(one, **{**usual, **fields})


def found_alone(
    monkeypatch: pytest.MonkeyPatch,
    alone: Any,
    beside: convtime.Measurement,
    *,
    margin: float = 0.01,
    seconds_left: float = math.inf,
) -> tuple[dict[str, Interference], str, Options | None]:
    """What is found of two candidates, and the options that they are timed alone with."""
    asked: list[Options] = []

    def measure(candidates: Sequence[Candidate], options: Options) -> list[convtime.Measurement]:
        asked.append(options)
        if isinstance(alone, Exception):
            raise alone
        return [dataclasses.replace(alone, name=candidate.name) for candidate in candidates]

    monkeypatch.setattr(interference, "measure", measure)
    candidates = [Candidate(int, name=name) for name in "ab"]
    found, reason = interference.find_interference(
        candidates, dict.fromkeys("ab", beside), Options(margin=margin), seconds_left
    )
    return found, reason, asked[0] if asked else None


@pytest.mark.parametrize(
    ("alone", "margin", "names"),
    [
        ((1.00e-3,) * 10, 0.01, []),
        ((1.02e-3,) * 10, 0.01, ["a", "b"]),
        ((0.98e-3,) * 10, 0.01, ["a", "b"]),
        ((1.02e-3,) * 10, 0.03, []),
        # an interval that reaches to the other time
        ((1.000e-3, 1.005e-3) + (1.1e-3,) * 8, 0.01, []),
        ((2.00e-3,) * 5, 0.01, []),
    ],
)
def test_a_difference_must_be_more_than_intervals_and_margin(
    monkeypatch: pytest.MonkeyPatch, alone: tuple[float, ...], margin: float, names: list[str]
) -> None:
    found, reason, options = found_alone(
        monkeypatch, dataclasses.replace(timed(), seconds=alone, batches=()), timed(), margin=margin
    )
    assert (list(found), reason) == (names, "")
    assert options is not None
    # A tenth of the second that the comparison took, for both.
    assert options.warmup + options.budget == pytest.approx(0.05)  # type: ignore[operator]
    for each in found.values():
        assert each.ratio == pytest.approx(1e-3 / alone[0])


def test_light_calls_have_a_fiftieth_of_a_second_each(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = timed(warmup_seconds=0.001, sampling_seconds=0.002)
    options = found_alone(monkeypatch, quick, quick)[2]
    assert options is not None
    assert options.warmup + options.budget == pytest.approx(0.02)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("alone", "beside", "seconds_left", "reason"),
    [
        ({}, {"regime": "burst"}, math.inf, "regime 'burst' would have to be set up again"),
        ({}, {"sampling_seconds": 9e3}, math.inf, ""),
        (
            {},
            {"seconds": (1.0,) * 5, "batches": (), "warmup_calls": 0},
            math.inf,
            "10 calls of each alone take",
        ),
        ({}, {}, 0.09, "the timeout leaves no time for it"),
        ({"method": "event"}, {}, math.inf, "'b' alone is timed by event"),
        (RuntimeError("CUPTI is taken"), {}, math.inf, "'b' could not be timed alone (RuntimeErr"),
    ],
)
def test_what_was_not_looked_at_is_said(
    monkeypatch: pytest.MonkeyPatch,
    alone: Any,
    beside: dict[str, Any],
    seconds_left: float,
    reason: str,
) -> None:
    alone = alone if isinstance(alone, Exception) else timed(**alone)
    found, why, _ = found_alone(monkeypatch, alone, timed(**beside), seconds_left=seconds_left)
    assert found == {}
    assert why.startswith(reason)
    assert bool(why) is bool(reason)


@pytest.mark.timing
@pytest.mark.cuda
def test_a_light_kernel_beside_a_heavy_one_is_found_out() -> None:
    """With a warm cache, what the other leaves there is not one's own data."""
    x, y = torch.randn(1 << 20, device="cuda"), torch.randn(1 << 27, device="cuda")
    compared = convtime.compare(
        [Candidate(torch.relu, x, name="light"), Candidate(torch.relu, y, name="heavy")],
        cache="warm",
        placement="as-is",  # other places would each be warmed by a call
    )
    assert compared.interference["light"].ratio > 1.2
    apart = convtime.compare([Candidate(torch.relu, x), Candidate(torch.relu, x)])
    assert (apart.interference, apart.interference_reason) == ({}, "")
