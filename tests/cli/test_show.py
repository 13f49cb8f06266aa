"""`convtime show`: what commands and other tools have written."""

from __future__ import annotations

import json
from pathlib import Path

from convtime import Comparison, cli
from tests.cli.conftest import Judged
from tests.helpers.commands import COUNTED, ON_CPU, Capture


def test_show_says_what_the_command_said(tmp_path: Path, capsys: Capture) -> None:
    path = str(tmp_path / "a.json")
    for command in (["time", "1 + 1"], ["compare", "1 + 1", "-n", "<b>=2 + 2"]):
        assert cli.main([*command, *COUNTED, "--json", path]) == 0
        said = capsys.readouterr().out
        assert cli.main(["show", path]) == 0
        assert capsys.readouterr().out == said
    assert cli.main(["show", path, "--json", "-"]) == 0
    again = Comparison.from_dict(json.loads(capsys.readouterr().out))
    assert list(again.measurements) == ["1 + 1", "<b>"]
    assert cli.main(["show", path, "--verbose"]) == 0
    assert len(capsys.readouterr().out) > len(said)


def test_show_lists_the_layers_of_convolutions(
    tmp_path: Path, capsys: Capture, judged: Judged
) -> None:
    judged()
    path = str(tmp_path / "a.json")
    given = ["conv", "conv1d:n1c2w9k4s3", "--backward", *ON_CPU, "--json", path]
    assert cli.main(given) == 0
    capsys.readouterr()
    assert cli.main(["show", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [f"problem 1 {which}: " for which in ("forward", "backward") for _ in range(2)]
    for line, title in zip(lines, titles, strict=True):
        assert title in line
