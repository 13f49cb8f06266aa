"""`convtime conv`: layers of files, models and problems, and what it prints and writes of them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
import torch

from convtime import cli
from convtime.timing.verdict import Ratio
from tests.cli.conftest import Judged
from tests.helpers.commands import BRIEF, ON_CPU, Capture

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
    assert [first[name] for name in ("layer", "n", "c", "w", "k", "h")] == ["one", *"2394", ""]


def test_forward_alone_in_another_form(capsys: Capture, model: list[str], judged: Judged) -> None:
    judged()
    form = ["--dtype", "bfloat16", "--layout", "nhwc", "--no-backward"]
    assert cli.main(["conv", *model, *form, *ON_CPU, "--json", "o.json"]) == 0
    rows = json.loads(Path("o.json").read_text())["rows"]
    found = [(row["dtype"], row["layout"], row["pass_name"]) for row in rows]
    assert found == [("bfloat16", "nhwc", "forward")] * 2
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


def test_what_is_slower_or_different_is_printed_with_its_command(
    capsys: Capture, judged: Judged
) -> None:
    asked = judged(ratio=Ratio(1.2, 1.1, 1.3), bit_identical=False)
    assert cli.main(["conv", SMALL, "--backward", *BRIEF, "--fail-on", "different"]) == 1
    shown = capsys.readouterr().out
    commands = re.findall(r"^(problem 1.*) \(slower, different\): convtime (.*)$", shown, re.M)
    assert [title for title, _ in commands] == ["problem 1", "problem 1 backward"]
    for _, command in commands:  # what is printed can be pasted
        assert cli.main([*command.split(), *BRIEF]) == 0
    assert {*asked} == {asked[0]}


@pytest.mark.parametrize(
    ("low", "identical", "arguments", "code"),
    [
        (1.05, True, [], 0),
        (1.05, True, ["--fail-on", "faster"], 0),
        (0.9, True, ["--fail-on", "slower", "--uncertain", "75"], 75),
        (0.9, True, ["--fail-on", "slower,uncertain"], 1),
        (1.05, False, ["--fail-on", "different"], 1),
    ],
)
def test_the_exit_code_is_that_of_the_findings(
    capsys: Capture,
    layers_csv: Path,
    judged: Judged,
    low: float,
    identical: bool,
    arguments: list[str],
    code: int,
) -> None:
    judged({"ratio": Ratio(1.1, low, 1.2), "bit_identical": identical})
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
