"""What commands write: to files, to the terminal, and where neither can be written."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import pty
import struct
import sys
import termios
from pathlib import Path

import pytest

from convtime import cli
from tests.cli.conftest import Judged
from tests.helpers.commands import BRIEF, COUNTED, ON_CPU, Capture, error_of, only_line, process


@pytest.fixture
def conv(layers_csv: Path, judged: Judged) -> list[str]:
    """A command that prints a table of two layers by hand."""
    judged()
    return ["conv", "--layers", str(layers_csv), *ON_CPU]


def test_a_terminal_without_the_characters_is_no_error(
    conv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii", write_through=True))
    assert cli.main(conv) == 0
    assert b"\\xd7" in written.getvalue()  # ×


def test_a_table_is_printed_instead_of_the_text(
    conv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*conv, "--csv", "-"]) == 0
    rows = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert len(rows) == 2
    assert not Path("-").exists()


def test_progress_bar_on_a_terminal(conv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 80, 0, 0))
    os.set_blocking(terminal, False)
    with os.fdopen(end, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert cli.main(conv) == 0
        shown = os.read(terminal, 100_000).decode()
    os.close(terminal)
    assert "\r" in shown
    assert "pass" in shown


def test_an_output_never_takes_the_place_of_an_input(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    source = "import torch\ndef net():\n    return torch.nn.Conv2d(3, 4, 3)\n"
    model = ["--model", "cli_test_source:net", "--input", "1,3,8,8", *ON_CPU]
    for arguments, file, said in (
        (["conv", "--layers", "l.csv", "--json"], "l.csv", "--layers and --json must name diff"),
        (["conv", *model, "--csv"], "cli_test_source.py", "is the source of --model"),
        (["show", "a.csv", "--markdown"], "a.csv", "FILE and --markdown must name different"),
        (["compare", "a.csv", "b.csv", "--markdown"], "b.csv", "AFTER and --markdown must name"),
        (["diagnose", "1", "--against", "a", "--json"], "a", "--against and --json must name"),
    ):
        Path(file).write_text(source)
        assert cli.main([*arguments, file]) == 2
        assert said in error_of(capsys)
        assert Path(file).read_text() == source


def test_a_file_that_cannot_be_written_after_all_costs_neither_the_table_nor_another(
    tmp_path: Path, capsys: Capture, conv: list[str]
) -> None:
    out = tmp_path / "a.csv"
    assert cli.main([*conv, "--json", "/dev/full", "--csv", str(out)]) == 2
    captured = capsys.readouterr()
    assert "/dev/full: cannot be written (No space left on" in only_line(captured.err)
    assert "2 distinct layers" in captured.out
    assert [row["layer"] for row in csv.DictReader(out.open())] == ["line 2", "line 3"]


def test_every_output_that_fails_is_told(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    with open("/dev/full", "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert cli.main(["time", "abs(-1)", *COUNTED, "--json", str(full)]) == 2
    why = "cannot be written (No space left on device)"
    assert error_of(capsys).split("; ") == [f"{full}: {why}", f"standard output {why}"]


# Processes


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("redirection", "command", "code", "said"),
    [
        (">/dev/full", "doctor --config", 2, "standard output cannot be written (No space"),
        (">&-", "doctor --config", 0, ""),
        ("2>/dev/full", "no-command", 2, ""),
        ("2>&-", "no-command", 2, ""),
    ],
)
def test_a_standard_stream_that_cannot_be_written_is_no_traceback(
    redirection: str, command: str, code: int, said: str
) -> None:
    done = process(*command.split(), shell=f'"$@" {redirection}')
    assert (done.returncode, done.stdout) == (code, "")
    assert said in (only_line(done.stderr) if said else done.stderr)
    assert bool(said) == bool(done.stderr)


@pytest.mark.thorough
def test_a_file_that_is_standard_output_gets_the_table_too_without_a_standard_error(
    tmp_path: Path, layers_csv: Path
) -> None:
    arguments: list[str | Path] = ["conv", "--layers", layers_csv, *BRIEF, "--csv", "/dev/stdout"]
    with (tmp_path / "out").open("w") as file:
        process(*arguments, shell='"$@" 2>&-', stdout=file, check=True)
    lines = (tmp_path / "out").read_text().splitlines()
    assert sum(line.startswith("layer,count,") for line in lines) == 1
    assert sum(line.startswith("line 2 ") for line in lines) == 1
    assert lines[-1].startswith("2 distinct layers, 2 bit-identical; ")
    done = process("conv", "--layers", layers_csv, *BRIEF)
    assert done.stderr == ""
    assert "\r" not in done.stdout


@pytest.mark.thorough
def test_a_reader_that_goes_away_costs_no_file(tmp_path: Path, layers_csv: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    out = tmp_path / "out"
    done = process("conv", "--layers", layers_csv, "--json", out, *BRIEF, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(out.read_text())["rows"]) == 2
