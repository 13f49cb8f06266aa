"""What the system reports of its CPUs, and calls on a CPU that is pinned or has cold caches."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import convtime
from convtime.device import cpu as device_cpu
from convtime.device import provenance
from convtime.timing.candidate import Candidate
from convtime.timing.sampling import calls as calls_module
from tests.helpers.texts import flat

QUICK: dict[str, Any] = {"warmup": 1, "budget": 0.2, "max_samples": 20}


def write_cpu(root: Path, cpu: int, *caches: tuple[str, str, str, str]) -> None:
    for index, values in enumerate(caches):
        folder = root / f"cpu{cpu}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
            (folder / name).write_text(value + "\n")


def test_each_data_cache_counts_once(tmp_path: Path) -> None:
    shared = ("3", "Unified", "32768K", "0-1")
    for number in (0, 1):
        own = [("1", "Data", "32K", str(number)), ("1", "Instruction", "64K", str(number))]
        write_cpu(tmp_path, number, *own, ("2", "Unified", "1024K", str(number)), shared)
    assert device_cpu.cache_bytes([0, 1], tmp_path) == (2 * 32 + 2 * 1024 + 32768) * 1024
    assert device_cpu.cache_bytes([1], tmp_path) == (32 + 1024 + 32768) * 1024
    assert device_cpu.cache_bytes([7], tmp_path) is None
    (tmp_path / "cpu1" / "cache" / "index3" / "size").unlink()
    assert device_cpu.cache_bytes([0], tmp_path) == (32 + 1024 + 32768) * 1024
    assert device_cpu.cache_bytes([1], tmp_path) is None


def test_the_flush_comes_after_what_is_set_up() -> None:
    buffer = torch.zeros(4, dtype=torch.uint8)
    seen = []
    candidate = Candidate(int, name="x", before=lambda: seen.append(int(buffer[0])))
    flushed = calls_module.flushing(candidate, buffer)
    for _ in range(2):
        assert flushed.before is not None
        flushed.before()
    assert seen == [0, 1]
    assert buffer.tolist() == [2] * 4


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The buffers that are written before calls, where caches have four bytes."""
    buffers: list[torch.Tensor] = []
    real = calls_module.flushing

    def noting(candidate: Candidate, buffer: torch.Tensor) -> Candidate:
        buffers.append(buffer)
        return real(candidate, buffer)

    monkeypatch.setattr(calls_module, "flushing", noting)
    monkeypatch.setattr(calls_module, "cache_bytes", lambda cpus: 4)
    return buffers


def test_cold_on_a_cpu_is_asked_for_and_not_timed(
    flushed: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(4, requires_grad=True)
    one = convtime.time_op(torch.relu, x, backward=True, cache="cold", **QUICK)
    assert (one.cache, one.cache.requested, one.cache.reason) == ("cold", "cold", "")
    assert torch.equal(x.grad != 0, torch.ones(4, dtype=torch.bool))
    assert [buffer.nbytes for buffer in flushed] == [2 * 4]
    assert convtime.time_op(torch.relu, x, **QUICK).cache == "uncontrolled"
    assert len(flushed) == 1
    monkeypatch.setattr(calls_module, "cache_bytes", lambda cpus: None)
    one = convtime.time_op(torch.relu, torch.ones(4), cache="cold", **QUICK)
    assert (one.cache, one.cache.requested) == ("uncontrolled", "cold")
    assert one.cache.reason == "this machine does not report the size of its CPUs' caches"


@pytest.mark.parametrize(
    "mode", [lambda: torch.device("meta"), pytest.param(FakeTensorMode, marks=pytest.mark.thorough)]
)
def test_the_flush_writes_memory_whatever_mode_the_caller_is_in(
    mode: Callable[[], AbstractContextManager[object]], flushed: list[torch.Tensor]
) -> None:
    with mode():
        one = convtime.time_op(int, device="cpu", cache="cold", stop="count", **QUICK)
    assert one.cache == "cold"
    (buffer,) = flushed
    assert type(buffer) is torch.Tensor
    assert buffer.tolist() == [one.warmup_calls + len(one.seconds)] * 8


def test_the_calling_thread_is_pinned_while_it_times() -> None:
    before = os.sched_getaffinity(0)
    cpu = max(before)
    seen = set()
    one = convtime.time_op(
        lambda: seen.add(frozenset(os.sched_getaffinity(0))), device="cpu", pin=cpu, **QUICK
    )
    assert seen == {frozenset({cpu})}
    assert os.sched_getaffinity(0) == before
    assert one.pin == cpu
    assert f"pinned to: CPU {cpu}" in flat(one)

    def broken() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        convtime.time_op(broken, device="cpu", pin=min(before))
    assert os.sched_getaffinity(0) == before


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_torchs_threads_do_not_inherit_the_pin() -> None:
    """In a thread of its own, which has no helpers yet when it is pinned."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    x = torch.ones(1 << 20)  # here, since to fill it takes helpers, too
    single: list[int] = []

    def pinned() -> Iterator[int]:
        for task in map(int, os.listdir("/proc/self/task")):
            with suppress(ProcessLookupError):  # it ended
                if len(os.sched_getaffinity(task)) == 1:
                    yield task

    def work() -> None:
        before = {*pinned()}
        convtime.time_op(torch.add, x, 1, pin=min(os.sched_getaffinity(0)), **QUICK)
        single.extend({*pinned()} - before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert single == []


@pytest.mark.parametrize("pin", [-1, "0", 1.5, 99999])
def test_a_pin_is_the_number_of_a_cpu_that_is_there(pin: Any) -> None:
    said = r"a whole number, 0 or more, got" if pin != 99999 else r"one of the \d+ CPUs .*got 9"
    with pytest.raises(ValueError, match=f"pin must be {said}"):
        convtime.time_op(int, device="cpu", pin=pin)


CPUS = st.sets(st.integers(0, 40))


@given(CPUS)
def test_lists_of_cpus_are_written_as_the_kernel_does(cpus: set[int]) -> None:
    told = device_cpu.written_cpus(cpus)
    assert device_cpu.parse_cpus(f"{told}\n") == cpus
    runs = sum(cpu - 1 not in cpus for cpu in cpus)
    assert len([*filter(None, told.split(","))]) == runs


def test_the_cpus_state_is_part_of_the_result() -> None:
    one = convtime.time_op(torch.relu, torch.ones(4), **QUICK)
    threads, cpus = torch.get_num_threads(), os.sched_getaffinity(0)
    assert (one.provenance["threads"], one.provenance["cores"]) == (threads, len(cpus))
    assert one.provenance["load_average"] >= 0
    assert one.provenance["governor"] == (", ".join(provenance.governors(cpus)) or None)
    assert f"CPU: {threads} threads, {len(cpus)} cores, " in flat(one)
