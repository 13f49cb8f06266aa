"""Regions of a program, and the recording of what ran in them."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._C._autograd import DeviceType

import convtime
from convtime.core.errors import InputError
from convtime.core.load import _C
from convtime.recording.record import _active
from convtime.recording.recording import Recording
from tests.recording.traces import FakeTrace


def test_a_clock_that_a_profiler_sets_back_ends_no_recording(trace: FakeTrace) -> None:
    trace.time = 1000
    with convtime.record() as recording:
        with convtime.region("around the change"):
            trace.time = 10
        with convtime.region("after it"):
            trace.launch()
    assert [entry.name for entry in recording.entries] == ["around the change", "after it"]


def test_a_path_names_the_region_that_it_is_all_of(trace: FakeTrace) -> None:
    with convtime.record() as recording, convtime.region("step"), convtime.region("step"):
        trace.launch(1)
        trace.launch(1, lasts=30)
    assert recording.region("step").path == ("step",)
    assert recording.region("step", "step").path == ("step", "step")
    activities = recording.region("step").activities
    assert [each.name for each in activities] == ["kernel_1"] * 2
    assert [each.seconds for each in activities] == [
        (pytest.approx(each),) for each in (1e-8, 3e-8)
    ]


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
    assert [groups[each["pid"]] for each in slices] == ["host"] + ["GPU 0"] * 3
    assert [each["name"] for each in slices] == ["step", "kernel_0", "memcpy", "kernel_0"]
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


def test_regions_without_a_recording_are_ranges_of_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def begin(name: str) -> str:
        seen.append(name)
        return name

    monkeypatch.setattr("convtime.recording.region._HAS_NVTX", True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_start", begin)
    monkeypatch.setattr(torch.cuda.nvtx, "range_end", lambda name: seen.append(f"end of {name}"))

    async def task(name: str, waits_before: int, waits_inside: int) -> None:
        for _ in range(waits_before):
            await asyncio.sleep(0)
        with convtime.region(name):
            for _ in range(waits_inside):
                await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(task("first", 0, 4), task("second", 1, 9))

    with convtime.region("outer"):
        asyncio.run(both())
    assert seen == ["outer", "first", "second", "end of first", "end of second", "end of outer"]


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
def test_what_an_exception_kept_from_being_left_ends_with_the_region_around_it() -> None:
    with convtime.record() as recording:
        with convtime.region("outer"):
            convtime.region("never left").__enter__()
        with convtime.region("next"):
            pass
    outer, inner, _ = recording.entries
    assert [entry.name for entry in recording.entries] == ["outer", "never left", "next"]
    assert [entry.parent for entry in recording.entries] == [None, 0, None]
    assert inner.end <= outer.end


def test_a_region_decorates_functions_but_no_generators() -> None:
    @convtime.region("fall")
    def fall(depth: int) -> None:
        if depth:
            fall(depth - 1)

    with convtime.record("cpu") as recording:
        fall(2)
    assert [len(region.path) for region in recording.regions] == [1, 2, 3]
    assert recording.method_reason == ""
    with pytest.raises(TypeError, match="cannot decorate numbers, a generator"):

        @convtime.region("numbers")
        def numbers() -> Iterator[int]:
            yield 1


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(TypeError, match="name must be a string, got 3"):
        convtime.region(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got 'event'"):
        convtime.record("event").__enter__()  # type: ignore[arg-type]
    with convtime.record("cpu"):
        with pytest.raises(RuntimeError, match=r"one recording .*at a time"):
            convtime.record("cpu").__enter__()
        assert _active.locked()
    with pytest.raises(KeyError), convtime.record("cpu") as recording, convtime.region("step"):
        raise KeyError  # which passes through
    assert len(recording.entries) == 1
    assert not _active.locked()


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
@pytest.mark.thorough
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
