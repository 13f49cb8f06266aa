"""Child processes: answers, failures, time limits, restarts, and no process that stays."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import convtime
from convtime.core import child as module
from convtime.core.child import Child, ChildError, ended, job, report
from tests.helpers.waiting import wait_until

LIMIT = 60.0
# Jobs of these tests do not need torch, which takes seconds to import.
BARE = f"""
import sys, types
package = sys.modules["convtime"] = types.ModuleType("convtime")
package.__path__ = {convtime.__path__[:1]!r}
"""


def write_and_abort() -> None:
    os.write(2, b"ValueError: too small\nHint: INFO\nINFO:2026-01-01 09:00:00 a.cpp\n")
    os.abort()


def raise_unsendable() -> None:
    class UnsendableError(Exception):
        pass

    raise UnsendableError("it failed\nhere")


def start_another() -> int:
    return subprocess.Popen(["sleep", "100"]).pid


def count(to: int) -> str:
    for number in range(to):
        report(number)
    return "done"


def report_and_sleep() -> None:
    report("begun")
    time.sleep(LIMIT)


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; one whose parent has ended can stay as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(scope="module", autouse=True)
def without_torch() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SERVE", BARE + module._SERVE)
        yield


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with Child(job(os.putenv, "FIRST", "done"), variables={"GIVEN": "value"}) as started:
        yield started
        pid = started.call(job(os.getpid), LIMIT)
    assert has_ended(pid)
    assert started.pid is None


def test_jobs_are_done_in_one_process_whatever_it_prints(child: Child) -> None:
    pid = child.call(job(os.getpid), LIMIT)
    assert pid == child.pid != os.getpid()
    assert child.call(job(print, "noise" * 10_000), LIMIT) is None
    assert child.call(job(os.write, 1, b"x" * 5_000_000), LIMIT) == 5_000_000
    assert child.call(job(os.getenv, "GIVEN"), LIMIT) == "value"
    assert child.call(job(os.getenv, "FIRST"), LIMIT) is None  # putenv does not change os.environ
    megabytes = os.urandom(20_000_000)
    assert child.call(job(bytes.__add__, megabytes, b"1"), LIMIT) == megabytes + b"1"
    assert child.call(job(os.getpid), LIMIT) == pid


def test_errors_of_jobs_are_causes_and_the_process_goes_on(child: Child) -> None:
    pid = child.call(job(os.getpid), LIMIT)
    with pytest.raises(ChildError, match=r"^failed \(ZeroDivisionError: ") as failed:
        child.call(job(divmod, 1, 0), LIMIT)
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    with pytest.raises(ChildError) as failed:
        child.call(job(raise_unsendable), LIMIT)
    assert repr(failed.value.__cause__) == "RuntimeError('UnsendableError: it failed')"
    with pytest.raises(ChildError, match="pickle"):  # the result
        child.call(job(threading.Lock), LIMIT)
    assert child.call(job(os.getpid), LIMIT) == pid


def test_reports_come_before_the_result_and_set_the_time_limit(child: Child) -> None:
    reported: list[Any] = []

    def tell(value: Any) -> float:
        reported.append(value)
        return LIMIT

    assert child.call(job(count, 3), LIMIT, tell) == "done"
    assert reported == [0, 1, 2]
    assert child.call(job(count, 3), LIMIT) == "done"
    with pytest.raises(ChildError, match="gave no answer in 0 s"):
        child.call(job(report_and_sleep), LIMIT, lambda _: 0.01)


def test_a_process_that_died_or_passed_its_time_limit_is_replaced(child: Child) -> None:
    last = None
    for work, message in (
        (job(write_and_abort), r"^ended by SIGABRT \(ValueError: too small\)$"),
        (job(os._exit, 3), "^ended with exit code 3$"),  # what another process wrote is not quoted
        (job(sys.exit, 4), "^ended with exit code 4$"),
        (job(time.sleep, LIMIT), "^gave no answer in 0 s$"),
    ):
        with pytest.raises(ChildError, match=message) as failed:
            child.call(work, 0.2 if "no answer" in message else LIMIT)
        assert failed.value.__cause__ is None
        assert child.pid is None
        pid = child.call(job(os.getpid), LIMIT)
        assert pid != last
        last = pid
    os.kill(child.call(job(os.getpid), LIMIT), signal.SIGKILL)
    wait_until(lambda: child.pid is None)
    assert child.call(job(abs, -1), LIMIT) == 1


def test_a_first_job_that_fails_is_why_no_process_starts() -> None:
    with (
        Child(job(divmod, 1, 0)) as child,
        pytest.raises(ChildError, match=r"^ended with exit code 1 \(ZeroDivisionError: "),
    ):
        child.call(job(abs, 1), LIMIT)


def test_ctrl_c_ends_a_process_and_those_that_it_started(child: Child) -> None:
    other = child.call(job(start_another), LIMIT)
    interrupt = functools.partial(os.kill, os.getpid(), signal.SIGINT)
    timer = threading.Timer(0.1, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        child.call(job(time.sleep, LIMIT), LIMIT)
    assert child.pid is None  # its late answer would be taken for that of the next job
    wait_until(functools.partial(has_ended, other))


def test_another_thread_can_end_a_process_for_good() -> None:
    child = Child()
    timer = threading.Timer(0.1, child.kill)
    timer.start()
    with child, pytest.raises(ChildError, match="^ended by SIGKILL$"):
        child.call(job(time.sleep, LIMIT), LIMIT)
    with pytest.raises(ChildError, match="^was ended$"):
        child.start()


PARENT = """
from convtime.core.child import Child, job
from tests.core.test_child import report_and_sleep
with Child() as child:
    child.call(job(report_and_sleep), 60, lambda _: print(child.pid, flush=True) or 60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_process_ends_with_its_parent(number: int) -> None:
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", BARE + PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=path,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not has_ended(pid)
        parent.send_signal(number)
        parent.wait(LIMIT)
    wait_until(functools.partial(has_ended, pid))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["/bin/true"], "^ended with exit code 0$"),
        (["/bin/sh", "-c", "echo 'it: not a model'; exit 3"], r"code 3 \(it: not a model\)$"),
        (["/bin/sh", "-c", "sleep 60"], "^gave no answer in 0 s$"),
    ],
)
def test_programs_that_do_not_answer(
    command: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.2 if "no answer" in message else LIMIT)
    with Child(command=command) as child, pytest.raises(ChildError, match=message):
        child.await_start()


def test_the_reason_of_an_end_is_the_last_error_without_hints() -> None:
    crash = """earlier
ERROR: cache is stale
Fatal Python error: Aborted

  File "a.py", line 1 in forward

Extension modules: numpy (total: 1)
"""
    for output, reason in (
        (crash, " (Fatal Python error: Aborted)"),
        (
            "ValueError: too small\nERROR:2026-01-01 1:1 a.cpp:56] failed\n",
            " (ValueError: too small)",
        ),
        ("torch.OutOfMemoryError: no  memory\nTry less.\n", " (torch.OutOfMemoryError: no memory)"),
        ("ERROR: not found: test_a\n(no name)\n", " (ERROR: not found: test_a)"),
        ("one\ntwo\n\n", " (two)"),
        ("", ""),
    ):
        assert str(ended(2, output)) == f"ended with exit code 2{reason}"
    assert str(ended(-11, "")) == "ended by SIGSEGV"
