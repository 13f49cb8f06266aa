"""`convtime sweep`: statements and convolutions over axes, on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from convtime import Sweep, cli
from tests.helpers.commands import COUNTED, ON_CPU, Capture, error_of, only_line

RELU = ["sweep", "torch.relu(x)", "-n", "kind=kind"]
AXES = ["--axis", "n=[1, 2][0], 4", "--axis", "kind=torch.float32, torch.float64"]
CONV = "conv2d:n{n}c4h8w8k4r{r}s3p{pad}:{dtype}"
LINE = "conv1d:n{n}c2w9k4s3"


def swept(capsys: Capture, *given: str) -> Sweep:
    """Return the sweep that a command prints."""
    assert cli.main(["sweep", *given, "--json", "-"]) == 0
    return Sweep.from_dict(json.loads(capsys.readouterr().out))


def test_statements_find_the_axes_as_variables(tmp_path: Path, capsys: Capture) -> None:
    files = {name: str(tmp_path / f"a.{name}") for name in ("json", "csv", "jsonl", "png")}
    pytest.importorskip("vl_convert")
    given = [*RELU, "-s", "x = torch.ones(n, dtype=kind)", *AXES, *COUNTED, "--seed", "3"]
    outputs = ["--json", files["json"], "--csv", files["csv"], "--plot", files["png"]]
    assert cli.main([*given, *outputs, "--file", files["jsonl"]]) == 0
    printed = capsys.readouterr().out
    assert "torch.relu(x)" in printed
    found = Sweep.from_dict(json.loads(Path(files["json"]).read_text()))
    assert found.plan.axes == {"n": (1, 4), "kind": ("torch.float32", "torch.float64")}
    assert list(found.plan.applications) == ["torch.relu(x)", "kind"]
    assert found.plan.seed == 3
    assert {len(each.seconds) for each in found.measurements.values()} == {3}
    with open(files["csv"]) as table:
        assert len(list(csv.DictReader(table))) == len(found.measurements) == 8
    assert Path(files["png"]).read_bytes().startswith(b"\x89PNG")
    again = [["show", files["json"]], ["show", files["jsonl"]], [*given, "--file", files["jsonl"]]]
    for command in again:
        assert cli.main(command) == 0
        assert capsys.readouterr().out == printed
    given[given.index("-s") + 1] = "x = torch.zeros(n, dtype=kind)"
    assert cli.main([*given, "--file", files["jsonl"]]) == 2
    assert "different run: application torch.relu(x) is" in error_of(capsys)


def test_axes_may_be_options_and_iterations(capsys: Capture) -> None:
    axes = ["--axis", "iterations=1,4", "--axis", "cache=auto,warm", "--rest", "0"]
    found = swept(capsys, "1 + 1", *axes, *ON_CPU).measurements.values()
    assert [len(each.seconds) for each in found] == [1, 1, 4, 4]
    assert [each.cache.requested for each in found] == ["auto", "warm"] * 2


def test_values_that_json_does_not_have_go_by_their_expressions(capsys: Capture) -> None:
    axes = ["--axis", "f=torch.relu,F.gelu", "--axis", "n=*range(2)"]
    found = swept(capsys, "f(torch.ones(n))", *axes, *COUNTED)
    assert found.plan.axes == {"f": ("torch.relu", "F.gelu"), "n": (0, 1)}
    assert not found.failed
    found = swept(capsys, "n", "--axis", "n=2**64,-10**5000,2**64-1", *COUNTED)
    assert found.plan.axes == {"n": ("2 ** 64", "-10 ** 5000", 2**64 - 1)}


def test_axes_may_have_any_name(capsys: Capture) -> None:
    names = ["statement", "options", "device", "self", "values", "torch", "namespace"]
    names_of_problem = ["line", "side", "device", "pass_name", "self"]
    problem = "conv1d:n{line}c{side}w{device}k{pass_name}s{self}"
    statement = f"assert {' == '.join(names)} == 3"
    for given, axes in ((statement, names), (problem, names_of_problem)):
        # COUNTED without the device, which is an axis
        assert swept(
            capsys, given, *(f"--axis={name}=3" for name in axes), *COUNTED[2:]
        ).measurements


@pytest.mark.parametrize("backward", [[], ["--backward"]])
def test_convolutions_have_holes(capsys: Capture, backward: list[str]) -> None:
    axes = [f"--axis={axis}" for axis in ("n=1,2", "r=3,11", "pad=1x0", "dtype=float32")]
    found = swept(capsys, CONV, *axes, *COUNTED, *backward)
    assert list(found.plan.applications) == ["pytorch", "convtime"]
    assert found.plan.axes == {"n": (1, 2), "r": (3, 11), "pad": ("1x0",), "dtype": ("float32",)}
    failed = [(point.application, point.values["n"]) for point in found.failed]
    assert failed == [("pytorch", 1), ("pytorch", 2), ("convtime", 1), ("convtime", 2)]
    assert "the kernel spans 11 pixels of height" in found.failed[0].error
    assert len(found.measurements) == 4


def test_one_side_alone_is_timed_of_several_problems(capsys: Capture) -> None:
    lines = [LINE, LINE.replace("c2", "c4")]
    found = swept(capsys, *lines, "--axis", "n=1", "--side", "pytorch", *COUNTED)
    assert list(found.plan.applications) == [f"pytorch {line}" for line in lines]


@pytest.mark.parametrize(
    "command", [["sweep", "n / 0", "--axis"], ["compare", "n / 0", "n / (n - n)", "--over"]]
)
def test_where_every_point_fails_the_command_does(capsys: Capture, command: list[str]) -> None:
    assert cli.main([*command, "n=1,2", *COUNTED]) == 2
    captured = capsys.readouterr()
    assert captured.out.count("ZeroDivisionError") >= 2
    assert only_line(captured.err) == (
        "every point failed, e.g. n / 0 n=1: line 1 of the statement "
        "raised ZeroDivisionError: division by zero"
    )


def test_an_interrupted_command_says_how_it_goes_on(tmp_path: Path, capsys: Capture) -> None:
    file = str(tmp_path / "a.jsonl")
    interrupting = "if n == 2: raise KeyboardInterrupt"
    given = ["sweep", "n", "-s", interrupting, "--axis", "n=1,2,3", *COUNTED, "--file", file]
    assert cli.main(given) == 130
    said = f"convtime: the points so far are in {file}; the same command continues\n"
    assert capsys.readouterr().err == f"{said}convtime: interrupted\n"
