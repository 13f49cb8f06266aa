"""The command line, in this process and in one of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ON_CPU = ("--device", "cpu")
#: The type of pytest's fixture ``capsys``.
Capture = pytest.CaptureFixture[str]
#: Options with which statements are timed in milliseconds.
COUNTED = (*ON_CPU, "--stop", "count", "--max-samples", "3", "--min-samples", "3", "--warmup", "1")
#: The same for layers, which have a budget only.
BRIEF = (*ON_CPU, "--budget", "0.02")


def error_of(capsys: Capture, *, printed: bool = False) -> str:
    """Return the error of the last command, which is one line.

    Args:
        capsys: pytest's fixture.
        printed: whether the command also printed something.
    """
    captured = capsys.readouterr()
    assert bool(captured.out) == printed
    return only_line(captured.err)


def only_line(stderr: str) -> str:
    """Return the error in the only line of a standard error."""
    assert stderr.startswith("convtime: error: ")
    assert stderr.endswith("\n")
    assert stderr.count("\n") == 1
    return stderr.removeprefix("convtime: error: ").rstrip("\n")


def process(
    *arguments: str | Path, shell: str = '"$@"', **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own.

    Args:
        arguments: its arguments.
        shell: how bash runs it, e.g. with redirections.
        options: further options of ``subprocess.run``.
    """
    command: Sequence[str | Path] = [sys.executable, "-m", "convtime", *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run(
        ["bash", "-c", shell, "-", *command], text=True, timeout=120, **streams | options
    )
