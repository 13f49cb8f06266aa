"""`convtime time`: statements on the command line, and what they can use."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import convtime
from convtime import Measurement, cli
from tests.helpers.commands import COUNTED, ON_CPU, Capture


def test_time_prints_a_result_and_writes_it(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out.json"
    given = ["time", "y = torch.relu(x)", "F.relu(y)", "-s", "x = torch.ones(9)", *COUNTED]
    assert cli.main([*given, "--json", str(out), "--log"]) == 0
    captured = capsys.readouterr()
    assert "y = torch.relu(x); F.relu(y)" in captured.out
    assert captured.err.startswith("batch ")
    measured = Measurement.from_dict(json.loads(out.read_text()))
    assert (measured.device, len(measured.seconds)) == ("cpu", 3)
    assert measured.placement.requested == "auto"
    assert cli.main([*given, "--json", "-", "--name", "mine", "--flops", "9"]) == 0
    measured = Measurement.from_dict(json.loads(capsys.readouterr().out))
    assert (measured.name, measured.flops) == ("mine", 9)


def test_a_statement_comes_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("total = 0\nfor n in numbers:\n    total += n\n"))
    assert cli.main(["time", "-", "-s", "numbers = range(9)", *COUNTED, "--json", "-"]) == 0
    assert "for n in numbers:" in json.loads(capsys.readouterr().out)["name"]


def test_the_setup_knows_the_working_directory_and_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cli_test_imported.py").write_text("value = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    setup = "from cli_test_imported import *; x = torch.ones(value); assert x.device == device"
    given = ["-s", setup, "--before", "assert device"]
    assert cli.main(["time", "assert x.device == device", *given, *COUNTED]) == 0


@pytest.mark.parametrize(
    "command",
    [
        ["time", "x + 1"],
        ["compare", "x + 1", "x + 2"],
        ["diagnose", "x + 1"],
        ["sweep", "x + n", "--axis", "n=1,2"],
    ],
)
def test_a_gpu_that_nobody_named_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, command: list[str]
) -> None:
    def diagnose(fn: Any, *, device: Any, again: Any, **options: Any) -> object:
        return convtime.diagnose(fn, device="cpu", **options)

    for module in ("snippet", "sweep"):  # the GPU takes no part: there are no tensors
        name = f"convtime.cli.{module}.resolve_device"
        monkeypatch.setattr(name, lambda given: torch.device(given or "cuda:3"))
    monkeypatch.setattr("convtime.cli.diagnose.diagnose", diagnose)
    quick = ["--budget", "0.01"]
    assert cli.main([*command, "-s", "x = 1", *quick]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "--device" in last
    assert "cuda:3" in last
    without_setup = [["time", "1 + 1", *quick]] if command[0] == "time" else []
    for given in ([*command, "-s", "x = 1", *quick, *ON_CPU], *without_setup):
        assert cli.main(given) == 0
        assert "cuda" not in capsys.readouterr().out


@pytest.mark.cuda
def test_tensors_of_the_setup_are_placed(capsys: Capture) -> None:
    given = ["time", "torch.relu(x)", "-s", "x = torch.randn(1 << 20)", "--budget", "0.1"]
    assert cli.main([*given, "--json", "-"]) == 0
    measured = Measurement.from_dict(json.loads(capsys.readouterr().out))
    assert measured.device.startswith("cuda")
    assert (measured.method, measured.placement) == ("kernel", "random")
    assert measured.placements > 4
