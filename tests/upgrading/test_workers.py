import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from convtime.core.errors import InputError
from convtime.upgrading.workers import KEPT_MEMORY, FailedError, Side
from tests.helpers.waiting import wait_until

PYTHON = sys.executable


def program_that_prints(folder: Path, *lines: str) -> str:
    path = folder / "python"
    path.write_text("\n".join(["#!/bin/sh", *lines, "exec sleep 60\n"]))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_process_that_cannot_load_or_continue_is_ended_and_other_encodings_are_read(tmp_path):
    prints = [
        *("printf '\\377\\n'", "echo 'convtime: null'", "echo 'convtime: {}'"),
        """echo 'convtime: {"unusable": "no model", "broken": true}'""",
    ]
    with Side("old", program_that_prints(tmp_path, *prints), [], {}) as side:
        with pytest.raises(InputError, match="no model"):
            side.load()
        assert side._process is None
        side.await_start()
        with pytest.raises(FailedError, match="no model"):
            side.ask("facts")
        assert side._process is None


def test_a_program_that_is_no_interpreter_is_said_to_be_none():
    with (
        Side("new", "/bin/true", [], {}) as side,
        pytest.raises(InputError, match="exit code 0; it is perhaps not a Python interpreter"),
    ):
        side.load()


def test_reason_of_a_crash_is_what_python_or_pytest_says_of_it():
    crash = b"""earlier
ERROR: cache is stale
Fatal Python error: Aborted

  File "a.py", line 1 in forward

Extension modules: numpy (total: 1)
"""
    log = b"ValueError: too small\nERROR:2026-01-01 09:00:00 1:1 a.cpp:56] failed with code 35\n"
    usage = b"ERROR: not found: test_a\n(no name)\n"
    for do, written, said in (
        ("load_model", crash, " (Fatal Python error: Aborted)"),
        ("load_model", log, " (ValueError: too small)"),
        ("load_model", usage, " ((no name))"),
        ("load_tests", usage, " (ERROR: not found: test_a (no name))"),
    ):
        with Side("old", PYTHON, [], {"do": do}) as side:
            side._errors().write_bytes(written)
            assert side._last_error() == said
            side._told_bytes = len(written)  # all of it came before the last answer
            assert side._last_error() == ""


@pytest.mark.thorough  # which takes seconds to start
def test_a_script_that_starts_the_interpreter_as_its_child_leaves_no_process(tmp_path):
    script = program_that_prints(tmp_path, f'"{sys.executable}" "$@"')
    program = tmp_path / "program.py"
    said = """print('convtime: {"pid": %d}' % os.getpid(), flush=True)"""
    program.write_text(f"import os, time\n{said}\ntime.sleep(60)\n")
    with Side("old", script, [str(program)], {}) as side:
        side.begin()
        child = side._receive(30)["pid"]
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
    names = ", ".join(f'"{name}": "\'"${name}"\'"' for name in KEPT_MEMORY)
    prints = ["echo 'convtime: null'", *[f"echo 'convtime: {{{names}}}'"] * 2]
    program = program_that_prints(tmp_path, *prints)
    with Side("old", program, [], {}) as side:
        side.load()
    assert {name: side.environment[name] for name in KEPT_MEMORY} == KEPT_MEMORY
