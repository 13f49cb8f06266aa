"""`convtime conv`: layers of files, models and problems, and what it prints and writes of them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from convtime import cli
from convtime.timing.verdict import Ratio
from tests.cli.conftest import Judged
from tests.helpers.commands import BRIEF, ON_CPU, Capture, error_of

SMALL = "conv2d:n2c3h8w8k4r3s3p1"
MODEL = """\
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv1d(3, 4, 3), nn.ConvTranspose1d(4, 2, 2, stride=2)
        self.idle = nn.Conv1d(3, 4, 3)

    def forward(self, x):
        return self.two(self.one(x)), self.idle(x[:0])
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that name a model of the working directory."""
    (tmp_path / "cli_test_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return ["--model", "cli_test_model:Net", "--input", "2,3,9"]


def test_a_models_layers_and_its_training_step(
    tmp_path: Path, capsys: Capture, model: list[str], device: torch.device
) -> None:
    outputs = ["--json", "o.json", "--csv", "o.csv"]
    budget = ["--device", device.type, "--budget", "0.02"]
    assert cli.main(["conv", *model, *budget, *outputs]) == 0
    document = json.loads((tmp_path / "o.json").read_text())
    assert set(document) == {"type", "schema", "rows", "provenance", "step", "empty"}
    assert document["provenance"]["torch"] == torch.__version__
    found = [(row["layer"]["names"][0], row["pass_name"]) for row in document["rows"]]
    assert found == [(name, which) for name in ("one", "two") for which in ("forward", "backward")]
    assert all(row["bit_identical"] for row in document["rows"])
    assert document["step"]["model"] == "cli_test_model:Net"
    assert document["empty"] == ["idle"]
    shown = capsys.readouterr().out
    said = "one backward, the same in PyTorch and in convtime:" in shown
    assert said == (device.type == "cuda")
    assert "2 distinct layers in 4 passes, 4 bit-identical" in shown
    assert "not timed (called on an empty input): idle" in shown
    assert shown.splitlines()[-1].startswith("a training step of cli_test_model:Net on 2×3×9: ")
    first, *_ = csv.DictReader((tmp_path / "o.csv").open())
    assert {
        "layer": "one",
        "n": "2",
        "c": "3",
        "w": "9",
        "k": "4",
        "h": "",
    }.items() <= first.items()


def test_forward_alone_in_another_form_with_a_plot(
    tmp_path: Path, capsys: Capture, model: list[str], judged: Judged
) -> None:
    pytest.importorskip("vl_convert")
    judged()
    form = ["--dtype", "bfloat16", "--layout", "nhwc", "--no-backward"]
    outputs = ["--json", "o.json", "--plot", "o.png"]
    assert cli.main(["conv", *model, *form, *ON_CPU, *outputs]) == 0
    rows = json.loads((tmp_path / "o.json").read_text())["rows"]
    assert [(row["dtype"], row["layout"], row["pass_name"]) for row in rows] == [
        ("bfloat16", "nhwc", "forward")
    ] * 2
    assert (tmp_path / "o.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "bfloat16, nhwc" in shown
    assert "training step" not in shown


def test_problems_have_a_form_or_take_that_of_the_options(capsys: Capture, judged: Judged) -> None:
    judged()
    given = [SMALL, f"{SMALL}:bfloat16:nhwc", "conv_transpose1d:n2c4w9k2s2stride2:bias"]
    assert cli.main(["conv", *given, *BRIEF, "--layout", "nhwc", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["layer"]["names"], row["reproducer"]) for row in rows] == [
        (["problem 1"], f"convtime conv {given[0]}:float32:nhwc"),
        (["problem 2"], f"convtime conv {given[1]}"),
        (["problem 3"], f"convtime conv {given[2]}:float32:nhwc"),
    ]


@pytest.mark.parametrize(
    ("arguments", "layers", "batch"),
    [
        ([], 23, 1),
        (["--batch", "5"], 23, 5),
        ([SMALL, "--batch", "7"], 1, 7),
        pytest.param(["--device", "cuda"], 23, 32, marks=pytest.mark.cuda),
    ],
)
def test_resnet50_is_the_default_and_batch_takes_the_place_of_a_problems_own(
    judged: Judged, arguments: list[str], layers: int, batch: int
) -> None:
    asked = judged()
    assert cli.main(["conv", *ON_CPU, *arguments]) == 0
    assert len(asked) == layers
    assert {layer.problem.batch for layer in asked} == {batch}


@pytest.mark.parametrize(
    ("ratio", "changes", "why"),
    [
        ((1.2, 1.1, 1.3), {}, "slower"),
        ((1.0, 1.0, 1.0), {"bit_identical": False}, "different"),
        ((1.2, 1.1, 1.3), {"bit_identical": False}, "slower, different"),
        ((1.0, 1.0, 1.0), {"bit_identical": False, "pytorch_repeats": False}, ""),
        ((0.8, 0.7, 0.9), {}, ""),
    ],
)
def test_what_is_slower_or_different_is_printed_with_its_command(
    capsys: Capture,
    judged: Judged,
    ratio: tuple[float, float, float],
    changes: dict[str, Any],
    why: str,
) -> None:
    asked = judged(ratio=Ratio(*ratio), **changes)
    assert cli.main(["conv", SMALL, "--backward", *BRIEF]) == 0
    shown = capsys.readouterr().out
    commands = re.findall(r"^problem 1( backward)? \((.*)\): convtime (.*)$", shown, re.MULTILINE)
    expected = [("", why), (" backward", why)] if why else []
    assert [(title, told) for title, told, _ in commands] == expected
    assert ("convtime conv " in shown) == bool(why)
    fails = ["--fail-on", "different"]
    assert cli.main(["conv", SMALL, *BRIEF, *fails]) == ("different" in why)
    for _, _, command in commands:  # what is printed can be pasted
        assert cli.main([*command.split(), *BRIEF]) == 0
    assert {*asked} == {asked[0]}


@pytest.mark.parametrize(
    ("ratio", "identical", "arguments", "code"),
    [
        ((1.1, 1.05, 1.2), True, [], 0),
        ((1.1, 1.05, 1.2), True, ["--fail-on", "slower"], 1),
        ((1.1, 1.05, 1.2), True, ["--fail-on", "faster"], 0),
        ((1.1, 0.9, 1.2), True, ["--fail-on", "slower", "--uncertain", "75"], 75),
        ((1.1, 0.9, 1.2), True, ["--fail-on", "slower,uncertain"], 1),
        ((1.0, 1.0, 1.0), False, ["--fail-on", "different"], 1),
        ((1.0, 1.0, 1.0), False, ["--fail-on", "slower", "--uncertain", "75"], 0),
    ],
)
def test_the_exit_code_is_that_of_the_findings(
    capsys: Capture,
    layers_csv: Path,
    judged: Judged,
    ratio: tuple[float, float, float],
    identical: bool,
    arguments: list[str],
    code: int,
) -> None:
    judged({"ratio": Ratio(*ratio), "bit_identical": identical})
    assert cli.main(["conv", "--layers", str(layers_csv), *ON_CPU, *arguments]) == code
    shown = capsys.readouterr().out
    assert (f"exits with {code}: line 2 (" in shown) == (code != 0)
    assert "line 3 (" not in shown


def test_a_layer_that_fails_midway_writes_nothing(
    tmp_path: Path, capsys: Capture, layers_csv: Path
) -> None:
    layers_csv.write_text(layers_csv.read_text().replace("9,9,4,2,6,1", f"9,9,4,{2**31 - 1},6,1"))
    out = tmp_path / "out.json"
    out.write_text("old")
    assert cli.main(["conv", "--layers", str(layers_csv), *BRIEF, "--json", str(out)]) == 2
    captured = capsys.readouterr()
    assert "layer line 3" in captured.err
    assert "\nline 2 " in captured.out
    assert "distinct layers" not in captured.out
    assert out.read_text() == "old"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["stray"], "problem 'stray': it must begin with one of conv1d, conv2d"),
        (["conv1d:n0c2w9k4s3"], "batch is 0, but must be between 1"),
        (["--batch", "0"], "--batch: got '0', but it must be a whole number from 1"),
        (["--dtype", "int8"], "--dtype: invalid choice: 'int8'"),
        (["--device", "gpu"], "device must be cpu, cuda or cuda:N, got 'gpu'"),
        (["--device", "cuda"], "device 'cuda' is not available"),
        (["--layers", "none.csv"], "none.csv: cannot be read"),
        (["--layers", "/dev/zero"], "/dev/zero: cannot be read, since it is not a"),
        (["--layers", "loop"], "loop: cannot be read (Too many levels of symbolic"),
        (["--layers", "\x1b[31m\n.csv"], "\\x1b[31m .csv: cannot be read"),
        (["--layers", "layers.csv"], "layers.csv, line 3: column k is 'x'"),
        (["--layers", "a.csv", "--model", "b:c"], "not allowed with argument"),
        (["--model", "b:c"], "--model needs --input"),
        (["--input", "1,2"], "--input requires --model"),
        (["--model", "b:c", "--input", "1,2", "--batch", "3"], "--batch must not be used"),
        (["--model", "b:c", "--input", "1,2"], "module 'b' was not found"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_timed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    layers_csv: Path,
    judged: Judged,
    arguments: list[str],
    says: str,
) -> None:
    asked = judged()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "loop").symlink_to("loop")
    layers_csv.write_text(layers_csv.read_text().replace("2,6,1", "2,x,1"))
    assert cli.main(["conv", *ON_CPU, *arguments]) == 2
    assert says in error_of(capsys)
    assert asked == []
