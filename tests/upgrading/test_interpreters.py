import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from convtime.core.errors import InputError
from convtime.upgrading.interpreters import KEPT_MEMORY, FailedError, Side
from tests.helpers.waiting import wait_until

PYTHON = sys.executable


def script(folder: Path, *lines: str) -> str:
    path = folder / "python"
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def program_that_answers(folder: Path, *answers: str) -> list[str]:
    """A program that sends expressions of Python as its answers."""
    path = folder / "program.py"
    sent = "".join(f"parent.send_bytes(json.dumps({answer}).encode())\n" for answer in answers)
    path.write_text(f"import json, os, time\nos.write(1, b'\\377')\n{sent}time.sleep(60)\n")
    return [str(path)]


def test_a_process_that_cannot_load_or_continue_is_ended(tmp_path):
    program = program_that_answers(tmp_path, "{}", "{'unusable': 'no model', 'broken': True}")
    with Side("old", PYTHON, program, {}) as side:
        with pytest.raises(InputError, match="no model"):
            side.load()
        assert side.pid is None
        side.await_start()
        with pytest.raises(FailedError, match="no model"):
            side.ask("facts")
        assert side.pid is None


def test_a_program_that_is_no_interpreter_is_said_to_be_none():
    with (
        Side("new", "/bin/true", [], {}) as side,
        pytest.raises(InputError, match="exit code 0; it is perhaps not a Python interpreter"),
    ):
        side.load()


def test_a_script_that_starts_the_interpreter_as_its_child_leaves_no_process(tmp_path):
    python = script(tmp_path, f'"{sys.executable}" "$@"')
    with Side("old", python, program_that_answers(tmp_path, "{'pid': os.getpid()}"), {}) as side:
        side.await_start()
        child = side.environment["pid"]
        assert child != side.pid
    wait_until(lambda: not Path(f"/proc/{child}").exists())


def test_plans_of_a_question_are_those_that_are_logged_until_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = "CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR : {}_eng0, numeric_notes:[] behavior_notes:[] "
    with Side("new", PYTHON, [], {}) as side:

        def ask(_do: str, tags: list[str]) -> dict[str, Any]:
            with side._plan_log.open("a") as file:
                file.writelines(plan.format(tag) + "workSpaceSize: 0\n" for tag in tags)
            return {}

        with monkeypatch.context() as patch:  # on a CPU, nothing is logged
            patch.setattr(side, "ask", lambda _do: {})
            assert side.ask_with_plans("facts") == ({}, "")
        monkeypatch.setattr(side, "ask", ask)
        for tags in (["ConvFwd"], ["ConvBwdData", "ConvBwdFilter"], [], ["ConvFwd"]):
            told = ", ".join(f"{tag}_eng0" for tag in tags)
            assert side.ask_with_plans("facts", tags=tags) == ({}, told)


def test_processes_keep_the_pages_of_freed_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEPT_MEMORY:  # as Dask sets it for the processes that it starts
        monkeypatch.delenv(name, raising=False)
    with Side("old", PYTHON, program_that_answers(tmp_path, *["dict(os.environ)"] * 2), {}) as side:
        side.load()
    assert {name: side.environment[name] for name in KEPT_MEMORY} == KEPT_MEMORY
