"""`convtime conv` on problems in one line each, and the lines that it prints to run a row again."""

import dataclasses
import json
import re

import pytest

from convtime import cli
from convtime.cli import conv as conv_command
from convtime.conv.compare import compare_layers
from convtime.timing.verdict import Ratio

SMALL = "conv2d:n2c3h8w8k4r3s3p1"
QUICK = ["--device", "cpu", "--budget", "0.02"]


def test_problems_say_their_dtype_and_layout_or_take_the_options(capsys):
    given = [SMALL, f"{SMALL}:bfloat16:nhwc", "conv_transpose1d:n2c4w9k2s2stride2:bias"]
    assert cli.main(["conv", *given, *QUICK, "--layout", "nhwc", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["layer"]["names"], row["dtype"], row["layout"]) for row in rows] == [
        (["problem 1"], "float32", "nhwc"),
        (["problem 2"], "bfloat16", "nhwc"),
        (["problem 3"], "float32", "nhwc"),
    ]
    assert [row["reproducer"] for row in rows] == [
        f"convtime conv {given[0]}:float32:nhwc",
        f"convtime conv {given[1]}",
        f"convtime conv {given[2]}:float32:nhwc",
    ]


def test_batch_takes_the_place_of_a_problems_own(monkeypatch):
    seen = []

    def stop(layers, **options):
        seen.extend(layers)
        raise KeyboardInterrupt

    monkeypatch.setattr(conv_command, "compare_layers", stop)
    assert cli.main(["conv", SMALL, "--batch", "7", *QUICK]) == 130
    assert [layer.problem.batch for layer in seen] == [7]


@pytest.mark.parametrize(
    ("ratio", "changes", "why"),
    [
        ((1.2, 1.1, 1.3), {}, "slower"),
        ((1.0, 1.0, 1.0), {"bit_identical": False, "pytorch_repeats": True}, "different"),
        ((1.2, 1.1, 1.3), {"bit_identical": False, "pytorch_repeats": True}, "slower, different"),
        ((1.0, 1.0, 1.0), {"bit_identical": False, "pytorch_repeats": False}, ""),
        ((0.8, 0.7, 0.9), {}, ""),
    ],
)
def test_what_is_slower_or_different_is_printed_with_its_command(
    monkeypatch, capsys, ratio, changes, why
):
    def judged(layers, **options):
        for result in compare_layers(layers, **options):
            yield dataclasses.replace(result, ratio=Ratio(*ratio), **changes)

    monkeypatch.setattr(conv_command, "compare_layers", judged)
    assert cli.main(["conv", SMALL, "--backward", *QUICK]) == 0
    shown = capsys.readouterr().out
    commands = re.findall(r"^problem 1( backward)? \((.*)\): convtime (.*)$", shown, re.MULTILINE)
    if not why:
        assert not commands
        assert "convtime conv " not in shown
        return
    assert [(title, told) for title, told, _ in commands] == [("", why), (" backward", why)]
    for _, _, command in commands:  # what is printed can be pasted
        assert cli.main([*command.split(), *QUICK]) == 0
