"""What is timed: the calls, all of their work, and nothing else."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

import convtime
from convtime.timing.options import Method

QUICK: dict[str, Any] = {"warmup": 1, "budget": 0.2}
ON_CPU: dict[str, Any] = {"device": "cpu", **QUICK}


def test_a_result_says_how_it_was_taken() -> None:
    calls = []

    def fn(*args: object, **kwargs: object) -> None:
        calls.append(repr((args, kwargs)))

    one = convtime.time_op(fn, 1, "b", kwargs={"c": 3}, device="cpu", warmup=4, max_samples=10)
    assert set(calls) == {repr(((1, "b"), {"c": 3}))}
    assert one.warmup_calls == 4 + 16  # which say how often it is to be called for each sample
    assert one.repeats > 1
    sampled = len(one.seconds) + len(one.discarded)  # the latter where something disturbed them
    assert len(calls) == one.warmup_calls + one.repeats * sampled
    assert (one.name, one.device, one.stream, one.metric) == ("fn", "cpu", None, "elapsed")
    assert (one.method, one.method.requested) == ("cpu", "auto")
    assert one.method.reason == "the work is on the CPU"
    assert (one.queue, one.queue.requested) == ("none", "gate")
    assert one.queue.reason == "method 'cpu' does not queue calls on a device"
    assert (one.cache, one.cache.requested) == ("uncontrolled", "auto")
    assert "a flush takes milliseconds on a CPU" in one.cache.reason
    assert (one.provenance["torch"], one.provenance["gpu"]) == (torch.__version__, None)


def test_what_comes_before_and_after_a_call_is_not_timed() -> None:
    log: list[str] = []

    def setup() -> None:
        log.append("setup")
        time.sleep(0.002)

    class SlowToDie:
        def __init__(self) -> None:
            if len(log) == 1:
                time.sleep(0.05)
            log.append("call")

        def __del__(self) -> None:
            time.sleep(0.002)

    one = convtime.time_op(SlowToDie, before=setup, max_samples=20, **ON_CPU)
    assert log == ["setup", "call"] * (len(log) // 2)
    assert one.min < 0.002
    assert (one.first_call_seconds or 0.0) >= 0.05
    with pytest.raises(TypeError, match="before must be callable, got int"):
        convtime.time_op(time.sleep, 0, before=1)  # type: ignore[arg-type]


async def _sleeps() -> None:
    await asyncio.sleep(0.01)


async def _yields_later() -> AsyncIterator[int]:
    yield 1


def _yields() -> Iterator[int]:
    yield 1


class _Waits:
    async def __call__(self) -> None:
        await _sleeps()

    def __getattr__(self, name: str) -> object:
        return self  # as a proxy does, even for __name__


def _promises() -> asyncio.Future[None]:
    loop = asyncio.new_event_loop()
    loop.close()
    return asyncio.Future(loop=loop)


@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")  # of what earlier tests left
def test_what_has_not_done_its_work_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    for function, what in (
        (functools.partial(_sleeps), "'_sleeps'.* coroutine.* asyncio.run"),
        (_Waits(), "'_Waits'.* coroutine.* asyncio.run"),
        (lambda: _sleeps(), "coroutine.* asyncio.run"),
        (_promises, "Future.* asyncio.run"),
        (_yields, "'_yields'.* generator.* list"),
        (lambda: (each for each in "ab"), "generator.* list"),
        (_yields_later, "'_yields_later'.* asynchronous generator.* iterates"),
        (lambda: _yields_later(), "async_generator.* iterate"),
    ):
        with pytest.raises(TypeError, match=what):
            convtime.compare([int, function], device="cpu")
        with pytest.raises(TypeError, match=what):
            convtime.time_op(function, backward=function is _promises, device="cpu")
    for setup in (_sleeps, _yields, _yields_later):
        with pytest.raises(TypeError, match=rf"before must .*'{setup.__name__}'"):
            convtime.time_op(int, before=setup, device="cpu")
    gc.collect()
    assert "never awaited" not in capfd.readouterr().err


def test_signals_and_exceptions_end_the_sampling() -> None:
    def on_alarm(number: int, frame: object) -> None:
        raise KeyError("mine")

    previous = signal.signal(signal.SIGALRM, on_alarm)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyError, match="mine"):
            convtime.time_op(int, device="cpu", budget=60, stop="budget")
        with pytest.raises(KeyError, match="mine"):
            convtime.time_op(on_alarm, 0, None, device="cpu")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_each_sample_has_its_batch() -> None:
    calls = {"add": lambda: 1 + 1, "sub": lambda: 1 - 1}
    compared = convtime.compare(calls, device="cpu", warmup=1, stop="count", max_samples=150)
    add, sub = compared.measurements.values()
    assert add.batches == sub.batches == tuple(sorted(add.batches))
    assert len(set(add.batches)) >= len(add.seconds) / 64  # rounds at most
    assert 0 < add.clock_tick < 1e-6
    assert add.interval_over == "batches"
    assert 2 <= add.interval_count <= len(set(add.batches))


def kernels_seen(work: Callable[[], object], calls: int = 1) -> list[Any]:
    """The device's work of some calls, by torch.profiler: an independent reader of the records."""
    with torch.profiler.profile(acc_events=True) as profiler:
        for _ in range(calls):
            work()
        torch.cuda.synchronize()
    return [event for event in profiler.events() if event.device_type == DeviceType.CUDA]


@pytest.mark.timing
@pytest.mark.cuda
class TestTimesOnGpu:
    def test_under_a_profiler_events_take_the_place_of_records(self) -> None:
        x = torch.ones(1 << 20, device="cuda")
        relu = functools.partial(torch.relu, x)

        def work() -> None:
            one = convtime.time_op(relu, max_samples=20)
            assert one.method == "event"
            assert "torch.profiler session is active" in one.method.reason
            with pytest.raises(RuntimeError, match=r"torch\.profiler session is active"):
                convtime.time_op(relu, method="kernel")

        before = convtime.time_op(relu)
        assert len(kernels_seen(work)) >= 20
        # kineto leaves CUPTI with a clock that does not tick in nanoseconds
        after = convtime.time_op(relu)
        assert (before.method, after.method) == ("kernel", "kernel")
        assert after.median == pytest.approx(before.median, rel=0.05)

    def test_kernel_agrees_with_torch_profiler(self) -> None:
        x = torch.randn(8, 64, 56, 56, device="cuda")
        layer = torch.nn.Conv2d(64, 64, 3, bias=True, device="cuda")

        def step() -> None:
            layer(x).sum().backward()  # autograd launches from a thread of its own

        one = convtime.time_op(step, cache="warm")
        assert (one.method, one.method.requested, one.device) == ("kernel", "auto", "cuda:0")
        assert one.provenance["gpu"] == torch.cuda.get_device_name()
        assert one.provenance["driver"]
        theirs = kernels_seen(step, 20)
        seen = sum(len(each.seconds) - each.seconds.count(None) for each in one.activities)
        assert seen == len(one.seconds) * (len(theirs) // 20)
        names = {activity.name for activity in one.activities if activity.kind == "kernel"}
        assert names <= {event.name for event in theirs}
        total = sum(event.self_device_time_total for event in theirs) / 20 * 1e-6
        assert one.median == pytest.approx(total, rel=0.05)
        spans = zip(one.span_seconds, one.seconds, strict=True)
        assert all(span >= busy * 0.999 for span, busy in spans)

    def test_methods_queues_and_streams_agree(self) -> None:
        """The events' own cost, some 2.7 µs, is calibrated away to less than 1 µs."""
        stream = torch.cuda.Stream()
        for size in (1 << 12, 1 << 20, 1 << 24):
            x = torch.randn(size, device="cuda")
            kernel = convtime.time_op(torch.relu, x, method="kernel")
            event = convtime.time_op(torch.relu, x, method="event")
            assert event.median == pytest.approx(kernel.median, rel=0.02, abs=1e-6)
            assert 1e-6 < event.overhead < 5e-6
            assert event.raw_seconds[0] == pytest.approx(event.seconds[0] + event.overhead)
            assert 0 < event.overhead_uncertainty < 0.5e-6
            assert event.overhead_reason == ""
        for options in ({"queue": "sleep"}, {"queue": "none"}, {"stream": stream}):
            one = convtime.time_op(torch.relu, x, **options)
            assert one.median == pytest.approx(kernel.median, rel=0.1), options
        assert one.stream == stream.cuda_stream
        for cache in ("cold", "warm", "rotate"):
            graph, kernel = (
                # A graph's results lie elsewhere than those of other calls.
                convtime.time_op(torch.relu, x, method=method, cache=cache, placement="as-is")
                for method in ("graph", "kernel")
            )
            assert (graph.method, graph.queue, graph.cache) == ("graph", "gate", cache)
            assert graph.raw_seconds[0] - graph.seconds[0] == pytest.approx(graph.overhead)
            assert graph.median == pytest.approx(kernel.median, abs=0.5e-6, rel=0.03)
        free = convtime.time_op(torch.relu, x, method="event", queue="none")
        assert (free.queue, free.overhead_reason) == ("none", "")
        assert free.median == pytest.approx(event.median, rel=0.05)

    @pytest.mark.parametrize("method", ["kernel", "event", "graph"])
    def test_samples_are_read_from_clocks_that_are_known(self, method: Method) -> None:
        x = torch.ones(1 << 20, device="cuda")
        one = convtime.time_op(torch.relu, x, method=method)
        tick = one.clock_tick
        assert 1e-9 <= tick < 2e-6
        assert len(one.batches) == len(one.seconds)
        low, high = one.median_interval
        assert high - low >= tick / 4
        if method == "graph":  # whose samples are averages
            return
        raw = one.raw_seconds or one.seconds
        off = [abs(sample / tick - round(sample / tick)) * tick for sample in raw]
        assert max(off) < 2e-9  # as far as they are rounded
        assert one.max_sm_clock_hz is not None
        assert len(one.sm_clocks_hz) == len(one.seconds)
        known = [clock for clock in one.sm_clocks_hz if clock is not None]
        assert len(known) > 0.9 * len(one.seconds)
        assert all(1e8 < clock < 1.02 * one.max_sm_clock_hz for clock in known)

    def test_cold_is_slower_than_warm_where_the_data_fit_the_cache(self) -> None:
        x = torch.randn(1 << 20, device="cuda")
        out = {"out": torch.empty_like(x)}
        for method in ("kernel", "event"):
            times = {
                cache: convtime.time_op(torch.neg, x, kwargs=out, cache=cache, method=method)
                for cache in ("warm", "rotate", "cold")
            }
            assert [one.cache for one in times.values()] == [*times]
            assert times["cold"].median > 1.1 * times["warm"].median
            assert times["rotate"].median > 1.3 * times["warm"].median
            assert times["rotate"].median == pytest.approx(times["cold"].median, rel=0.3)

    def test_a_held_queue_hides_the_hosts_gaps_and_setup_is_not_timed(self) -> None:
        """It is not held for calls that wait for the GPU."""

        def two_short_kernels(x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            time.sleep(100e-6)  # a slow host between two launches
            return y + 1

        x = torch.ones(64, device="cuda")
        held = convtime.time_op(two_short_kernels, x, method="event")
        bare = convtime.time_op(two_short_kernels, x, queue="none", method="event")
        assert (held.queue, bare.queue) == ("gate", "none")
        assert held.median < 20e-6
        assert bare.median > 80e-6
        setup = functools.partial(torch.cuda._sleep, 2_000_000)
        for method in ("kernel", "event", "sync"):
            one = convtime.time_op(torch.relu, x, before=setup, method=method, max_samples=20)
            assert one.median < 200e-6
            assert len(one.activities) == (method == "kernel")
        waits = convtime.time_op(lambda: x.sum().item())
        assert (waits.queue, waits.queue.requested) == ("none", "gate")
        assert "waits for the GPU" in waits.queue.reason

    def test_warm_ups_end_and_say_so(self) -> None:
        x = torch.randn(1 << 20, device="cuda")
        assert convtime.time_op(torch.relu, x).steady is True
        assert convtime.time_op(torch.relu, x, warmup=5).steady is None
        timed = convtime.time_op(torch.relu, x, warmup=0.1)
        assert 0.1 <= timed.warmup_seconds < 0.3
        for stop in ("interval", "noise", "entropy", "count", "budget"):
            most = 2000 if stop == "count" else None
            one = convtime.time_op(torch.relu, x, stop=stop, max_samples=most, budget=0.5)
            ended = {"count": "max_samples", "budget": "budget"}.get(stop, "settled")
            assert (one.stop, one.stop_reason) == (stop, ended)

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
    def test_calls_can_use_another_device_or_two(self) -> None:
        x, y = (torch.ones(1 << 20, device=f"cuda:{index}") for index in range(2))
        for method in ("kernel", "event", "graph", "sync"):
            one = convtime.time_op(torch.relu, y, method=method)
            assert (one.device, one.method) == ("cuda:1", method)
            assert 1e-6 < one.median < 50e-6
        assert torch.cuda.current_device() == 0

        def both() -> None:
            torch.relu(x)
            with torch.cuda.device(1):
                torch.neg(y)

        with pytest.raises(ValueError, match="the calls use several devices; use 'kernel', 'sync'"):
            convtime.time_op(both, method="event")
        assert convtime.time_op(both, method="sync").device == "cuda:0"
        cold, warm = (convtime.time_op(both, method="kernel", cache=c) for c in ("cold", "warm"))
        near = {activity.name: activity.seconds for activity in warm.activities}
        assert len(near) == len(cold.activities) == 2
        for far in cold.activities:  # the input comes from memory again, on each of the devices
            assert statistics.median(far.seconds) > 1.3 * statistics.median(near[far.name])


_A_FIRST_PROFILER_AFTERWARDS = """
import convtime, torch
from torch.autograd import DeviceType
x = torch.ones(1 << 20, device="cuda")
assert convtime.time_op(torch.relu, x).method == "kernel"
for _ in range(2):  # kineto sets itself up once a process, and what it then finds lasts
    with torch.profiler.profile(acc_events=True) as profiler:
        for _ in range(3):
            torch.relu(x)
        torch.cuda.synchronize()
    assert sum(e.device_type == DeviceType.CUDA for e in profiler.events()) == 3
    assert convtime.time_op(torch.relu, x).method == "kernel"
"""

_FIRST_UNDER_A_PROFILER = """
import torch, convtime
x = torch.ones(1 << 20, device="cuda")
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
    one = convtime.time_op(torch.relu, x, method="event")
assert one.method == "event" and len(one.seconds) >= 10
if one.overhead_reason:  # where CUPTI's tools do not share it
    assert (one.overhead, one.raw_seconds) == (0, ())
    assert "CUPTI cannot be used: a torch.profiler session" in one.overhead_reason
    assert "not subtracted" in " ".join(one.details().split())
after = convtime.time_op(torch.relu, x, method="event")
assert after.overhead > 1e-6 and not after.overhead_reason
"""

# Whoever calibrates waits for the GPU without the GIL, which the others then have.
_TIMES_IN_THREADS = """
import threading, torch, convtime
x = torch.ones(1 << 20, device="cuda")
overheads = []
def work():
    with torch.cuda.stream(torch.cuda.Stream()):
        measured = convtime.time_op(torch.relu, x, method="event", budget=0.1, exclusive=False)
        overheads.append(measured.overhead)
threads = [threading.Thread(target=work) for _ in range(4)]
for one in threads: one.start()
for one in threads: one.join()
assert len(overheads) == 4 and min(overheads) > 1e-6, overheads
"""


@pytest.mark.thorough
@pytest.mark.cuda
@pytest.mark.parametrize(
    "program", [_A_FIRST_PROFILER_AFTERWARDS, _FIRST_UNDER_A_PROFILER, _TIMES_IN_THREADS]
)
def test_what_is_set_up_once_in_a_process_is_set_up_right(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@pytest.mark.cuda
class TestOnGpu:
    def test_other_threads_run_while_a_batch_is_waited_for(self) -> None:
        done, ticks = threading.Event(), itertools.count()

        def tick() -> None:
            while not done.wait(0.001):
                next(ticks)

        thread = threading.Thread(target=tick)
        thread.start()
        try:
            convtime.time_op(
                torch.cuda._sleep, 200_000_000, device="cuda", max_samples=3, min_samples=3
            )
        finally:
            done.set()
            thread.join()
        assert next(ticks) > 50

    def test_an_exception_leaves_the_gpu_usable(self) -> None:
        x, calls = torch.ones(64, device="cuda"), itertools.count()

        def breaks_later() -> None:
            torch.relu(x)
            if next(calls) > 10:
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            convtime.time_op(breaks_later, tolerance=0)
        start = time.perf_counter()
        assert (x + 1).sum().item() == 128
        assert time.perf_counter() - start < 10

    def test_memory_is_pytorchs_and_not_allocated_while_sampling(self) -> None:
        x = torch.ones(1 << 20, device="cuda")
        out = {"out": torch.empty_like(x)}
        convtime.time_op(torch.relu, x, max_samples=20)
        statistics = torch.cuda.memory_stats
        for method in ("kernel", "event", "sync"):
            before = statistics()["allocation.all.allocated"]
            convtime.time_op(torch.neg, x, kwargs=out, method=method, cache="warm")
            # The clock's stamps; events are calibrated with tensors, which are PyTorch's anyway.
            assert statistics()["allocation.all.allocated"] > before, method
        before = statistics()["num_device_alloc"]
        convtime.time_op(torch.relu, x, max_samples=500, tolerance=0)
        assert statistics()["num_device_alloc"] == before

    def test_what_breaks_a_capture_is_named_and_nothing_stays_broken(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def interrupted() -> None:
            if torch.cuda.is_current_stream_capturing():
                raise KeyboardInterrupt

        x, graph = torch.randn(1 << 20, device="cuda"), torch.cuda.CUDAGraph()
        torch.relu(x)
        with torch.cuda.graph(graph):
            torch.relu(torch.relu(x))
        with pytest.raises(RuntimeError, match="method 'graph' cannot capture this.*capturing"):
            convtime.time_op(lambda: x.sum().item(), device="cuda", method="graph")
        with pytest.raises(RuntimeError, match="cannot capture"):
            convtime.time_op(graph.replay, method="graph")
        assert "Graph is empty" not in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            convtime.time_op(interrupted, device="cuda", method="graph")
        before = torch.cuda.memory_reserved()
        for _ in range(3):
            with pytest.raises(RuntimeError, match="cannot capture"):
                convtime.time_op(lambda: torch.randn(1 << 20, device="cuda").cpu(), method="graph")
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() <= before
        assert convtime.time_op(x.normal_, method="graph").method == "graph"
        assert torch.randn(8, device="cuda").isfinite().all()  # the generator works
        replayed = convtime.time_op(graph.replay)
        assert sum(activity.kind == "kernel" for activity in replayed.activities) == 2

    def test_backward_times_the_backward_pass_alone(self) -> None:
        module = torch.nn.Linear(512, 512, device="cuda")
        x = torch.randn(512, 512, device="cuda", requires_grad=True)
        forward = convtime.time_op(module, x)
        backward = convtime.time_op(module, x, backward=True)
        names = [activity.name for activity in backward.activities]
        assert len(names) > len(forward.activities)
        added = [name for name in names if "accumulate" in name or "vectorized_element" in name]
        assert added == [], "a gradient was added to another"
        assert x.grad is not None
        assert convtime.time_op(module, x, backward=True, cache="rotate").cache == "rotate"
        with pytest.raises(ValueError, match="backward=True needs a result that requires grad"):
            convtime.time_op(torch.relu, x.detach(), backward=True)
        loss, retained = torch.relu(x).sum(), {"retain_graph": True}
        adding = convtime.time_op(loss.backward, kwargs=retained)
        writing = convtime.time_op(loss.backward, kwargs=retained, grad_to_none=[x])
        assert len(writing.activities) < len(adding.activities)
