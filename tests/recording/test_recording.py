"""Regions of a program, and what ran in them."""

from __future__ import annotations

import asyncio
import contextvars
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType

import convtime
from convtime.core.errors import InputError
from convtime.core.load import _C
from convtime.recording import record as recording_module
from convtime.recording.recording import Recording
from convtime.recording.region import current_log

MAIN, AUTOGRAD, STRANGER = 1, 2, 3


class FakeTrace:
    """A GPU on which each launch takes 10 ns, from 1000 ns after it was issued on."""

    def __init__(self) -> None:
        self.time = 0
        self.numbers = {threading.get_ident(): MAIN}
        self.issued: list[tuple[int, int, int]] = []
        self.faults = ""
        self.failure = ""
        self.open = True

    def now(self) -> int:
        assert self.open
        self.time += 1
        return self.time

    def thread(self) -> int:
        return self.numbers.setdefault(threading.get_ident(), 10 + len(self.numbers))

    def launch(self, kernel: int = 0, thread: int | None = None) -> None:
        self.issued.append((kernel, self.now(), self.thread() if thread is None else thread))

    def take(self, other_devices: object) -> tuple[object, object, str]:
        if self.failure:
            raise RuntimeError(self.failure)
        launches = [
            {
                "kind": "kernel" if number < 2 else "memcpy",
                "name": f"kernel_{number}" if number < 2 else "",
                "grid": (4, 1, 1),
                "block": (128, 1, 1),
                "registers_per_thread": 16,
                "shared_memory_bytes": 0,
                "bytes": 0 if number < 2 else 4096,
                "device": 0,
            }
            for number in range(3)
        ]
        activities = [
            (kernel, at + 1000, at + 1010, at, thread, 7) for kernel, at, thread in self.issued
        ]
        return launches, activities, self.faults

    def close(self) -> None:
        self.open = False


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> FakeTrace:
    """What the next recording records with."""
    fake = FakeTrace()
    monkeypatch.setattr(recording_module, "_begin_trace", lambda method: (fake, ""))
    monkeypatch.setattr(recording_module, "_other_devices", list)
    monkeypatch.setattr(recording_module, "_autograd_threads", lambda trace: {AUTOGRAD})
    monkeypatch.setattr(recording_module, "resolve_device", lambda device: torch.device("cpu"))
    return fake


class Ranges:
    """NVTX's ranges as they were started and ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self._names: list[str] = []
        monkeypatch.setattr("convtime.recording.region._HAS_NVTX", True)
        monkeypatch.setattr(torch.cuda.nvtx, "range_start", self._start)
        monkeypatch.setattr(torch.cuda.nvtx, "range_end", self._end)

    def _start(self, name: str) -> int:
        self.seen.append(name)
        self._names.append(name)
        return len(self._names) - 1

    def _end(self, number: int) -> None:
        self.seen.append(f"end of {self._names[number]}")


async def turns(count: int) -> None:
    """Lets the other tasks run so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


def kernel_ns(recording: Recording, *path: str) -> list[int]:
    return [round(seconds * 1e9) for seconds in recording.region(*path).kernel_seconds]


def owners(recording: Recording) -> list[str | None]:
    return [
        None if work.entry is None else recording.entries[work.entry].name
        for work in recording.work
    ]


def test_each_entry_has_the_kernels_that_were_issued_in_it(trace: FakeTrace) -> None:
    with convtime.record() as recording:
        trace.launch()
        for launches in (1, 2):
            with convtime.region("step"):
                trace.launch()
                with convtime.region("inner"):
                    for _ in range(launches):
                        trace.launch(1)
    assert recording.method == "kernel"
    assert kernel_ns(recording, "step") == [20, 30]
    assert kernel_ns(recording, "step", "inner") == [10, 20]
    assert [region.path for region in recording.regions] == [("step",), ("step", "inner")]
    assert len(recording.outside) == 1
    assert round(recording.kernel_seconds * 1e9) == 60
    inner = recording.region("inner")
    assert [activity.name for activity in inner.activities] == ["kernel_1", "kernel_1"]
    assert inner.activities[1].seconds == (None, pytest.approx(1e-8))
    assert not trace.open
    assert current_log() is None


def test_a_clock_that_a_profiler_sets_back_ends_no_recording(trace: FakeTrace) -> None:
    trace.time = 1000
    with convtime.record() as recording:
        with convtime.region("around the change"):
            trace.time = 10
        with convtime.region("after it"):
            trace.launch()
    assert [entry.name for entry in recording.entries] == ["around the change", "after it"]


def test_regions_lie_behind_those_that_they_are_in() -> None:
    with convtime.record() as recording:
        for _ in range(2):
            with convtime.region("a"), convtime.region("b"):
                pass
            with convtime.region("c"):
                pass
        with convtime.region("a"), convtime.region("d"):
            pass
    paths = ["/".join(region.path) for region in recording.regions]
    assert paths == ["a", "a/b", "a/d", "c"]


def test_a_path_names_the_region_that_it_is_all_of(trace: FakeTrace) -> None:
    with convtime.record() as recording, convtime.region("step"), convtime.region("step"):
        pass
    assert recording.region("step").path == ("step",)
    assert recording.region("step", "step").path == ("step", "step")


def test_autograds_threads_work_for_the_region_that_is_open(trace: FakeTrace) -> None:
    with convtime.record() as recording:
        with convtime.region("backward"):
            trace.launch(thread=AUTOGRAD)
        trace.launch(thread=AUTOGRAD)  # by which a thread of another kind is its own
        with convtime.region("backward"):
            trace.launch(thread=AUTOGRAD)
            trace.launch(thread=STRANGER)
    assert owners(recording) == ["backward", None, "backward", "backward"]
    assert recording.ambiguous == 0
    assert recording.threads[AUTOGRAD] == "autograd"


def test_a_thread_that_also_works_outside_of_regions_works_for_itself(trace: FakeTrace) -> None:
    with convtime.record() as recording:
        trace.launch(thread=STRANGER)
        with convtime.region("mine"):
            trace.launch(thread=STRANGER)
            trace.launch()
    assert owners(recording) == [None, None, "mine"]


def test_work_for_one_of_several_threads_is_nobodys(trace: FakeTrace) -> None:
    entered, done = threading.Event(), threading.Event()

    def work() -> None:
        with convtime.region("theirs"):
            trace.launch()
            entered.set()
            done.wait(60)

    thread = threading.Thread(target=work)
    with convtime.record() as recording:
        with convtime.region("mine"):
            thread.start()
            entered.wait(60)
            trace.launch()
            trace.launch(thread=AUTOGRAD)
            done.set()
        thread.join()
    assert owners(recording) == ["theirs", "mine", None]
    assert recording.ambiguous == 1
    assert "1 launch belongs to no region" in str(recording)


def test_a_region_within_a_backward_pass_lies_in_the_one_around_it(trace: FakeTrace) -> None:
    def backward() -> None:
        trace.numbers[threading.get_ident()] = AUTOGRAD
        with convtime.region("node"):
            trace.launch()

    with convtime.record() as recording, convtime.region("step"):
        thread = threading.Thread(target=backward)
        thread.start()
        thread.join()
    assert recording.region("step", "node").kernel_seconds == pytest.approx((1e-8,))
    assert kernel_ns(recording, "step") == [10]


def test_records_that_are_missing_are_said_first(trace: FakeTrace) -> None:
    trace.faults = "2 launches without their records"
    with convtime.record() as recording, convtime.region("step"):
        trace.launch()
    assert recording.fault == "2 launches without their records"
    remarks = str(recording).partition("\n\n")[2]
    assert remarks.startswith("INCOMPLETE, GPU times are too short: 2 launches without")


def test_host_times_remain_where_kernel_times_were_lost(trace: FakeTrace) -> None:
    trace.failure = "a profiler began"
    with convtime.record() as recording, convtime.region("step"):
        trace.launch()
    assert recording.method == "cpu"
    assert recording.method_reason == "kernel times were lost: a profiler began"
    assert recording.work == ()
    (step,) = recording.regions
    assert step.kernel_seconds == ()
    assert 0 < step.host_seconds[0] <= recording.seconds
    assert "since kernel times were lost" in str(recording)
    assert not trace.open


def test_a_recording_survives_json(trace: FakeTrace) -> None:
    with convtime.record() as recording, convtime.region("step"):
        trace.launch(2)
    read = Recording.from_dict(json.loads(json.dumps(recording.to_dict())))
    assert read == recording
    assert "memcpy" in read.details()


def test_a_trace_has_regions_kernels_and_arrows(trace: FakeTrace, tmp_path: Path) -> None:
    with convtime.record() as recording:
        with convtime.region("step"):
            trace.launch()
            trace.launch(2)
        trace.launch()
    path = tmp_path / "trace.json"
    recording.write_trace(path)
    events = json.loads(path.read_text())["traceEvents"]
    groups = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert groups == {1: "host", 2: "GPU 0"}
    slices = [event for event in events if event["ph"] == "X"]
    assert [(groups[s["pid"]], s["name"]) for s in slices] == [
        ("host", "step"),
        ("GPU 0", "kernel_0"),
        ("GPU 0", "memcpy"),
        ("GPU 0", "kernel_0"),
    ]
    step, kernel, copy, outside = slices
    assert kernel["args"]["region"] == "step"
    assert copy["args"]["bytes"] == 4096
    assert "region" not in outside["args"]
    assert kernel["dur"] == pytest.approx(0.01)
    starts = [event for event in events if event["ph"] == "s"]
    ends = [event for event in events if event["ph"] == "f"]
    assert len(starts) == len(ends) == 2
    for start, end in zip(starts, ends, strict=True):
        assert start["id"] == end["id"]
        assert (start["pid"], start["tid"]) == (step["pid"], step["tid"])
        assert step["ts"] <= start["ts"] <= step["ts"] + step["dur"]
    with pytest.raises(InputError, match="cannot be written"):
        recording.write_trace(tmp_path / "no folder" / "trace.json")
    with pytest.raises(InputError, match=r"must end in \.json, .* got the extension '\.html'"):
        recording.write_trace(tmp_path / "trace.html")


def test_without_a_recording_a_region_only_names_itself_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranges = Ranges(monkeypatch)
    with convtime.region("outer"), convtime.region("inner"):
        pass
    assert ranges.seen == ["outer", "inner", "end of inner", "end of outer"]


def test_nvtx_ranges_of_tasks_end_with_their_own_region(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = Ranges(monkeypatch)

    async def task(name: str, *, waits_before: int, waits_inside: int) -> None:
        await turns(waits_before)
        with convtime.region(name):
            await turns(waits_inside)

    async def both() -> None:
        await asyncio.gather(
            task("first", waits_before=0, waits_inside=4),
            task("second", waits_before=1, waits_inside=9),
        )

    asyncio.run(both())
    assert ranges.seen == ["first", "second", "end of first", "end of second"]


@pytest.mark.parametrize("begin_inside", [False, True])
def test_a_recording_may_begin_and_end_within_regions(trace: FakeTrace, begin_inside: bool) -> None:
    before, inside = convtime.region("before"), convtime.region("inside")
    with before:
        with convtime.record() as first:
            if begin_inside:
                inside.__enter__()
        trace.open = True
        with convtime.record() as second:
            with convtime.region("second"):
                pass
            if begin_inside:
                inside.__exit__(None, None, None)
        with convtime.region("nobody's"):
            pass
    assert [entry.name for entry in first.entries] == ["inside"] * begin_inside
    for entry in first.entries:  # which was not left while it was recorded
        assert entry.end == first.seconds
    assert [(entry.name, entry.parent) for entry in second.entries] == [("second", None)]


@pytest.mark.usefixtures("trace")
def test_asynchronous_tasks_have_regions_of_their_own() -> None:
    """Each is left by the task that entered it, whichever was entered last."""

    @convtime.region("decorated")
    async def decorated() -> None:
        await asyncio.sleep(0.01)

    async def task(name: str, waits_for: asyncio.Event, done: asyncio.Event) -> None:
        with convtime.region(name):
            await waits_for.wait()
            await decorated()
        done.set()

    async def both() -> None:
        begins, short, long = asyncio.Event(), asyncio.Event(), asyncio.Event()
        tasks = asyncio.gather(task("short", begins, short), task("long", short, long))
        await asyncio.sleep(0)  # both are in their regions
        begins.set()
        await tasks

    with convtime.record() as recording:
        asyncio.run(both())
    entries = recording.entries
    assert [entry.name for entry in entries] == ["short", "long", "decorated", "decorated"]
    assert [entry.parent for entry in entries] == [None, None, 0, 1]
    lasted = [entry.end - entry.start for entry in entries]
    assert lasted[0] < lasted[1]


def test_each_asynchronous_task_has_its_own_work(trace: FakeTrace) -> None:
    async def task(name: str, kernel: int) -> None:
        trace.launch(kernel)  # before its region
        with convtime.region(name):
            for _ in range(3):
                trace.launch(kernel)
                trace.launch(kernel, thread=AUTOGRAD)  # which it waits for
                await turns(1)
            with convtime.region("inner"):
                await turns(1)
                trace.launch(kernel)
        await turns(1)
        trace.launch(kernel)

    async def both() -> None:
        with convtime.region("around"):
            await asyncio.gather(task("a", 0), task("b", 1))
            trace.launch(2)
        trace.launch(2)

    run = asyncio.Handle._run
    with convtime.record() as recording:
        asyncio.run(both())
    assert asyncio.Handle._run is run
    found: dict[int, list[str | None]] = {0: [], 1: [], 2: []}
    for work, owner in zip(recording.work, owners(recording), strict=True):
        found[work.launch].append(owner)
    assert found[0] == ["around", *["a"] * 6, "inner", "around"]
    assert found[1] == ["around", *["b"] * 6, "inner", "around"]
    assert found[2] == ["around", None]
    assert kernel_ns(recording, "around", "a") == kernel_ns(recording, "around", "b") == [70]
    assert recording.ambiguous == 0


def test_a_task_that_outlives_a_region_is_not_in_it(trace: FakeTrace) -> None:
    async def task() -> None:
        trace.launch()
        await turns(3)
        trace.launch()
        with convtime.region("late"):
            trace.launch()

    async def main() -> None:
        with convtime.region("early"):
            child = asyncio.create_task(task())
            await turns(1)
        await child

    with convtime.record() as recording:
        asyncio.run(main())
    assert owners(recording) == ["early", None, "late"]
    assert [region.path for region in recording.regions] == [("early",), ("late",)]


def test_a_thread_works_for_the_task_that_waits_for_it(trace: FakeTrace) -> None:
    def work() -> None:
        trace.numbers[threading.get_ident()] = STRANGER
        trace.launch()
        with convtime.region("on a thread"):
            trace.launch()
        trace.launch()

    async def task(name: str) -> None:
        with convtime.region(name):
            await asyncio.to_thread(work)
            trace.launch()

    with convtime.record() as recording:
        asyncio.run(task("waits"))
    # A thread with regions is in none of the task's before it enters the first one.
    assert owners(recording) == [None, "on a thread", "waits", "waits"]
    assert [region.path for region in recording.regions] == [("waits",), ("waits", "on a thread")]
    assert {entry.name: entry.thread for entry in recording.entries} == {
        "waits": MAIN,
        "on a thread": STRANGER,
    }


def test_a_thread_without_regions_works_for_the_only_task_that_has_one(trace: FakeTrace) -> None:
    async def waiting(name: str, done: asyncio.Event) -> None:
        with convtime.region(name):
            await done.wait()

    async def main() -> None:
        done = asyncio.Event()
        tasks = [asyncio.create_task(waiting("a", done))]
        await turns(2)
        trace.launch(thread=STRANGER)
        tasks.append(asyncio.create_task(waiting("b", done)))
        await turns(2)
        trace.launch(thread=STRANGER)
        done.set()
        await asyncio.gather(*tasks)

    with convtime.record() as recording:
        asyncio.run(main())
    assert owners(recording) == ["a", None]
    assert recording.ambiguous == 1


def test_work_is_nobodys_where_tasks_switch_without_notice(trace: FakeTrace) -> None:
    """As under event loops that are not asyncio's: a context each, and nothing between them."""
    a, b = contextvars.copy_context(), contextvars.copy_context()
    in_a, in_b = convtime.region("a"), convtime.region("b")
    with convtime.record() as recording:
        a.run(in_a.__enter__)
        a.run(trace.launch)
        b.run(in_b.__enter__)
        a.run(trace.launch)
        b.run(trace.launch)
        a.run(in_a.__exit__)
        b.run(trace.launch)
        b.run(in_b.__exit__)
        trace.launch()
    assert owners(recording) == ["a", None, None, "b", None]
    assert recording.ambiguous == 2


@pytest.mark.usefixtures("trace")
def test_what_an_exception_kept_from_being_left_ends_with_the_region_around_it() -> None:
    with convtime.record() as recording:
        with convtime.region("outer"):
            convtime.region("never left").__enter__()
        with convtime.region("next"):
            pass
    assert [(entry.name, entry.parent) for entry in recording.entries] == [
        ("outer", None),
        ("never left", 0),
        ("next", None),
    ]
    outer, inner, _ = recording.entries
    assert inner.end <= outer.end


def test_generators_are_not_decorated() -> None:
    with pytest.raises(TypeError, match="cannot decorate numbers, a generator"):

        @convtime.region("numbers")
        def numbers() -> Iterator[int]:
            yield 1


def test_a_region_decorates_functions_that_call_themselves() -> None:
    @convtime.region("fall")
    def fall(depth: int) -> None:
        if depth:
            fall(depth - 1)

    with convtime.record("cpu") as recording:
        fall(2)
    assert [len(region.path) for region in recording.regions] == [1, 2, 3]
    assert recording.method_reason == ""


def test_what_the_block_raises_passes_through() -> None:
    with pytest.raises(KeyError), convtime.record("cpu") as recording, convtime.region("step"):
        raise KeyError
    assert len(recording.entries) == 1
    with convtime.record("cpu"):
        pass


def test_regions_of_threads_are_their_own() -> None:
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait(60)
        for _ in range(50):
            with convtime.region(f"thread {number}"), convtime.region("inner"):
                pass

    with convtime.record("cpu") as recording:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(recording.entries) == 400
    for number in range(4):
        inner = recording.region(f"thread {number}", "inner")
        outer = recording.region(f"thread {number}")
        assert len(inner.host_seconds) == len(outer.host_seconds) == 50
        pairs = zip(inner.host_seconds, outer.host_seconds, strict=True)
        assert all(0 <= inside <= around for inside, around in pairs)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: convtime.region(3), TypeError, "name must be a string, got 3"),  # type: ignore[arg-type]
        (lambda: convtime.record("event").__enter__(), ValueError, "got 'event'"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_refused(
    call: Callable[[], Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        call()


def test_there_is_one_recording_at_a_time() -> None:
    with convtime.record("cpu"):
        with pytest.raises(RuntimeError, match="one recording .*at a time"):
            convtime.record("cpu").__enter__()
        assert current_log() is not None


@pytest.mark.skipif(_C.cuda_available(), reason="there is a GPU")
def test_without_a_gpu_host_times_are_recorded_and_said_to_be() -> None:
    with convtime.record() as recording:
        assert str(recording) == "a recording that is still running"
        with convtime.region("step"):
            torch.randn(8).sum()
    assert (recording.method, recording.method_reason) == ("cpu", "there is no GPU")
    assert "host times only, since there is no GPU" in str(recording)
    assert "1 entry of regions" in repr(recording)
    assert ">step</td>" in recording._repr_html_()
    with pytest.raises(KeyError, match="recording's regions: step"):
        recording.region("stop")
    with pytest.raises(ValueError, match="there is none; use 'cpu'"):
        convtime.record("kernel").__enter__()


@pytest.mark.cuda
def test_kernel_times_of_regions_are_those_of_the_profiler() -> None:
    x = torch.randn(1 << 24, device="cuda", requires_grad=True)

    def step() -> None:
        with convtime.region("forward"):
            loss = torch.erfinv(x).sum()
        with convtime.region("backward"):
            loss.backward()

    step()
    with convtime.record("kernel") as recording:
        for _ in range(5):
            step()
    assert recording.fault == ""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        step()
        torch.cuda.synchronize()
    events = profiler.events() or ()
    on_gpu = [event for event in events if event.device_type == DeviceType.CUDA]
    profiled = [event.time_range.elapsed_us() for event in on_gpu]
    launched = [recording.region(name).activities for name in ("forward", "backward")]
    assert sum(map(len, launched)) == len(profiled)
    medians = [activity.median * 1e6 for call in launched for activity in call]
    assert sum(medians) == pytest.approx(sum(profiled), rel=0.1)
    assert launched[1], "autograd's thread issues them"
    assert len(recording.outside) == 0


_BACKWARD_BESIDE_A_PROFILER = """
import torch, convtime
x = torch.rand(1 << 12, device="cuda")
torch.erfinv(x)
with convtime.record() as recording, convtime.region("step"):
    torch.erfinv(x)
    with torch.profiler.profile() as profiler:
        torch.erfinv(x)
        torch.cuda.synchronize()
assert recording.method == "cpu", recording.method
assert "profiler" in recording.method_reason, recording.method_reason
assert any("erfinv" in event.key for event in profiler.key_averages())
with convtime.record("kernel") as recording, convtime.region("step"):
    measured = convtime.time_op(torch.erfinv, x)
    torch.erfinv(x)
assert measured.method == "event", measured.method
assert "recording" in measured.method.reason, measured.method.reason
assert any("erfinv" in each.name for each in recording.region("step").activities)
"""


@pytest.mark.cuda
def test_profilers_and_timings_within_a_recording_work_and_say_so() -> None:
    command = [sys.executable, "-c", _BACKWARD_BESIDE_A_PROFILER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.cuda
def test_a_recording_is_refused_while_a_graph_is_captured() -> None:
    graph = torch.cuda.CUDAGraph()
    with (
        torch.cuda.graph(graph),
        pytest.raises(RuntimeError, match="synchronizes with the GPU.* captured"),
    ):
        convtime.record().__enter__()
