"""Ctrl-C while the command starts, and while it runs."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from convtime.core import interrupts
from tests.helpers.waiting import wait_until

INTERRUPTED = """
import contextlib, os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background

class InterruptedImport:
    def find_spec(self, name, *_):
        if name == {name!r}:
            with contextlib.suppress({swallowed}):
                os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, InterruptedImport())
"""
SCRIPT = "import sys\nfrom convtime.cli import main\nsys.exit(main())\n"
SLOW = """\
import pathlib, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
def net():
    pathlib.Path("started").touch()
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("arguments", "original", "expected"),
    [
        (["/usr/bin/convtime", "conv"], ["python", "/usr/bin/convtime", "conv"], True),
        (["-m", "conv"], ["python", "-m", "convtime", "conv"], True),
        (["-m", "convtime"], ["python", "-m", "other", "convtime"], False),
        (["/usr/bin/other", "convtime"], ["python", "/usr/bin/other", "convtime"], False),
        ([], ["python"], False),
    ],
)
def test_a_process_is_the_command_or_another_program(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], original: list[str], expected: bool
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr(sys, "orig_argv", original)
    assert interrupts.is_command() == expected


def test_only_the_usual_handler_is_replaced_and_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        for handler, is_replaced in ((signal.default_int_handler, True), (signal.SIG_IGN, False)):
            signal.signal(signal.SIGINT, handler)
            interrupts.exit_on_interrupt()
            assert (signal.getsignal(signal.SIGINT) is not handler) == is_replaced
            interrupts.raise_on_interrupt()
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def with_path(folder: Path) -> dict[str, Any]:
    path = os.pathsep.join([str(folder), *sys.path[1:]])
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120}
    return options | {"env": {**os.environ, "PYTHONPATH": path}}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("started_as", "name"),
    [("module", "torch"), ("module", "convtime.layers.compare"), ("script", "rich")],
)
def test_interrupt_of_the_imports_ends_the_command_and_no_other_program(
    tmp_path: Path, name: str, started_as: str
) -> None:
    """Libraries swallow an exception during their imports, or abort."""
    site = tmp_path / "sitecustomize.py"
    site.write_text(INTERRUPTED.format(name=name, swallowed="KeyboardInterrupt"))
    script = tmp_path / "convtime"
    script.write_text(SCRIPT)
    program = ["-m", "convtime"] if started_as == "module" else [script]
    done = subprocess.run([sys.executable, *program, "conv"], **with_path(tmp_path))
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "convtime: interrupted\n"
    site.write_text(INTERRUPTED.format(name="convtime.ops", swallowed=""))
    done = subprocess.run([sys.executable, "-c", "import convtime"], **with_path(tmp_path))
    assert done.stderr.endswith("\nKeyboardInterrupt\n")


@pytest.mark.thorough
def test_interrupt_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    out = tmp_path / "out.json"
    out.write_text("old")
    command = [sys.executable, "-m", "convtime", "conv", "--device", "cpu", "--model", "slow:net"]
    command += ["--input", "1,3,8,8", "--json", str(out)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)
    wait_until((tmp_path / "started").exists)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "convtime: interrupted\n")
    assert process.returncode == 130
    assert out.read_text() == "old"
    assert not list(tmp_path.glob(".*"))
