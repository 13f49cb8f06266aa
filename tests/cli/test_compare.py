"""`convtime compare`: statements compared, alone and over axes (``--over``)."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import convtime
from convtime import Comparison, ComparisonTable, cli
from convtime.cli import compare as compare_command
from convtime.sweeps import compare_over as running
from convtime.timing.comparison import Agreement
from tests.helpers.commands import COUNTED, ON_CPU, Capture, error_of, only_line
from tests.helpers.measurements import changed

QUICK = [
    *(*ON_CPU, "--stop", "count", "--max-samples", "30", "--min-samples", "30"),
    *("--warmup", "1", "--no-interference"),
]
RELU = ["compare", "torch.relu(x)", "-n", "max=torch.clamp(x, 0)"]


def test_statements_are_named_and_judged(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out.json"
    given = [*RELU, "-n", "neg=-x", "-s", "x = torch.randn(99)", "--fail-on", "different"]
    outputs = ["--json", str(out), "--no-interference"]
    assert cli.main([*given, "--baseline", "max", *COUNTED, *outputs]) == 1
    shown = capsys.readouterr().out
    assert "torch.relu(x)" in shown
    assert shown.splitlines()[-1] == "exits with 1: neg (different)"
    compared = Comparison.from_dict(json.loads(out.read_text()))
    assert list(compared.measurements) == ["torch.relu(x)", "max", "neg"]
    assert compared.baseline == "max"
    found = {name: each.same for name, each in compared.same_results.items()}
    assert found == {"torch.relu(x)": True, "neg": False}


@pytest.mark.parametrize(
    ("slower", "same", "options", "code"),
    [
        (1.5, True, [], 0),
        (1.5, True, ["--fail-on", "slower"], 1),
        (1.5, True, ["--fail-on", "different,faster"], 0),
        (1.0, False, ["--fail-on", "slower,different"], 1),
        (1.0, False, ["--fail-on", "slower", "--fail-on", "different"], 1),
    ],
)
def test_compare_exits_as_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    slower: float,
    same: bool,
    options: list[str],
    code: int,
) -> None:
    asked: dict[str, Any] = {}

    def judged(candidates: Any, **given: Any) -> Comparison:
        asked.update(given)
        found = convtime.compare(candidates, **given)
        measured = {
            name: changed(each, seconds=(seconds,) * 20, batches=(), between_runs=0.0)
            for (name, each), seconds in zip(found.measurements.items(), (1.0, slower), strict=True)
        }
        agreement = Agreement(same, "told by a test")
        return dataclasses.replace(found, measurements=measured, same_results={"2": agreement})

    monkeypatch.setattr(compare_command, "compare", judged)
    only = ["--check", "none", "--no-interference"]
    assert cli.main(["compare", "1", "2", *only, *COUNTED, *options]) == code
    assert ("exits with 1: 2 (" in capsys.readouterr().out) == (code == 1)
    assert (asked["check"], asked["control"], asked["interference"]) == (None, False, False)


def test_statements_are_compared_at_each_point(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("vl_convert")
    names = ("json", "csv", "png", "md", "jsonl")
    json_file, csv_file, picture, markdown, journal = (tmp_path / f"a.{name}" for name in names)
    axes = ["--over", "n=[1, 2][0], 64", "--over", "kind=torch.float32, torch.float64"]
    given = [*RELU, "-s", "x = torch.randn(n, dtype=kind)", *axes, *QUICK, "--seed", "3"]
    outputs = ["--json", json_file, "--csv", csv_file, "--plot", picture, "--markdown", markdown]
    assert cli.main([*given, *map(str, [*outputs, "--file", journal])]) == 0
    printed = capsys.readouterr().out
    table = ComparisonTable.from_dict(json.loads(json_file.read_text()))
    assert table.plan.axes == {"n": (1, 64), "kind": ("torch.float32", "torch.float64")}
    assert table.candidates == ("torch.relu(x)", "max")
    assert table.plan.seed == 3
    assert len(table.measurements) == 8
    same = [each.same for point in table.points for each in point.same_results.values()]
    assert same == [True] * 4
    assert len(list(csv.DictReader(csv_file.open()))) == 8
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert markdown.read_text() == table.to_markdown()
    for again in (["show", json_file], ["show", journal], [*given, "--file", journal]):
        assert cli.main([*map(str, again)]) == 0
        assert capsys.readouterr().out == printed


def test_a_gate_looks_at_all_points(capsys: Capture) -> None:
    given = ["compare", "-n", "a=x + 1", "-n", "b=x + n", "-s", "x = torch.ones(3)", *QUICK]
    assert cli.main([*given, "--over", "n=1,2", "--fail-on", "different"]) == 1
    assert "exits with 1: b n=2 (different)" in capsys.readouterr().out
    assert cli.main([*given, "--over", "n=1", "--fail-on", "different"]) == 0


def test_where_every_point_fails_the_command_does(capsys: Capture) -> None:
    assert cli.main(["compare", "n / 0", "n / (n - n)", "--over", "n=1,2", *QUICK]) == 2
    captured = capsys.readouterr()
    assert captured.out.count("ZeroDivisionError") >= 2
    assert only_line(captured.err) == (
        "every point failed, e.g. n / 0 n=1: line 1 of the statement raised ZeroDivisionError: "
        "division by zero"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "there is nothing to time; give statements, or --named"),
        (["1", "1"], "'1' is given more than once; give each a name"),
        (["-n", "1"], "--named must be NAME=STATEMENT, got '1'"),
        (["1", "--baseline", "2"], "--baseline must be one of '1', got '2'"),
        (["-n", "a=1", "-n", "b=c"], "line 1 of statement 'b' raised NameError"),
        (["1", "2", "--margin", "-1"], "margin must be"),
        (["1", "2", "--over", "n="], "--over must be NAME=VALUE,VALUE, got 'n='"),
        (["1", "2", "--over", "n=1"], "axis 'n' must be a variable of statement or setup"),
        (["n", "--over", "n=1"], "--over needs at least two statements; convtime sweep times one"),
        (["n", "2", "--over", "n=1", "--confirm"], "--confirm cannot be used with --over"),
        (["n", "2", "--over", "iterations=1"], "'iterations' must be an axis of a sweep"),
        (["n", "2", "--over", "n=float16"], "must be Python, such as 64, torch.float16 or 'text'"),
        (["n", "2", "--over", "n=1", "--file", "a", "--csv", "a"], "must name different files"),
        (["1", "2", "--csv", "a"], "--csv requires --over NAME=VALUE,VALUE"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: Capture,
    given: Sequence[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "time_op", lambda *_, **__: pytest.fail("it was timed"))
    assert cli.main(["compare", *given, *COUNTED]) == 2
    assert said in error_of(capsys)
    assert list(tmp_path.iterdir()) == []
