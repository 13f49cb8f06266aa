"""The benchmark of overlapping work: what its rows are judged by."""

from __future__ import annotations

from typing import Any

import overlap
import pytest
from overlap_parts.draw import refusal
from overlap_parts.truth import ratio_interval


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
