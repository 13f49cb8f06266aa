"""`convtime compare --over` and %%compare: statements compared over axes."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from convtime import ComparisonTable, cli
from convtime.sweeps import compare_over as running

QUICK = [
    *("--device", "cpu", "--stop", "count", "--max-samples", "30", "--min-samples", "30"),
    *("--warmup", "1", "--no-interference"),
]
STATEMENTS = ["compare", "torch.relu(x)", "-n", "max=torch.clamp(x, 0)"]
SETUP = ["-s", "x = torch.randn(n, dtype=kind)"]
OVER = ["--over", "n=[1, 2][0], 64", "--over", "kind=torch.float32, torch.float64"]


def test_statements_are_compared_at_each_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("vl_convert")
    names = ("json", "csv", "png", "md", "jsonl")
    json_file, csv_file, picture, markdown, journal = (tmp_path / f"a.{name}" for name in names)
    given = [*STATEMENTS, *SETUP, *OVER, *QUICK, "--seed", "3"]
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
    for path in (json_file, journal):
        assert cli.main(["show", str(path)]) == 0
        assert capsys.readouterr().out == printed
    assert cli.main([*given, "--file", str(journal)]) == 0
    assert capsys.readouterr().out == printed


def test_a_gate_looks_at_all_points(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["compare", "-n", "a=x + 1", "-n", "b=x + n", "-s", "x = torch.ones(3)", *QUICK]
    assert cli.main([*given, "--over", "n=1,2", "--fail-on", "different"]) == 1
    assert "exits with 1: b n=2 (different)" in capsys.readouterr().out
    assert cli.main([*given, "--over", "n=1", "--fail-on", "different"]) == 0


def test_where_every_point_fails_the_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "n / 0", "n / (n - n)", "--over", "n=1,2", *QUICK]) == 2
    captured = capsys.readouterr()
    assert captured.out.count("ZeroDivisionError") >= 2
    assert captured.err == (
        "convtime: error: every point failed, e.g. n / 0 n=1: line 1 of the statement raised "
        "ZeroDivisionError: division by zero\n"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["1", "2", "--over", "n="], "--over must be NAME=VALUE,VALUE, got 'n='"),
        (["1", "2", "--over", "n=1"], "axis 'n' must be a variable of statement or setup"),
        (["n", "--over", "n=1"], "--over needs at least two statements; convtime sweep times one"),
        (["n", "2", "--over", "n=1", "--confirm"], "--confirm cannot be used with --over"),
        (["n", "2", "--over", "iterations=1"], "'iterations' must be an axis of a sweep"),
        (["n", "2", "--over", "n=1", "--baseline", "x"], "--baseline must be one of 'n', '2'"),
        (["n", "2", "--over", "n=float16"], "must be Python, such as 64, torch.float16 or 'text'"),
        (["n", "2", "--over", "n=1", "--file", "a", "--csv", "a"], "must name different files"),
        (["1", "2", "--csv", "a"], "--csv requires --over NAME=VALUE,VALUE"),
        (["1", "2", "--seed", "1"], "--seed requires --over NAME=VALUE,VALUE"),
    ],
)
def test_what_does_not_fit_is_one_sentence_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    given: Sequence[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "time_op", lambda *_, **__: pytest.fail("it was timed"))
    assert cli.main(["compare", *given, "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert said in captured.err
    assert list(tmp_path.iterdir()) == []
