"""The command `convtime` as a whole: its help, its documentation and its errors."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import convtime
from convtime import cli
from convtime.cli import exit_codes
from tests.helpers import ROOT
from tests.helpers.commands import Capture, only_line, process


def test_version_configuration_and_help(capsys: Capture) -> None:
    for option, expected in (("--version", f"convtime {convtime.__version__}\n"), ("--help", "")):
        with pytest.raises(SystemExit) as stop:
            cli.main([option])
        assert stop.value.code == 0
        shown = capsys.readouterr().out
        assert shown == expected or not expected
    for code in exit_codes.MEANINGS:
        assert f"\n  {code} " in shown
    assert cli.main(["doctor", "--config"]) == 0
    assert torch.__version__ in capsys.readouterr().out


def test_commands_in_the_documentation_can_be_parsed() -> None:
    parser, commands = cli.make_parser(), 0
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")):
        blocks = re.findall(r"```bash\n(.*?)```", path.read_text(), re.DOTALL)
        for line in "".join(blocks).replace("\\\n", " ").splitlines():
            if command := re.search(r"(?:^|&& )convtime (.*)", line):
                words = shlex.split(command[1], comments=True)
                ends = itertools.takewhile(lambda word: word not in ("<", ">", "&&"), words)
                parser.parse_args([*ends])
                commands += 1
    assert commands > 30


def test_the_documentation_lists_the_exit_codes() -> None:
    text = (ROOT / "docs" / "reference" / "exit-codes.md").read_text().replace("`", "")
    for code, meaning in exit_codes.MEANINGS.items():
        told = meaning.replace("`", "").replace("--uncertain names", "--uncertain CODE names")
        assert f"| {code} | {told} |" in text


# Processes


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "code", "imports_torch"),
    [(["--help"], 0, False), (["tme"], 2, False), (["doctor", "--config"], 0, True)],
)
def test_only_commands_that_need_torch_import_it(
    tmp_path: Path, words: list[str], code: int, imports_torch: bool
) -> None:
    script = tmp_path / "convtime"
    script.write_text("import sys\nfrom convtime.cli import main\nsys.exit(main())\n")
    for program in (["-m", "convtime"], [script]):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", *program, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stderr
        imported = re.findall(r"\|\s+(\S+)$", done.stderr, re.MULTILINE)
        assert "argparse" in imported
        assert ("torch" in imported) == imports_torch


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["other", "other.convtime"])
def test_another_programs_import_registers_the_ops(tmp_path: Path, module: str) -> None:
    """Only the command itself does without the ops, not a program with a name like it."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text(
        "import convtime, torch\nprint(torch.ops.convtime.conv2d)\n"
    )
    for name in ("__main__", "convtime"):
        (tmp_path / "other" / f"{name}.py").touch()
    command = [sys.executable, "-m", module, "convtime"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path[1:]])}
    assert "convtime.conv2d" in subprocess.check_output(command, env=environment, text=True)


@pytest.mark.thorough
def test_statements_can_use_the_ops(tmp_path: Path) -> None:
    statement = "torch.ops.convtime.conv2d(x, x, None, [1, 1], [0, 0], [1, 1], 1)"
    setup = ["-s", "x = torch.ones(1, 1, 1, 1)", "--device", "cpu", "--budget", "0.01"]
    done = process("time", statement, *setup, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_error_of_a_process_is_a_code_and_a_line() -> None:
    done = process("conv", "--layers", "no.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be read" in only_line(done.stderr)
