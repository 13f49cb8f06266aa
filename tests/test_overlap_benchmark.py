"""The benchmark of overlapping work: what its rows are judged by."""

from __future__ import annotations

import itertools
import random
import statistics
from typing import Any

import overlap
import pytest
import torch
from overlap_parts import draw, pairs, truth
from overlap_parts.draw import refusal
from overlap_parts.truth import ratio_interval

CPU = torch.device("cpu")


def row(ratio: float, verdict: str, measured: float | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "family": "streams",
        "true_ratio": ratio,
        "true_interval": [ratio - 0.001, ratio + 0.001],
        "ratio": ratio if measured is None else measured,
        "span_ratio": ratio,
        "sum_ratio": 1.0,
        "verdict": verdict,
    } | fields


@pytest.mark.parametrize(
    ("ratio", "verdict", "right"),
    [
        (0.8, "faster", True),
        (0.8, "same", False),
        (0.8, "uncertain", False),
        (1.2, "slower", True),
        (1.0, "same", True),
        (1.0, "slower", False),
        (0.9905, "uncertain", True),  # the truth itself is unclear
        (0.9905, "same", True),
        (0.9905, "slower", False),
    ],
)
def test_verdicts_are_right_where_they_are_the_truths(
    ratio: float, verdict: str, right: bool
) -> None:
    assert overlap.is_right(row(ratio, verdict)) == right


def test_the_summary_names_the_worst_ratio() -> None:
    rows = [row(0.8, "faster"), row(0.5, "faster", 0.51), row(1.0, "slower", 1.02)]
    assert overlap.summarise(rows) == {
        "pairs": 3,
        "verdicts_right": pytest.approx(2 / 3),
        "ratio_error_max": pytest.approx(0.02),
    }
    assert overlap.summarise([]) == {"pairs": 0}
    assert "| streams | 3 | 0.500 to 1.000 | 2 | 2.00% |" in overlap.table(rows)


def test_pairs_are_drawn_on_both_sides() -> None:
    assert refusal(0.95, 1e-3, close=True) == ""
    assert refusal(0.6, 1e-3, close=False) == ""
    assert "close" in refusal(0.95, 1e-3, close=False)
    assert "far" in refusal(0.6, 1e-3, close=True)
    assert "edge" in refusal(0.991, 1e-3, close=True)
    assert "short" in refusal(0.95, 3e-4, close=True)


def test_the_true_ratios_interval_holds_it() -> None:
    under = [1e-3 * (1 + 0.001 * (step % 7)) for step in range(31)]
    value, low, high = ratio_interval([0.8 * seconds for seconds in under], under)
    assert low <= value <= high
    assert value == pytest.approx(0.8)


def test_times_that_a_method_does_not_know_are_left_out() -> None:
    assert overlap.ratio_of([2.0, 1.0, 3.0], [1.0, 1.0, 1.0]) == 2.0
    assert overlap.ratio_of([], [1.0]) is None
    rows = [row(0.8, "faster"), row(0.8, "faster", span_ratio=None, sum_ratio=None)]
    assert overlap.table(rows).endswith("| 2 | 0.00% | 0.00% | 25.00% |")
    assert overlap.table(rows[1:]).endswith("| 1 | 0.00% | – | – |")


def test_each_family_has_its_share_of_the_pairs() -> None:
    cases = overlap.make_cases(7, 12, CPU)
    assert len(cases) == 12
    families = [key.partition("/")[0] for key in cases]
    assert {families.count(family) for family in overlap.FAMILIES} == {2, 3}
    assert set(cases).isdisjoint(overlap.make_cases(8, 12, CPU))
    assert set(cases) <= set(overlap.make_cases(7, 30, CPU))


def drawn(monkeypatch: pytest.MonkeyPatch, seed: str, *, spread: float = 0.0) -> dict[str, Any]:
    """What is drawn of pairs whose true ratio is itself drawn by the seed; and it is 1 ms long."""

    def make(chance: random.Random, _device: torch.device) -> draw.Pair:
        ratio = chance.uniform(0.5, 1.0)
        return draw.Pair(lambda: None, lambda: ratio, f"{ratio:.6f}")

    def elapsed(calls: list[Any], rounds: int) -> list[list[float]]:
        noise = itertools.cycle((1 - spread, 1, 1 + spread))
        return [[1e-3] * rounds, [1e-3 * calls[1]() * next(noise) for _ in range(rounds)]]

    monkeypatch.setattr(draw, "elapsed", elapsed)
    return draw.draw_pair(make, seed, close=True, device=CPU)[1]


def test_a_seed_draws_the_same_pairs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [drawn(monkeypatch, str(seed)) for seed in range(10)]
    assert found == [drawn(monkeypatch, str(seed)) for seed in range(10)]
    assert len({each["what"] for each in found}) == 10
    for each in found:
        assert 0.9 <= each["true_ratio"] <= 1
        assert len(each["refused"]) == each["draws"] - 1
        assert all("far from 1" in why or "edge" in why for why in each["refused"])
    assert any(each["refused"] for each in found)


def test_pairs_whose_ratio_is_not_known_well_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="none of 25 pairs"):
        drawn(monkeypatch, "1", spread=0.05)


def test_dependent_launches_are_drawn_on_both_sides_and_are_long_enough() -> None:
    """A kernel spins before it waits for the one before it, and after that."""
    ratios = []
    for seed in range(200):
        call = pairs.dependent(random.Random(seed), CPU).in_line
        count, _, before, after, _ = call.args  # type: ignore[attr-defined]
        assert 1e-9 * (before + count * after) > 200e-6
        ratios.append((before + count * after) / (count * (before + after)))
    close = statistics.fmean(ratio >= 0.9 for ratio in ratios)
    assert 0.2 < close < 0.8


def test_rounds_that_the_host_issued_too_late_are_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = iter([True, False, False, True, False])
    orders, holds = [], []

    def one_round(_calls: Any, order: list[int], hold: int) -> tuple[list[float], float]:
        orders.append(order)
        holds.append(hold)
        held = 1e-9 * hold
        is_late = next(late)
        return [9.0 if is_late else 1.0 + index for index in order], held * (2 if is_late else 0.5)

    monkeypatch.setattr(truth, "_REST_SECONDS", 0.0)
    monkeypatch.setattr(truth, "_round", one_round)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    calls = [lambda: None] * 2
    assert truth.elapsed(calls, 3) == [[1.0] * 3, [2.0] * 3]
    long, short = truth._HOLDS_NS
    assert holds == [long, long, short, long, long]
    late = itertools.repeat(True)
    with pytest.raises(RuntimeError, match="0 of 6 rounds"):
        truth.elapsed(calls, 3)
    assert {tuple(order) for order in orders} == {(0, 1), (1, 0)}
