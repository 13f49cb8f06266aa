"""What a diagnosis on a CPU reads of the operating system and of PyTorch, on this machine."""

import dataclasses
import mmap
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import convtime
from convtime.core.cpu import parse_cpus
from convtime.core.load import _C
from convtime.device import numa
from convtime.diagnosis import contrasts, host
from convtime.diagnosis import diagnose as running
from convtime.diagnosis.calls import look_at_calls
from convtime.diagnosis.evidence import Evidence
from convtime.diagnosis.subject import Subject
from convtime.timing.candidate import Candidate
from convtime.timing.sampling.measure import find_place
from tests.helpers.clean_evidence import CLEAN


def look(action, fn, *args) -> Evidence:
    candidate = Candidate(fn, *args)
    subject = Subject(candidate, find_place([candidate], "cpu"))
    calls = look_at_calls(subject)
    return action(subject, dataclasses.replace(CLEAN, on_gpu=False, calls=calls, contrasts={}))


def test_a_sleep_is_seen_by_looks_at_the_thread():
    found = look(host.look_at_host, time.sleep, 50e-3).host
    if found.waits is None:
        assert "does not report the system call" in found.missing
        pytest.skip(found.missing)
    assert found.waits.share("sleeping") > 0.5  # after a sleep it may wait for a core
    assert found.seconds >= 50e-3
    assert found.cpu < 0.5 * found.seconds


def test_new_pages_are_counted_and_what_one_takes_is_known():
    """Judged by the kernel's count of the same calls."""
    size = 4 << 20

    def call():
        with mmap.mmap(-1, size) as memory:
            memory[:: mmap.PAGESIZE] = bytes(size // mmap.PAGESIZE)

    call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        call()
    expected = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10
    found = look(host.look_at_host, call).host
    assert found.minor_faults == pytest.approx(expected, rel=0.1, abs=2)
    assert 10e-9 < found.fault_seconds < 100e-6


def test_a_process_that_a_call_starts_is_no_other_process():
    class Probe:
        def begin(self, seconds):
            pass

        def end(self):
            return {"samples": 1, "seconds": 1.0, "cpu_seconds": 0.1, "others_seconds": 10.0}

    def children():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = children()
    command = [sys.executable, "-c", "sum(range(10**6))"]
    found, _ = host._read(Probe(), lambda: subprocess.run(command, check=True))  # type: ignore[arg-type]
    assert children() > before
    assert found.others_seconds == pytest.approx(10 - (children() - before))


@pytest.mark.parametrize("count", [1, 7])
def test_operators_are_counted_as_a_profiler_counts_them(count):
    x = torch.randn(8, 8)

    def call():
        for _ in range(count):
            y = torch.nn.functional.linear(x, x)
        return y

    found = look(host.look_at_operators, call).operators
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        call()
    seen = [each for each in profiler.profiler.kineto_results.events() if "::" in each.name()]
    assert found.count == len(seen)
    assert found.outermost == count
    assert found.dispatching >= 0


@pytest.mark.timing
def test_operators_take_no_longer_than_the_calls_that_make_them():
    x = torch.randn(8, 8)
    looks = [look(host.look_at_operators, torch.neg, x).operators for _ in range(5)]
    assert min(found.dispatching / found.seconds for found in looks) <= 1.01
    assert min(found.seconds / found.loop for found in looks) <= 1.5


def test_clocked_operators_of_another_thread_do_not_count():
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


def test_settings_of_pytorch_are_as_before_a_look():
    threads = torch.get_num_threads()
    x = torch.full((64, 64), 1e-40)
    evidence = look(host.look_at_denormals, torch.div, x, 3.0)
    evidence = host.look_at_threads(
        Subject(Candidate(torch.div, x, 3.0), find_place([Candidate(torch.div, x, 3.0)], "cpu")),
        evidence,
    )
    assert torch.get_num_threads() == threads
    assert (x / 2).count_nonzero() == x.numel()  # denormal numbers are no zeros
    assert set(evidence.contrasts["denormals"]) == {"as-is", "flushed"}


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="PyTorch uses one thread")
def test_each_call_of_a_loop_is_prepared():
    """A backward pass, which cannot be repeated without its forward pass."""
    candidate = Candidate(torch.nn.Linear(8, 8), torch.randn(4, 8), backward=True)
    subject = Subject(candidate, find_place([candidate], "cpu"))
    evidence = dataclasses.replace(CLEAN, on_gpu=False, calls=look_at_calls(subject), contrasts={})
    assert host.look_at_threads(subject, evidence).seconds("one thread", "in a loop") > 0


def test_denormals_that_are_flushed_already_are_not_looked_at():
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU has no such mode")
    try:
        with pytest.raises(ValueError, match="already flushed to 0"):
            look(host.look_at_denormals, torch.neg, torch.ones(3))
        assert not (torch.tensor([1e-39]) * 1).item()  # still
    finally:
        torch.set_flush_denormal(False)


def test_what_the_system_does_not_tell_is_part_of_the_answer(monkeypatch):
    watch = _C.ThreadWatch

    class Blind:
        missing = "/proc does not tell what a thread waits for"

        def stop(self):
            return dict.fromkeys(watch().stop(), 0)

    monkeypatch.setattr(_C, "ThreadWatch", Blind)
    looks = [each for each in contrasts.CONTRASTS if each.name == "host"]
    monkeypatch.setattr(running, "CONTRASTS", looks)
    found = convtime.diagnose(time.sleep, 1e-3, device="cpu", budget=100)
    assert found.evidence.host.waits is None
    assert "not seen: /proc does not tell what a thread waits for" in str(found)
    assert "not seen" in found._repr_html_()


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("\n", set()), ("", set())]
)
def test_lists_of_cpus(text, cpus):
    assert parse_cpus(text) == cpus


def nodes(root: Path, *lists: str) -> Path:
    for number, cpus in enumerate(lists):
        folder = root / "sys/devices/system/node" / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus)
    return root


def test_memory_of_another_numa_node_is_remote(tmp_path, monkeypatch):
    every = f"0-{os.cpu_count()}"
    assert numa.remote_share([torch.ones(3)], nodes(tmp_path / "one", every)) == (None, "")
    two = nodes(tmp_path / "two", every, f"{os.cpu_count() + 1}")
    monkeypatch.setattr(numa, "_nodes_of", lambda pages: [1] * (len(pages) - 1) + [-2])
    share, why_not = numa.remote_share([torch.ones(1 << 20)], two)
    assert (share, why_not) == (1.0, "")
    monkeypatch.setattr(numa, "_nodes_of", lambda _: None)
    share, why_not = numa.remote_share([torch.ones(3)], two)
    assert share is None
    assert "NUMA" in why_not


def test_the_node_of_touched_pages_is_told_by_the_system():
    x = torch.ones(1 << 20)
    found = numa._nodes_of(numa._pages_of(x))
    if found is None:
        pytest.skip("this system does not tell")
    assert len(found) == 64
    assert min(found) >= 0
    assert (
        numa.remote_share([x])[0] in (None, 0.0)
        or len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) > 1
    )
