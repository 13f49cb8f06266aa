"""`convtime time` and `convtime compare`: statements on the command line."""

import dataclasses
import io
import json

import pytest
import torch

import convtime
from convtime import Comparison, Measurement, cli
from convtime.cli import compare as compare_command
from convtime.timing.comparison import Agreement
from tests.helpers.measurements import changed

CPU = ["--device", "cpu"]
QUICK = [*CPU, "--stop", "count", "--max-samples", "3", "--min-samples", "3", "--warmup", "1"]


def error_of(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("convtime: error: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("convtime: error: ").rstrip("\n")


def test_time_prints_a_result_and_writes_it(tmp_path, capsys):
    out = tmp_path / "out.json"
    given = ["time", "y = torch.relu(x)", "F.relu(y)", "-s", "x = torch.ones(9)", *QUICK]
    assert cli.main([*given, "--json", str(out)]) == 0
    assert "y = torch.relu(x); F.relu(y)" in capsys.readouterr().out
    measured = Measurement.from_dict(json.loads(out.read_text()))
    assert measured.device == "cpu"
    assert len(measured.seconds) == 3
    assert measured.placement.requested == "auto"


def test_json_takes_the_place_of_the_text(capsys):
    assert cli.main(["time", "1 + 1", *QUICK, "--json", "-"]) == 0
    assert Measurement.from_dict(json.loads(capsys.readouterr().out)).name == "1 + 1"


def test_a_statement_comes_from_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("total = 0\nfor n in numbers:\n    total += n\n"))
    assert cli.main(["time", "-", "-s", "numbers = range(9)", *QUICK, "--json", "-"]) == 0
    assert "for n in numbers:" in json.loads(capsys.readouterr().out)["name"]


def test_the_setup_imports_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "cli_test_imported.py").write_text("value = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    assert cli.main(["time", "value + 1", "-s", "from cli_test_imported import *", *QUICK]) == 0


def test_setup_and_statement_know_the_device():
    given = ["-s", "x = torch.ones(1); assert x.device == device", "--before", "assert device"]
    assert cli.main(["time", "assert x.device == device", *given, *QUICK]) == 0


@pytest.mark.parametrize(
    "command",
    [
        ["time", "x + 1"],
        ["compare", "x + 1", "x + 2"],
        ["diagnose", "x + 1"],
        ["sweep", "x + n", "--axis", "n=1,2"],
    ],
)
def test_a_gpu_that_nobody_named_is_named(monkeypatch, capsys, command):
    def resolve(given):  # the GPU takes no part, since there are no tensors
        return torch.device(given or "cuda:3")

    def diagnose(fn, *, device, again, **options):
        return convtime.diagnose(fn, device="cpu", **options)

    monkeypatch.setattr("convtime.cli.snippet.resolve_device", resolve)
    monkeypatch.setattr("convtime.cli.sweep.resolve_device", resolve)
    monkeypatch.setattr("convtime.cli.diagnose.diagnose", diagnose)
    quick = ["--budget", "0.01"]
    assert cli.main([*command, "-s", "x = 1", *quick]) == 0
    assert "--device" in (last := capsys.readouterr().out.splitlines()[-1])
    assert "cuda:3" in last
    assert cli.main([*command, "-s", "x = 1", *quick, "--device", "cpu"]) == 0
    assert "cuda" not in capsys.readouterr().out
    if command[0] == "time":
        assert cli.main(["time", "1 + 1", *quick]) == 0
        assert "cuda" not in capsys.readouterr().out


@pytest.mark.cuda
def test_tensors_of_the_setup_are_placed(capsys):
    given = ["time", "torch.relu(x)", "-s", "x = torch.randn(1 << 20)", "--budget", "0.1"]
    assert cli.main([*given, "--json", "-"]) == 0
    measured = Measurement.from_dict(json.loads(capsys.readouterr().out))
    assert measured.device.startswith("cuda")
    assert (measured.method, measured.placement) == ("kernel", "random")
    assert measured.placements > 4


def test_log_goes_to_standard_error(capsys):
    assert cli.main(["time", "1", *QUICK, "--log"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("batch ")
    assert "batch " not in captured.out.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["time"], "the following arguments are required: STATEMENT"),
        (["time", "1 +", *QUICK], "the statement is not valid Python (invalid syntax): 1 +"),
        (["time", "x", *QUICK], "line 1 of the statement raised NameError: name 'x' is not"),
        (["time", "1", "-s", "1", "-s", "1/0", *QUICK], "line 2 of the setup raised ZeroDivision"),
        (["time", "1", "--before", "y", *QUICK], "line 1 of --before raised NameError"),
        (["time", "1", "--stop", "verdict", *CPU], "stop='verdict' needs something to compare"),
        (["time", "1", "--method", "kernel", *CPU], "method"),
        (["time", "1", "--timeout", "0", *CPU], "timeout must be a positive number"),
        (["time", "1", "--device", "gpu"], "device must be cpu, cuda or cuda:N, got 'gpu'"),
        (["time", "1", "--json", "none/out.json", *CPU], "none/out.json: cannot be written"),
        (["time", "1", "--flops", "-1", *CPU], "flops must be a positive number"),
        (["time", "1", "--margin", "1"], "unrecognized arguments: --margin"),
        (["compare", *CPU], "there is nothing to time; give statements, or --named"),
        (["compare", "1", "1", *CPU], "'1' is given more than once; give each a name"),
        (["compare", "-n", "1", *CPU], "--named must be NAME=STATEMENT, got '1'"),
        (["compare", "-n", "=1", *CPU], "--named must be NAME=STATEMENT, got '=1'"),
        (["compare", "1", "--baseline", "2", *CPU], "--baseline must be one of '1', got '2'"),
        (["compare", "-n", "a=1", "-n", "b=c", *QUICK], "line 1 of statement 'b' raised NameError"),
        (["compare", "1", "2", "--margin", "-1", *CPU], "margin must be"),
        (["compare", "1", "--fail-on", "other", *CPU], "--fail-on: got 'other', but it must be"),
        (["compare", "1", "--fail-on", "missing", *CPU], "--fail-on: got 'missing', but it must"),
        (["compare", "1", "--uncertain", "256", *CPU], "got '256', but it must be a whole number"),
    ],
)
def test_bad_input_is_one_sentence(capsys, arguments, says):
    assert cli.main(arguments) == 2
    assert says in error_of(capsys)


def test_compare_names_statements_and_judges_them(tmp_path, capsys):
    out = tmp_path / "out.json"
    given = ["compare", "torch.relu(x)", "-n", "clamp=torch.clamp(x, min=0)", "-n", "neg=-x"]
    given += ["-s", "x = torch.randn(99)", "--fail-on", "different", "--json", str(out), *QUICK]
    assert cli.main([*given, "--baseline", "clamp", "--no-interference"]) == 1
    shown = capsys.readouterr().out
    assert "torch.relu(x)" in shown
    assert shown.splitlines()[-1] == "exits with 1: neg (different)"
    compared = Comparison.from_dict(json.loads(out.read_text()))
    assert list(compared.measurements) == ["torch.relu(x)", "clamp", "neg"]
    assert compared.baseline == "clamp"
    assert {name: found.same for name, found in compared.same_results.items()} == {
        "torch.relu(x)": True,
        "neg": False,
    }


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
def test_compare_exits_as_it_is_told(monkeypatch, capsys, slower, same, options, code):

    def judged(candidates, **options):
        found = convtime.compare(candidates, **options)
        measured = {
            name: changed(each, seconds=(seconds,) * 20, batches=(), between_runs=0.0)
            for (name, each), seconds in zip(found.measurements.items(), (1.0, slower), strict=True)
        }
        agreement = Agreement(same, "told by a test")
        return dataclasses.replace(found, measurements=measured, same_results={"2": agreement})

    monkeypatch.setattr(compare_command, "compare", judged)
    assert cli.main(["compare", "1", "2", *QUICK, *options]) == code
    assert ("exits with 1: 2 (" in capsys.readouterr().out) is (code == 1)


def test_nothing_is_compared_that_is_not_asked_for(monkeypatch):
    seen = {}

    def watched(candidates, **options):
        seen.update(options)
        return convtime.compare(candidates, **options)

    monkeypatch.setattr(compare_command, "compare", watched)
    given = ["compare", "1", "2", "--check", "none", "--control", "--no-interference", *QUICK]
    assert cli.main(given) == 0
    assert seen["check"] is None
    assert seen["control"] is True
    assert seen["interference"] is False
