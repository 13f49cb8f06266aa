"""Timings and profilers in one process, and whose work a sample is of."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import convtime
from convtime.core.load import _C
from convtime.timing.sampling.calls import make_way_for_profilers
from tests.helpers.texts import flat

FEW: dict[str, Any] = {"max_samples": 50, "stop": "count"}


def test_way_is_made_once_before_a_profiler_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def prepare(*arguments: str, last: str) -> str:
        done.append(" ".join((*arguments, last)))
        return "prepared"

    @contextlib.contextmanager
    def make_way() -> Iterator[None]:
        done.append("make way")
        yield
        done.append("go on")

    monkeypatch.setattr(torch.autograd.profiler, "_prepare_profiler", prepare)
    monkeypatch.setattr(_C, "MakeWay", make_way, raising=False)
    make_way_for_profilers()
    make_way_for_profilers()
    wrapped: Callable[..., object] = torch.autograd.profiler.__dict__["_prepare_profiler"]
    assert wrapped("config", last="activities") == "prepared"
    assert done == ["make way", "config activities", "go on"]


def test_profiles_still_work_where_way_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """And torch still prepares its profilers by that name."""
    prepare = torch.autograd.profiler.__dict__["_prepare_profiler"]
    monkeypatch.setattr(torch.autograd.profiler, "_prepare_profiler", prepare)
    if hasattr(_C, "MakeWay"):
        make_way_for_profilers()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.relu(torch.ones(4))
    assert any(event.name == "aten::relu" for event in profiler.events() or ())


_A_PROFILER_ON_THE_MAIN_THREAD = """
import threading, torch, convtime
from torch._C._autograd import DeviceType

x = torch.rand(1 << 12, device="cuda")
torch.erfinv(x)
with torch.profiler.profile():  # the first one takes seconds to start, later ones do not
    pass
ready, done = threading.Event(), threading.Event()
results = []

def call():
    ready.set()
    return torch.relu(x)

def timing():
    results.append(convtime.time_op(call, stop="budget", budget=2, exclusive=False))

if {inside}:
    ready.set()
thread = threading.Thread(target=timing)
if not {inside}:
    thread.start()
    ready.wait()
with torch.profiler.profile(acc_events=True) as profiler:
    if {inside}:
        thread.start()
    for _ in range(100):
        torch.erfinv(x)
    thread.join()  # or the profile might end before the first sample
    torch.cuda.synchronize()
seen = sum(e.device_type == DeviceType.CUDA and "erfinv" in e.name for e in profiler.events())
print(seen, results[0].method, len(results[0].seconds) > 0, results[0].faulty_batches)
"""


@pytest.mark.thorough
@pytest.mark.cuda
@pytest.mark.parametrize("inside", [True, False], ids=["timing inside", "profile inside"])
def test_a_profiler_on_another_thread_loses_nothing(inside: bool) -> None:
    program = _A_PROFILER_ON_THE_MAIN_THREAD.format(inside=inside)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr  # it used to end with a segmentation fault
    assert done.stdout.splitlines()[-1] == "100 event True 0"


@pytest.fixture
def busy_thread() -> Iterator[None]:
    """Another thread keeps the GPU at work on a stream of its own."""
    done = threading.Event()
    x = torch.rand(1 << 16, device="cuda")

    def work() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while not done.is_set():
                for _ in range(10):
                    torch.erfinv(x)
                stream.synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    yield
    done.set()
    thread.join()


def on_two_streams(joined: bool) -> Callable[[], None]:
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    x, y = (torch.rand(1 << 18, device="cuda") for _ in range(2))

    def call() -> None:
        if joined:
            side.wait_stream(current)
        with torch.cuda.stream(side):
            torch.relu(x)
        torch.neg(y)
        current.wait_stream(side)

    return call


def writes_a_flag() -> Callable[[], None]:
    """A call whose only work on the GPU is a write to memory by the stream itself."""
    driver = ctypes.CDLL("libcuda.so.1")
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")

    def call() -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert driver.cuStreamWriteValue32_v2(stream, ctypes.c_uint64(flag.data_ptr()), 1, 0) == 0

    return call


@pytest.mark.cuda
class TestWhoseWorkItIs:
    @pytest.mark.usefixtures("busy_thread")
    def test_the_work_of_other_threads_is_in_no_sample(self) -> None:
        x = torch.rand(1 << 16, device="cuda")
        one = convtime.time_op(torch.relu, x, max_samples=200, stop="count")
        assert one.method == "kernel", one.method.reason
        assert one.other_launches > 0
        assert len(one.activities) == 1
        assert None not in one.activities[0].seconds
        assert "pieces of GPU work" in flat(one)

    def test_the_launches_of_autograds_threads_are_the_calls_own(self) -> None:
        x = torch.rand(1 << 16, device="cuda", requires_grad=True)
        one = convtime.time_op(torch.relu, x, backward=True, **FEW)
        assert (one.method, one.other_launches, bool(one.activities)) == ("kernel", 0, True)

    def test_work_that_cupti_does_not_record_is_named(self) -> None:
        write, x = writes_a_flag(), torch.ones(1 << 20, device="cuda")
        one = convtime.time_op(lambda: (torch.relu(x), write()), **FEW)
        assert one.method == "kernel"
        assert any("WriteValue" in function for function in one.unrecorded)
        assert "not fully seen" in str(one)
        assert convtime.time_op(torch.relu, x, **FEW).unrecorded == ()

    def test_a_call_of_unrecorded_work_alone_is_timed_by_events(self) -> None:
        write = writes_a_flag()
        calls: list[None] = []

        def first_takes_long() -> None:
            calls.append(None)
            time.sleep(0.1 if len(calls) == 1 else 0)
            write()

        one = convtime.time_op(first_takes_long, **FEW)
        assert one.method == "event"
        assert "WriteValue" in one.method.reason
        assert one.first_call_seconds is not None
        assert one.first_call_seconds >= 0.1  # of the very first call, by the other method
        assert one.warmup_calls == len(calls) - len(one.seconds)
        with pytest.raises(RuntimeError, match="WriteValue"):
            convtime.time_op(write, method="kernel")

    @pytest.mark.parametrize("metric", ["busy", "span", "sum"])
    def test_busy_time_span_and_sum_of_kernels_that_run_at_once(self, metric: Any) -> None:
        one = convtime.time_op(on_two_streams(joined=True), metric=metric, **FEW)
        assert (one.method, one.queue) == ("kernel", "gate")
        assert (one.metric, one.metric.requested, one.metric.reason) == (metric, metric, "")
        assert one.seconds == getattr(one, f"{metric}_seconds")
        assert (f"metric {metric}" in str(one)) == (metric != "busy")
        assert {activity.device for activity in one.activities} == {torch.cuda.current_device()}
        assert len({stream for activity in one.activities for stream in activity.streams}) == 2
        times = list(zip(one.busy_seconds, one.span_seconds, one.sum_seconds, strict=True))
        assert all(busy <= min(total, span) * 1.000001 for busy, span, total in times)
        assert any(busy < 0.99 * total for busy, _, total in times)

    def test_other_methods_have_no_other_metric(self) -> None:
        x = torch.ones(1 << 20, device="cuda")
        one = convtime.time_op(torch.relu, x, method="event", **FEW)
        assert (one.metric, one.metric.requested) == ("elapsed", "busy")
        assert "event" in one.metric.reason
        with pytest.raises(ValueError, match=r"metric 'span'.*method 'event'"):
            convtime.time_op(torch.relu, x, method="event", metric="span")

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
    def test_copies_between_gpus_are_seen(self) -> None:
        x = torch.rand(1 << 20, device="cuda:0")
        one = convtime.time_op(lambda: x.to("cuda:1"), device="cuda:0", **FEW)
        copies = [activity for activity in one.activities if activity.kind == "memcpy"]
        assert (one.method, [activity.bytes for activity in copies]) == ("kernel", [x.nbytes])
