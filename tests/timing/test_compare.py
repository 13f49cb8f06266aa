"""compare: its arguments, times alone and beside others, and confirmation by a fresh process."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import convtime
from convtime.core.child import job
from convtime.timing import compare as comparing
from convtime.timing.candidate import Candidate
from convtime.timing.comparison import Interference
from convtime.timing.options import Options
from tests.helpers.measurements import changed, on_cpu


def test_what_was_found_is_the_comparisons_unless_it_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"b": Interference(2.0, 1e-3, "takes twice as long")}
    asked: list[Any] = []

    def find(*arguments: Any) -> tuple[dict[str, Interference], str]:
        asked.append(arguments)
        return found, "little time"

    monkeypatch.setattr("convtime.timing.compare.find_interference", find)
    options: dict[str, Any] = {"device": "cpu", "warmup": 2, "check": None, "max_samples": 10}
    for wanted, expected in ((True, (found, "little time")), (False, ({}, ""))):
        compared = convtime.compare({"a": int, "b": int}, interference=wanted, **options)
        assert (compared.interference, compared.interference_reason) == expected
    ((candidates, measured, *_),) = asked
    assert [each.name for each in candidates] == [*measured] == ["a", "b"]


def timed(seconds: tuple[float, ...] = (1e-3,) * 495, **fields: Any) -> convtime.Measurement:
    usual = {"warmup_seconds": 0.1, "sampling_seconds": 0.9, "warmup_calls": 10}
    return changed(on_cpu(seconds), **{**usual, **fields})


def found_alone(
    alone: Any, beside: convtime.Measurement, margin: float = 0.01, seconds_left: float = math.inf
) -> tuple[dict[str, Interference], str, Options | None]:
    """The finding for two candidates, and the options that they are timed alone with."""
    asked: list[Options] = []

    def measure(candidates: Sequence[Candidate], options: Options) -> list[convtime.Measurement]:
        asked.append(options)
        if isinstance(alone, Exception):
            raise alone
        return [dataclasses.replace(alone, name=candidate.name) for candidate in candidates]

    candidates = [Candidate(int, name=name) for name in "ab"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "measure", measure)
        found, reason = comparing.find_interference(
            candidates, dict.fromkeys("ab", beside), Options(margin=margin), seconds_left
        )
    return found, reason, asked[0] if asked else None


@settings(max_examples=60)
@given(
    st.sampled_from([0.93, 0.975, 0.98, 0.995, 1.0, 1.005, 1.02, 1.032, 1.07]),
    st.sampled_from([0.0004, 0.0123]),
    st.sampled_from([0.0004, 0.0123]),
    st.sampled_from([0.0103, 0.0307]),
)
def test_a_difference_must_be_more_than_intervals_and_margin(
    factor: float, half: float, alone_half: float, margin: float
) -> None:
    """Of six samples, the whole range is the interval."""
    shares = np.array([-1, -0.5, 0, 0, 0.5, 1])
    beside = factor * 1e-3 * (1 + half * shares)
    alone = 1e-3 * (1 + alone_half * shares)
    others = timed(seconds=tuple(beside), warmup_calls=990)
    found, reason, _ = found_alone(timed(seconds=tuple(alone)), others, margin=margin)
    apart = max(beside.min() - alone.max(), alone.min() - beside.max())
    assert (list(found), reason) == (["a", "b"] if apart > margin * 1e-3 else [], "")
    for each in found.values():
        assert (each.ratio, each.alone_seconds) == pytest.approx((factor, 1e-3))
        assert f"({factor:.3f})" in each.sentence


@settings(max_examples=40)
@given(st.floats(0, 1), st.floats(0.001, 1), st.integers(10, 2000), st.sampled_from([0.05, 9.0]))
def test_all_together_take_a_tenth_of_the_comparisons_time(
    warmup: float, sampling: float, calls: int, seconds_left: float
) -> None:
    """Or 0.02 s each, if that is more; a quarter of it is a warm-up."""
    one = timed((1e-3,) * 6, warmup_seconds=warmup, sampling_seconds=sampling, warmup_calls=calls)
    spent = warmup + sampling
    budget = max(0.02, 0.1 * spent / 2)
    found, reason, options = found_alone(one, one, seconds_left=seconds_left)
    if 10 * spent / (calls + 12) > 0.75 * budget:
        assert (found, options, "10 calls of each alone take" in reason) == ({}, None, True)
    elif 2 * budget > seconds_left:
        assert (found, options, "the timeout leaves no time" in reason) == ({}, None, True)
    else:
        assert options is not None
        assert (options.warmup, options.budget) == pytest.approx((budget / 4, budget * 3 / 4))


def test_what_was_not_checked_is_said() -> None:
    bursts = timed(regime="burst")
    for alone, beside, reason in (
        (bursts, bursts, "regime 'burst' would have to be set up again"),
        (timed(method="event"), timed(), "'b' alone is timed by event"),
        (RuntimeError("CUPTI"), timed(), "'b' could not be timed alone (RuntimeErr"),
    ):
        found, why, _ = found_alone(alone, beside)
        assert (found, why[: len(reason)]) == ({}, reason)


NOTHING: Any = {"a": lambda: None, "b": lambda: None}


@pytest.mark.parametrize(
    ("candidates", "options", "error", "message"),
    [
        (NOTHING, {"margin": 0}, ValueError, "margin must be more than 0, got 0"),
        (NOTHING, {"margin": "wide"}, ValueError, "margin must be a number, got 'wide'"),
        (NOTHING, {"baseline": "c"}, ValueError, r"baseline must be .*\['a', 'b'\], got 'c'"),
        (NOTHING, {"control": "yes"}, ValueError, "control must be True or False, got 'yes'"),
        (NOTHING, {"interference": 1}, ValueError, "interference must be True or False, got 1"),
        (NOTHING, {"confirm": 1}, ValueError, "confirm must be True or False, got 1"),
        (NOTHING, {"check": "loosely"}, ValueError, "check must be 'close', .* got 'loosely'"),
        (NOTHING, {"check": torch.ones(2)}, ValueError, "check must be 'close', .* got a Tensor"),
        ([], {}, ValueError, "at least one candidate"),
        ({"a": int, "": int}, {}, ValueError, "each candidate must have a name"),
        (torch.relu, {}, TypeError, "takes callables or Candidates, in a mapping"),
        ({"a": 1}, {}, TypeError, "must be callable, got int for 'a'"),
    ],
)
def test_bad_arguments_are_refused(
    candidates: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        convtime.compare(candidates, device="cpu", **options)


QUICK: dict[str, Any] = {"device": "cpu", "budget": 0.2, "check": None, "interference": False}


@pytest.mark.timing
def test_a_fresh_process_confirms_a_verdict() -> None:
    naps = [Candidate(time.sleep, each, name=name) for name, each in (("a", 2e-3), ("b", 4e-3))]
    compared = convtime.compare(naps, confirm=True, **QUICK)
    assert list(compared.confirmation) == ["b"]
    assert compared.confirmation["b"].value == pytest.approx(2, rel=0.2)
    assert compared.verdict("b") == "slower"
    assert convtime.Comparison.from_dict(compared.to_dict()) == compared


def test_what_cannot_be_sent_is_refused_before_it_is_timed() -> None:
    candidates: dict[str, Any] = {"a": lambda: pytest.fail("called"), "b": int}
    with pytest.raises(ValueError, match="'a' cannot be sent .* in a module"):
        convtime.compare(candidates, confirm=True, **QUICK)


@pytest.mark.thorough
def test_a_fresh_process_that_fails_is_said() -> None:
    with pytest.raises(RuntimeError, match=r"fresh process .* failed \(ZeroDivisionError: "):
        comparing.confirm_ratios(job(divmod, 1, 0), 1.0)


@pytest.mark.thorough
def test_ratios_are_those_of_the_fresh_process() -> None:
    measured = {"a": on_cpu((2.0,) * 30, name="a"), "b": on_cpu((3.0,) * 30, name="b")}
    comparison = convtime.Comparison(measured, baseline="b")
    (ratio,) = comparing.confirm_ratios(job(copy.copy, comparison), 1.0).values()
    assert ratio.value == pytest.approx(2 / 3)


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
