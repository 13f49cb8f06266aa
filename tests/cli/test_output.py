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
    source = tmp_path / "cli_test_source.py"
    source.write_text("import torch\ndef net():\n    return torch.nn.Conv2d(3, 4, 3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = ["--model", "cli_test_source:net", "--input", "1,3,8,8", *ON_CPU]
    for arguments, file, said in (
        (["conv", "--layers", "l.csv", "--json"], "l.csv", "--layers and --json must name diff"),
        (["conv", *model, "--csv"], source.name, "is the source of --model"),
        (["show", "a.csv", "--markdown"], "a.csv", "FILE and --markdown must name different"),
        (["compare-files", "a", "b", "--json"], "b", "AFTER and --json must name different"),
        (["diagnose", "1", "--against", "a", "--json"], "a", "--against and --json must name"),
    ):
        content = source.read_text() if file == source.name else "own"
        Path(file).write_text(content)
        assert cli.main([*arguments, file]) == 2
        assert said in error_of(capsys)
        assert Path(file).read_text() == content


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        (["--json", "loop"], "loop: cannot be written"),
        (["--json", 300 * "a"], "(File name too long)"),
        (["--json", "none/out.json"], "none/out.json: cannot be written"),
        (["--csv", "."], "not a regular file"),
        (["--json", ""], "--json: got '', but it must be the name of a file"),
        (["--json", "out", "--csv", "./out"], "--json and --csv must name different files"),
        (["--plot", "out.xyz"], "name must end in one of .png, .svg, .pdf"),
        (["--json", "x.CSV"], "--json must not name a .csv file"),
    ],
)
def test_outputs_are_checked_before_anything_is_timed(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, outputs: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    for command in (["conv"], ["sweep", "n", "--axis", "n=1"]):
        assert cli.main([*command, *ON_CPU, *outputs]) == 2
        assert says in error_of(capsys)
    assert os.listdir(tmp_path) == ["loop"]


def test_two_outputs_are_not_both_printed(capsys: Capture) -> None:
    assert cli.main(["time", "1", *COUNTED, "--json", "-", "--markdown", "-"]) == 2
    assert "must not both be -" in error_of(capsys)


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
    assert error_of(capsys).split("; ") == [
        f"{full}: cannot be written (No space left on device)",
        "standard output cannot be written (No space left on device)",
    ]


# Processes


@pytest.mark.thorough
def test_a_pipe_gets_the_table_and_neither_a_progress_bar_nor_a_remark(
    tmp_path: Path, layers_csv: Path
) -> None:
    done = process("conv", "--layers", layers_csv, *BRIEF, "--csv", "a.csv", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\r" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("2 distinct layers, 2 bit-identical; ")
    assert sorted(os.listdir(tmp_path)) == ["a.csv", "layers.csv"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("redirection", "command", "code", "said"),
    [
        (">/dev/full", "config", 2, "standard output cannot be written (No space"),
        (">&-", "config", 0, ""),
        ("2>/dev/full", "no-command", 2, ""),
        ("2>&-", "no-command", 2, ""),
    ],
)
def test_a_standard_stream_that_cannot_be_written_is_no_traceback(
    redirection: str, command: str, code: int, said: str
) -> None:
    done = process(command, shell=f'"$@" {redirection}')
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


@pytest.mark.thorough
def test_a_reader_that_goes_away_costs_no_file(tmp_path: Path, layers_csv: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    arguments: list[str | Path] = [
        "conv",
        "--layers",
        layers_csv,
        "--json",
        tmp_path / "out",
        *BRIEF,
    ]
    done = process(*arguments, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads((tmp_path / "out").read_text())["rows"]) == 2
