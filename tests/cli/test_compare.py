"""`convtime compare`: statements compared, alone and over axes (``--over``)."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

import convtime
from convtime import Comparison, ComparisonTable, cli
from convtime.cli import compare as compare_command
from tests.helpers.commands import COUNTED, ON_CPU, Capture, error_of
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


def test_compare_exits_as_it_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    asked: dict[str, Any] = {}

    def judged(candidates: Any, **given: Any) -> Comparison:
        asked.update(given)
        found = convtime.compare(candidates, **given)
        measured = {
            name: changed(each, seconds=(seconds,) * 20, batches=(), between_runs=0.0)
            for (name, each), seconds in zip(found.measurements.items(), (1.0, 1.5), strict=True)
        }
        return dataclasses.replace(found, measurements=measured)

    monkeypatch.setattr(compare_command, "compare", judged)
    given = ["compare", "1", "2", "--check", "none", "--no-interference", *COUNTED]
    for fails, code in (("different,faster", 0), ("faster,slower", 1)):
        assert cli.main([*given, "--fail-on", fails]) == code
        assert ("exits with 1: 2 (slower)" in capsys.readouterr().out) == (code == 1)
    assert (asked["check"], asked["control"], asked["interference"]) == (None, False, False)


@pytest.mark.thorough
def test_a_confirmation_finds_what_fails_the_command(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out.json"
    given = ["compare", "time.sleep(1e-3)", "time.sleep(3e-3)", "-s", "import time", "--confirm"]
    assert cli.main([*given, *QUICK, "--fail-on", "slower", "--json", str(out)]) == 1
    assert "time.sleep(3e-3) (slower)" in capsys.readouterr().out
    (ratio,) = Comparison.from_dict(json.loads(out.read_text())).confirmation.values()
    assert 2 < ratio.value < 4
    once = ["-s", f"import os; x = {{{os.getpid()}: 1}}[os.getpid()]", "x + 1", "x - 1"]
    assert cli.main(["compare", *once, *COUNTED, "--confirm"]) == 2
    assert "--confirm: the fresh process to confirm this failed (" in error_of(capsys)


def test_statements_are_compared_at_each_point(tmp_path: Path, capsys: Capture) -> None:
    json_file, csv_file, journal = (
        str(tmp_path / f"a.{name}") for name in ("json", "csv", "jsonl")
    )
    axes = ["--over", "n=[1, 2][0], 64", "--over", "kind=torch.float32, torch.float64"]
    given = [*RELU, "-s", "x = torch.randn(n, dtype=kind)", *axes, *QUICK, "--seed", "3"]
    assert cli.main([*given, "--json", json_file, "--csv", csv_file, "--file", journal]) == 0
    printed = capsys.readouterr().out
    table = ComparisonTable.from_dict(json.loads(Path(json_file).read_text()))
    assert table.plan.axes == {"n": (1, 64), "kind": ("torch.float32", "torch.float64")}
    assert table.candidates == ("torch.relu(x)", "max")
    assert table.plan.seed == 3
    assert len(table.measurements) == 8
    same = [each.same for point in table.points for each in point.same_results.values()]
    assert same == [True] * 4
    for again in (["show", json_file], ["show", journal], [*given, "--file", journal]):
        assert cli.main(again) == 0
        assert capsys.readouterr().out == printed
    assert len(list(csv.DictReader(Path(csv_file).read_text().splitlines()))) == 8


def test_a_gate_looks_at_all_points(capsys: Capture) -> None:
    given = ["compare", "-n", "a=x + 1", "-n", "b=x + n", "-s", "x = torch.ones(3)", *QUICK]
    assert cli.main([*given, "--over", "n=1,2", "--fail-on", "different"]) == 1
    assert "exits with 1: b n=2 (different)" in capsys.readouterr().out
    assert cli.main([*given, "--over", "n=1", "--fail-on", "different"]) == 0
