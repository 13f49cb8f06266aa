"""`convtime sweep`: statements and convolutions over axes, on the command line."""

import csv
import json

import pytest

from convtime import Sweep, cli
from convtime.sweeps import sweep as running

COUNTED = ["--device", "cpu", "--stop", "count", "--max-samples", "3", "--min-samples", "3"]
QUICK = [*COUNTED, "--warmup", "1"]
RELU = ["sweep", "torch.relu(x)", "-s", "x = torch.ones(n, dtype=kind)"]
AXES = ["--axis", "n=[1, 2][0], 4", "--axis", "kind=torch.float32, torch.float64"]
CONV = "conv2d:n{n}c4h8w8k4r{r}s3p{pad}:{dtype}"


def error_of(capsys):
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("convtime: error: ").rstrip("\n")


def test_statements_find_the_axes_as_variables(tmp_path, capsys):
    files = {name: tmp_path / f"a.{name}" for name in ("json", "csv", "jsonl", "png")}
    pytest.importorskip("vl_convert")
    given = [*RELU, "-n", "kind=kind", *AXES, *QUICK, "--seed", "3"]
    outputs = ["--json", files["json"], "--csv", files["csv"], "--file", files["jsonl"]]
    assert cli.main([*given, *map(str, [*outputs, "--plot", files["png"]])]) == 0
    printed = capsys.readouterr().out
    assert "torch.relu(x)" in printed
    swept = Sweep.from_dict(json.loads(files["json"].read_text()))
    assert swept.plan.axes == {"n": (1, 4), "kind": ("torch.float32", "torch.float64")}
    assert list(swept.plan.applications) == ["torch.relu(x)", "kind"]
    assert swept.plan.seed == 3
    assert len(swept.measurements) == 8
    assert {len(each.seconds) for each in swept.measurements.values()} == {3}
    assert len(list(csv.DictReader(files["csv"].open()))) == 8
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    for path in (files["json"], files["jsonl"]):
        assert cli.main(["show", str(path)]) == 0
        assert capsys.readouterr().out == printed
    assert cli.main([*given, "--file", str(files["jsonl"])]) == 0
    assert capsys.readouterr().out == printed
    changed = ["sweep", "torch.relu(x)", "-s", "x = torch.zeros(n, dtype=kind)", "-n", "kind=kind"]
    assert cli.main([*changed, *AXES, *QUICK, "--file", str(files["jsonl"])]) == 2
    assert "different run: application torch.relu(x) is" in error_of(capsys)


def test_axes_may_be_options_and_iterations(capsys):
    axes = ["--axis", "iterations=1,4", "--axis", "cache=auto,warm", "--rest", "0"]
    assert cli.main(["sweep", "1 + 1", *axes, "--device", "cpu", "--json", "-"]) == 0
    swept = Sweep.from_dict(json.loads(capsys.readouterr().out))
    assert [len(each.seconds) for each in swept.measurements.values()] == [1, 1, 4, 4]
    assert [each.cache.requested for each in swept.measurements.values()] == ["auto", "warm"] * 2


def test_values_that_are_neither_numbers_nor_texts_go_by_their_expressions(capsys):
    given = ["sweep", "f(torch.ones(n))", "--axis", "f=torch.relu,F.gelu", "--axis", "n=*range(2)"]
    assert cli.main([*given, *QUICK, "--json", "-"]) == 0
    swept = Sweep.from_dict(json.loads(capsys.readouterr().out))
    assert swept.plan.axes == {"f": ("torch.relu", "F.gelu"), "n": (0, 1)}
    assert not swept.failed


def test_integers_too_long_for_json_go_by_their_expressions(tmp_path, capsys):
    file = tmp_path / "swept.json"
    given = ["sweep", "n", "--axis", "n=10**30,-10**5000,2**64-1", *QUICK, "--json", str(file)]
    assert cli.main(given) == 0
    printed = capsys.readouterr().out
    assert cli.main(["show", str(file)]) == 0
    assert capsys.readouterr().out == printed
    swept = Sweep.from_dict(json.loads(file.read_text()))
    assert swept.plan.axes == {"n": ("10 ** 30", "-10 ** 5000", 2**64 - 1)}


def test_axes_may_have_any_name(capsys):
    without_device = [*QUICK[2:], "--json", "-"]
    names = ["statement", "options", "device", "self", "values", "torch", "namespace"]
    axes = [each for name in names for each in ("--axis", f"{name}=3")]
    statement = f"assert {' == '.join(names)} == 3"
    assert cli.main(["sweep", statement, *axes, *without_device]) == 0
    assert Sweep.from_dict(json.loads(capsys.readouterr().out)).measurements
    names = ["line", "side", "device", "pass_name", "self"]
    problem = "conv1d:n{line}c{side}w{device}k{pass_name}s{self}"
    axes = [each for name in names for each in ("--axis", f"{name}=3")]
    assert cli.main(["sweep", problem, *axes, *without_device]) == 0
    assert len(Sweep.from_dict(json.loads(capsys.readouterr().out)).measurements) == 2


@pytest.mark.parametrize("backward", [[], ["--backward"]])
def test_convolutions_have_holes(capsys, backward):
    axes = ["n=1,2", "r=3,11", "pad=1x0", "dtype=float32"]
    given = ["sweep", CONV, *(f"--axis={axis}" for axis in axes), *QUICK, *backward]
    assert cli.main([*given, "--json", "-"]) == 0
    swept = Sweep.from_dict(json.loads(capsys.readouterr().out))
    assert list(swept.plan.applications) == ["pytorch", "convtime"]
    assert swept.plan.axes == {"n": (1, 2), "r": (3, 11), "pad": ("1x0",), "dtype": ("float32",)}
    failed = [(point.application, point.values["n"]) for point in swept.failed]
    assert failed == [("pytorch", 1), ("pytorch", 2), ("convtime", 1), ("convtime", 2)]
    assert "the kernel spans 11 pixels of height" in swept.failed[0].error
    assert len(swept.measurements) == 4


def test_one_side_alone_is_timed_of_several_problems(capsys):
    lines = ["conv1d:n{n}c2w9k4s3", "conv1d:n{n}c4w9k4s3"]
    given = ["sweep", *lines, "--axis", "n=1", "--side", "pytorch", *QUICK, "--json", "-"]
    assert cli.main(given) == 0
    swept = Sweep.from_dict(json.loads(capsys.readouterr().out))
    assert list(swept.plan.applications) == [f"pytorch {line}" for line in lines]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["1"], "at least one axis is needed; give --axis NAME=VALUE,VALUE"),
        (["1", "--axis", "n"], "--axis must be NAME=VALUE,VALUE, got 'n'"),
        (["1", "--axis", "n="], "--axis must be NAME=VALUE,VALUE, got 'n='"),
        (["n", "--axis", "n=1", "--axis", "n=2"], "axis 'n' is given more than once"),
        (["n", "--axis", "n=1,1"], "axis 'n' has the value 1 more than once"),
        (["n", "--axis", "n=abs,abs"], "axis 'n' has a value more than once, got 'abs,abs'"),
        (["n", "--axis", "n=*[10**5000, 1]"], "integers of 64 bits, got 16610 bits; give"),
        (["conv1d:n{n}c2w9k4s3", "--axis", f"n={'9' * 5000}"], "n must be at most 2147483647"),
        (["n", "--axis", "n=float16"], "must be Python, such as 64, torch.float16 or 'text', got"),
        (["n", "--axis", "m=1"], "axis 'm' must be a variable of statement or setup,"),
        (["n", "--axis", "n=1", "--axis", "method=x"], "axis 'method': method must be one of"),
        (["n +", "--axis", "n=1"], "line 1 of statement 'n +' is not valid Python"),
        (["n", "-s", "(", "--axis", "n=1"], "line 1 of the setup is not valid Python"),
        (["--axis", "n=1"], "there is nothing to time; give statements"),
        ([CONV, "--axis", "n=1"], "has {r}, but there is no such axis"),
        (["conv1d:n{n}c2w9k4s3", "--axis", "n=x"], "problem 'conv1d:nxc2w9k4s3': "),
        (
            ["conv1d:n{n}c2w9k4s3", "--axis=n=1", "--axis=m=1"],
            "'m' must be a name in braces",
        ),
        (["conv1d:n{n}c2w{k+1}k4s3", "--axis", "n=1"], "has {k+1}, but a placeholder must be"),
        (["conv1d:n{n!r}c2w9k4s3", "--axis", "n=1"], "has {n!r}, but a placeholder must be"),
        (["conv1d:n{n:5}c2w9k4s3", "--axis", "n=1"], "has {n:5}, but a placeholder must be"),
        (["n", "--axis", "n=exit(3)"], "values of axis 'n' must be Python"),
        (["conv1d:n{n", "--axis", "n=1"], "expected '}' before end of string; a placeholder is"),
        (["conv1d:n{n}c2w9k4s3", "--axis", "n=1", "-s", "1"], "--setup and --before require st"),
        (["conv1d:n1c2w9k4s3", "1", "--axis", "n=1"], "statements and problems cannot be timed"),
        (["n", "--axis", "n=1", "--side", "pytorch"], "--side requires problems"),
        (["n", "--axis", "n=1", "--file", "a", "--csv", "./a"], "must name different files"),
        (["n", "--axis", "n=1", "--plot", "a.txt"], "name must end in one of"),
        (["n", "--axis", "n=1", "--file", "/nowhere/a"], "/nowhere/a: cannot be written"),
        (["n", "--axis", "n=1", "--rest", "-1"], "rest must be a number of seconds from 0 to"),
    ],
)
def test_what_does_not_fit_is_one_sentence_before_anything_runs(
    monkeypatch, tmp_path, capsys, given, said
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "time_op", lambda *_, **__: pytest.fail("it was timed"))
    assert cli.main(["sweep", *given, "--device", "cpu"]) == 2
    assert said in error_of(capsys)
    assert list(tmp_path.iterdir()) == []


def test_where_every_point_fails_the_command_does(capsys):
    assert cli.main(["sweep", "n / 0", "--axis", "n=1,2", *QUICK]) == 2
    captured = capsys.readouterr()
    assert captured.out.count("failed") == 4
    assert captured.err == (
        "convtime: error: every point failed, e.g. n / 0 n=1: line 1 of the statement "
        "raised ZeroDivisionError: division by zero\n"
    )


def test_an_interrupted_command_says_how_it_goes_on(tmp_path, capsys):
    file = tmp_path / "a.jsonl"
    interrupting = "if n == 2: raise KeyboardInterrupt"
    given = ["sweep", "n", "-s", interrupting, "--axis", "n=1,2,3", *QUICK, "--file", str(file)]
    assert cli.main(given) == 130
    said = f"convtime: the points so far are in {file}; the same command continues\n"
    assert capsys.readouterr().err == f"{said}convtime: interrupted\n"
