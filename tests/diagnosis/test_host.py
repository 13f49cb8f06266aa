"""What a diagnosis on a CPU reads of the operating system and of PyTorch, on this machine."""

import dataclasses
import mmap
import resource
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import convtime
from convtime.core.load import _C
from convtime.diagnosis import contrasts, host
from convtime.diagnosis import diagnose as running
from convtime.diagnosis.evidence import Evidence
from convtime.diagnosis.operation import Operation, look_at_calls
from convtime.timing.candidate import Candidate
from convtime.timing.sampling.measure import find_devices
from tests.helpers.clean_evidence import CLEAN


def look(
    action: Callable[[Operation, Evidence], Evidence], fn: Any, *args: Any, **options: Any
) -> Any:
    candidate = Candidate(fn, *args, **options)
    operation = Operation(candidate, find_devices([candidate], "cpu").device)
    calls = look_at_calls(operation)
    return action(operation, dataclasses.replace(CLEAN, on_gpu=False, calls=calls, contrasts={}))


@pytest.mark.thorough
def test_a_sleep_is_seen_by_looks_at_the_thread() -> None:
    found = look(host.look_at_host, time.sleep, 50e-3).host
    if found.waits is None:
        assert "does not report the system call" in found.missing
        pytest.skip(found.missing)
    assert found.waits.share("sleeping") > 0.5  # after a sleep it may wait for a core
    assert found.seconds >= 50e-3
    assert found.cpu < 0.5 * found.seconds


@pytest.mark.thorough
def test_new_pages_are_counted_and_what_one_takes_is_known() -> None:
    """Judged by the kernel's count of the same calls."""
    size = 4 << 20

    def call() -> None:
        with mmap.mmap(-1, size) as memory:
            memory[:: mmap.PAGESIZE] = bytes(size // mmap.PAGESIZE)

    call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        call()
    expected = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10
    found = look(host.look_at_host, call).host
    assert found.minor_faults == pytest.approx(expected, rel=0.1, abs=2)
    assert found.fault_seconds > 0


def test_a_process_that_a_call_starts_is_no_other_process() -> None:
    def children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = children()
    counted = {"samples": 1, "seconds": 1.0, "cpu_seconds": 0.1, "others_seconds": 10.0}
    probe: Any = types.SimpleNamespace(begin=lambda seconds: None, end=lambda: counted)
    command = [sys.executable, "-S", "-c", "sum(range(10**6))"]
    found, _ = host._read(probe, lambda: subprocess.run(command, check=True))
    assert children() > before
    assert found.others_seconds == pytest.approx(10 - (children() - before))


def test_operators_are_counted_as_a_profiler_counts_them() -> None:
    x = torch.randn(8, 8)

    def call() -> None:
        for _ in range(7):
            torch.nn.functional.linear(x, x)

    found = look(host.look_at_operators, call).operators
    with torch.autograd.profiler.profile(use_kineto=True) as profiler:
        call()
    recorded: Any = profiler.kineto_results
    seen = [each for each in recorded.events() if "::" in each.name()]
    assert found.count == len(seen)
    assert found.outermost == 7
    assert found.dispatching >= 0


def test_clocked_operators_of_another_thread_do_not_count() -> None:
    clock = _C.OperatorClock(1.0)
    thread = threading.Thread(target=lambda: torch.ones(3) + 1)
    thread.start()
    thread.join()
    torch.ones(3)
    with pytest.raises(RuntimeError, match="already active"):
        _C.OperatorClock(1.0)
    found = clock.stop()
    assert found["outermost"] == 1
    torch.ones(3)
    assert clock.stop() == found


@pytest.mark.thorough
def test_settings_of_pytorch_are_as_before_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    x = torch.full((64, 64), 1e-40)
    evidence = look(host.look_at_denormals, torch.div, x, 3.0)
    assert set(evidence.contrasts["denormals"]) == {"as-is", "flushed"}
    if threads > 1:  # a backward pass cannot be repeated without its forward pass
        evidence = look(host.look_at_threads, torch.nn.Linear(64, 8), x, backward=True)
        assert evidence.seconds("one thread", "in a loop") > 0
    assert torch.get_num_threads() == threads
    assert (x / 2).count_nonzero() == x.numel()  # denormal numbers are no zeros
    monkeypatch.setattr(Operation, "time", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        look(host.look_at_threads, abs, 1)
    assert torch.get_num_threads() == threads


def test_denormals_that_are_flushed_already_are_not_looked_at() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU has no such mode")
    try:
        with pytest.raises(ValueError, match="already flushed to 0"):
            look(host.look_at_denormals, torch.neg, torch.ones(3))
        assert not (torch.tensor([1e-39]) * 1).item()  # still
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.thorough
def test_what_the_system_does_not_tell_is_part_of_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    untold = dict.fromkeys(_C.ThreadWatch().stop(), 0)
    blind = types.SimpleNamespace(missing="/proc does not tell what it does", stop=lambda: untold)
    monkeypatch.setattr(_C, "ThreadWatch", lambda: blind)
    looks = [each for each in contrasts.CONTRASTS if each.name == "host"]
    monkeypatch.setattr(running, "CONTRASTS", looks)
    found = convtime.diagnose(time.sleep, 1e-3, device="cpu", budget=100)
    assert found.evidence.host is not None
    assert found.evidence.host.waits is None
    assert "not seen: /proc does not tell what it does" in str(found)
