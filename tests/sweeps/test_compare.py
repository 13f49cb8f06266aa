"""Comparisons over axes: what runs, what fails, what is kept, and bad input."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import convtime
from convtime import Candidate, ComparisonTable
from convtime.core.errors import InputError
from convtime.sweeps import compare as running

QUICK: dict[str, Any] = {
    "stop": "count", "min_samples": 10, "max_samples": 10, "warmup": 1, "interference": False
}  # fmt: skip


def test_candidates_that_fail_are_left_out(tmp_path: Path) -> None:
    def failing(n: int) -> Callable[[], None]:
        if n == 1:
            raise ValueError("no <b>1</b>")

        def call() -> None:
            if n == 2:
                raise RuntimeError("not at 2\nnor elsewhere")

        return call

    given: dict[str, Any] = {"over": {"n": [1, 2, 8]}, "file": tmp_path / "a", "check": None}
    table = convtime.compare({"good": lambda n: int, "bad": failing}, **given, **QUICK)
    assert [dict(point.errors) for point in table.points] == [
        {"bad": "ValueError: no <b>1</b>"}, {"bad": "RuntimeError: not at 2"}, {},
    ]  # fmt: skip
    assert [table.timed_at(point) for point in table.points][:2] == [("good",)] * 2
    assert table.drift() is not None
    assert "bad failed: RuntimeError: not at 2 (n=2)" in str(table)
    assert convtime.load(tmp_path / "a") == table


def test_a_table_is_resumed_like_a_sweep(tmp_path: Path) -> None:
    visited: list[int] = []

    def first(n: int) -> Callable[[], object]:
        visited.append(n)
        if len(visited) == 4:
            raise KeyboardInterrupt
        return lambda: torch.ones(n)

    def second(n: int) -> Callable[[], object]:
        return lambda: torch.ones(n) * 1

    given: dict[str, Any] = {"over": {"n": [1, 2, 3, 4]}, "file": tmp_path / "a", **QUICK}
    with pytest.raises(KeyboardInterrupt):
        convtime.compare([first, second], **given)
    partial = convtime.load(tmp_path / "a")
    assert isinstance(partial, ComparisonTable)
    assert len(partial.missing) == 2
    assert "2 missing" in repr(partial)
    table = convtime.compare([first, second], **given)
    assert not table.missing
    assert len(table.points) == 4
    assert all(point in table.points for point in partial.points)
    with pytest.raises(InputError, match="different run: option check is close in the file, None"):
        convtime.compare([first, second], **given, check=None)
    with pytest.raises(InputError, match="ComparisonPlan in the file, SweepPlan here"):
        convtime.sweep(second, {"n": [1]}, file=tmp_path / "a")
    text = (tmp_path / "a").read_text()
    (tmp_path / "a").write_text(text.replace('"margin": 0.01}}', '"margin": 0.05}}', 1))
    with pytest.raises(InputError, match=r"a: the margin at 'n=\d' must be the table's 0.05"):
        convtime.load(tmp_path / "a")


def test_factories_draw_the_same_inputs_and_the_callers_numbers_stay() -> None:
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    table = convtime.compare(
        {
            "plain": lambda n: Candidate(torch.relu, torch.randn(n)),
            "clamp": lambda n: Candidate(torch.clamp, torch.randn(n), 0),
            "abs": lambda n: Candidate(torch.abs, torch.randn(n)),
        },
        over={"n": [100]},
        **QUICK,
    )
    assert torch.equal(torch.randn(3), expected)
    same = {name: each.same for name, each in table.points[0].same_results.items()}
    assert same == {"clamp": True, "abs": False}
    assert "abs n=100: OTHER RESULT" in str(table)
    assert ("abs n=100", "different") in table.findings


@pytest.mark.thorough  # for the first count, PyTorch imports for seconds
def test_flops_of_pytorchs_operations_are_counted() -> None:
    table = convtime.compare(
        {
            "mm": lambda n: Candidate(torch.mm, torch.ones(n, n), torch.ones(n, n)),
            "given": lambda n: Candidate(torch.ones, n, n, flops=7, nbytes=5),
            "none": lambda n: Candidate(torch.ones, n, n),
        },
        over={"n": [64]},
        check=None,
        **QUICK,
    )
    measured = table.measurements
    assert measured["mm n=64"].flops == 2 * 64**3
    assert (measured["given n=64"].flops, measured["given n=64"].nbytes) == (7, 5)
    assert measured["none n=64"].flops is None


def test_options_are_axes_and_no_candidate_takes_the_name_of_another() -> None:
    table = convtime.compare(
        [lambda: torch.ones(4), lambda: torch.ones(5)], over={"cache": ["auto", "warm"]}, **QUICK
    )
    assert table.candidates == ("<lambda>", "<lambda> 2")
    caches = [each.cache.requested for each in table.measurements.values()]
    assert caches == ["auto", "auto", "warm", "warm"]
    named = convtime.compare(
        [Candidate(int, name="int 3"), int, int, int], over={"cache": ["warm"]}, **QUICK
    )
    assert named.candidates == ("int 3", "int", "int 2", "int 4")


def call(n: int) -> Callable[[], None]:
    return lambda: None


N: dict[str, Any] = {"over": {"n": [1]}}


@pytest.mark.parametrize(
    ("candidates", "given", "said"),
    [
        ([call, call], {"over": {}}, "over must be a mapping of names to values"),
        ([call, call], {"over": {"m": [1]}}, "axis 'm' must be a timing option or a parameter of"),
        ([call, lambda: 1], N, "a parameter of '<lambda>', which takes none"),
        ([call, Candidate(call, 1)], N, "'call 2' is a Candidate, which takes"),
        ([call], N, "at least two candidates, got 'call' alone; use sweep"),
        (call, N, "in a mapping by name or in a sequence, got function"),
        ({"a": call, "b": 3}, N, "'b' must be callable, or a Candidate"),
        ([call, call], {"over": {"iterations": [1]}}, "'iterations' must be an axis of a sweep"),
        ([call, call], {**N, "margin": 0.0}, "margin must be more than 0"),
        ([call, call], {"over": {"ratio": [1]}}, "must not be a column of the table, got 'ratio'"),
        ([call, call], {**N, "check": "x"}, "check must be 'close', 'exact' or"),
        ([call, call], {**N, "control": 1}, "control must be True or False, got 1"),
        ([call, call], {"seed": 1}, "seed must be left out without over, got 1"),
    ],
)
def test_what_does_not_fit_is_one_sentence_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, candidates: Any, given: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(running, "time_op", lambda *_, **__: pytest.fail("it was timed"))
    with pytest.raises((ValueError, TypeError), match=".") as refused:
        convtime.compare(candidates, **given)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
