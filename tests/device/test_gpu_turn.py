"""Timings on one GPU, one after the other: threads and processes, GPUs that are names."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import convtime
from convtime.device import gpu_turn
from convtime.device.gpu_turn import turn
from convtime.device.provenance import gpu_uuid
from convtime.timing.sampling import measure as sampling
from tests.helpers.texts import flat

GPU, OTHER = "GPU-first", "GPU-other"
QUICK: dict[str, Any] = {"device": "cpu", "warmup": 1, "max_samples": 10}


@pytest.fixture(autouse=True)
def _state_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@contextmanager
def held_elsewhere() -> Iterator[threading.Event]:
    """Another thread times on the first GPU until the event is set."""
    began, done = threading.Event(), threading.Event()

    def hold() -> None:
        with turn([GPU], 30):
            began.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    began.wait()
    try:
        yield done
    finally:
        done.set()
        thread.join()


def test_whoever_is_alone_does_not_wait_and_another_is_waited_for(gpu: Any) -> None:
    for _ in range(2):
        with turn([GPU, OTHER], 0) as came:
            assert (came.waited_seconds, came.disturbed_by) == (0, "")
    with held_elsewhere() as done:
        threading.Timer(0.05, done.set).start()
        with turn([GPU], 60) as came:
            assert came.disturbed_by == ""
            assert came.waited_seconds > 0
    with pytest.raises(KeyError), turn([GPU], 0):
        raise KeyError("mine")
    assert gpu_turn._timing.on == {}
    with turn([GPU], 0) as came:  # what raised has ended its turn
        assert came.disturbed_by == ""
    assert gpu_uuid(torch.device("cuda", 0)) == gpu.UUID


def test_whoever_is_not_done_in_time_is_said_to_disturb() -> None:
    with held_elsewhere():
        with turn([GPU], 0.05) as came:
            assert came.waited_seconds >= 0.05
            told = f"another process or thread was still timing on {GPU} after"
            assert came.disturbed_by == f"{told} {came.waited_seconds:.1f} s"
            with turn([GPU], 60) as nested:  # which would wait as long again
                assert nested.waited_seconds == 0
                assert nested.disturbed_by == came.disturbed_by
        with turn([OTHER], 0) as elsewhere:
            assert elsewhere.disturbed_by == ""


def test_threads_take_turns_and_nested_timings_do_not() -> None:
    running: list[int] = []

    def time_something(number: int) -> tuple[int, dict[str, str]]:
        with turn([GPU, OTHER], 60), turn([GPU], 0) as nested:
            assert nested.disturbed_by == ""
            running.append(number)
            together = len(running)
            threading.Event().wait(0.005)
            running.remove(number)
        return together, dict(gpu_turn._timing.on)  # of this thread

    with ThreadPoolExecutor(5) as pool:
        assert [*pool.map(time_something, range(5))] == [(1, {})] * 5


def test_a_state_folder_that_cannot_be_used_is_said_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with turn([GPU], 30) as came:
        assert came.waited_seconds == 0
        assert "/file/convtime cannot be used (Not a directory); set XDG" in came.disturbed_by


# Within a timing, of work on the CPU that is said to be on a GPU.


def test_a_result_says_whether_it_had_the_gpu_to_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = convtime.time_op(int, **QUICK)
    assert (one.exclusive, one.exclusive.reason) == (False, "the work is on the CPU")
    assert list(tmp_path.iterdir()) == []
    assert "maybe disturbed" not in flat(one)
    monkeypatch.setattr(sampling, "_uuids", lambda place: [GPU])
    nested: list[convtime.Measurement] = []

    def times_itself() -> None:
        if not nested:
            nested.append(convtime.time_op(int, **QUICK))

    one = convtime.time_op(times_itself, **QUICK)
    for measured in (one, *nested):
        assert (measured.exclusive, measured.exclusive.requested) == (True, True)
        assert (measured.exclusive.reason, measured.waited_seconds) == ("", 0)
    with held_elsewhere():
        monkeypatch.setattr(sampling, "_PATIENCE_SECONDS", 0.05)
        one = convtime.time_op(int, **QUICK)
        assert (one.exclusive, one.exclusive.requested) == (False, True)
        assert f"was still timing on {GPU}" in one.exclusive.reason
        assert one.waited_seconds >= 0.05
        monkeypatch.setattr(sampling, "_PATIENCE_SECONDS", 60.0)
        beside = convtime.time_op(int, exclusive=False, **QUICK)
        assert (beside.exclusive, beside.exclusive.requested) == (False, False)
        assert (beside.exclusive.reason, beside.waited_seconds) == ("", 0)
        said = rf"^timeout=0\.1 s passed before there was a sample \(another .* timing on {GPU} "
        with pytest.raises(TimeoutError, match=said):
            convtime.time_op(int, timeout=0.1, **QUICK)


_HOLDS = """
import sys
from convtime.device.gpu_turn import turn
with turn([sys.argv[1]], 30) as came:
    print(came.disturbed_by or "its turn", flush=True)
    sys.stdin.read()
"""


@pytest.mark.thorough
def test_another_process_is_waited_for_until_it_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS, GPU],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "its turn\n"
        with turn([GPU], 0.05) as came:
            assert came.disturbed_by
        holder.kill()
        holder.wait()
        with turn([GPU], 0) as came:
            assert came.disturbed_by == ""


_TIMES = """
import torch, convtime
x = torch.ones(1 << 20, device="cuda")
convtime.time_op(torch.relu, x, before=lambda: print("timing", flush=True), stop="budget", budget=2)
"""


@pytest.mark.cuda
def test_two_processes_time_one_after_the_other_on_a_gpu() -> None:
    x = torch.ones(1 << 20, device="cuda")
    command = [sys.executable, "-c", _TIMES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "timing\n"
        reader = threading.Thread(target=other.stdout.read)  # or its pipe would fill
        reader.start()
        beside = convtime.time_op(torch.relu, x, exclusive=False, max_samples=20)
        assert other.poll() is None
        after = convtime.time_op(torch.relu, x, max_samples=20)
        reader.join()
    assert other.returncode == 0
    assert beside.waited_seconds == 0
    assert after.waited_seconds > 0.2
    assert (after.exclusive, after.exclusive.reason) == (True, "")
