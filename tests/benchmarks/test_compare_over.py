"""The benchmark of comparisons over axes: which points are right, and which are opposite."""

from __future__ import annotations

from typing import Any

import compare_over
import pytest
import torch
from compare_over_parts.families import make_families

import convtime


def row(leaders: list[str], **seconds: float) -> dict[str, Any]:
    point = {"name": "n=1", "kind": "winner", "leaders": leaders, "seconds": seconds}
    return {"key": "f", "margin": 0.01, "edge": 0.005, "points": [point]}


@pytest.mark.parametrize(
    ("leaders", "seconds", "right", "opposite"),
    [
        (["a"], {"a": 1.0, "b": 1.02}, 1, 0),
        (["b"], {"a": 1.0, "b": 1.02}, 0, 1),
        (["a", "b"], {"a": 1.0, "b": 1.02}, 0, 0),
        (["a", "b"], {"a": 1.0, "b": 1.004}, 1, 0),
        (["a"], {"a": 1.0, "b": 1.004}, 0, 0),
        (["a"], {"a": 1.0, "b": 1.012}, 1, 0),
        (["a", "b"], {"a": 1.0, "b": 1.012}, 1, 0),
        (["b"], {"a": 1.0, "b": 1.012}, 0, 0),
        ([], {"a": 1.0, "b": 1.02}, 0, 0),
    ],
)
def test_leaders_are_right_up_to_the_edge_of_the_margin(
    leaders: list[str], seconds: dict[str, float], right: int, opposite: int
) -> None:
    summary = compare_over.summarise([row(leaders, **seconds)])
    assert summary == {
        "families": 1, "points": 1, "winner_or_tie_right": right, "opposite": opposite
    }  # fmt: skip


def test_the_table_tells_the_gap_to_the_next() -> None:
    assert compare_over.summarise([]) == {"families": 0, "points": 0}
    found = compare_over.table([row(["a"], a=1.0, b=1.02)]).splitlines()[2]
    assert found == "| f | n=1 | a (winner) | a | b +2.0% | yes |"


def test_there_are_enough_families_and_each_factory_makes_a_call() -> None:
    families = make_families(torch.device("cpu"))
    assert len(families) >= 6
    for family in families.values():
        assert len(family.values) >= 6
        for factory in family.candidates.values():
            made = factory(**{family.axis: family.values[0]})
            assert isinstance(made, convtime.Candidate)
            made.fn(*made.args, **made.kwargs)
