from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.autograd import DeviceType

import convtime
from convtime.timing import Candidate, _find_device, name_of

QUICK = {"warmup_seconds": 0.0, "budget": 0.2}


def test_times_a_call_of_known_duration() -> None:
    one = convtime.time_op(time.sleep, 0.005, device="cpu", max_samples=20)
    assert 0.005 <= one.min <= one.median < 0.02
    assert (one.method, one.method_requested) == ("cpu", "auto")
    assert one.method_reason == "the work is on the CPU"
    assert (one.queue, one.queue_requested) == ("none", "gate")
    assert one.queue_reason == "method 'cpu' does not queue calls on a device"
    assert (one.cache, one.cache_requested) == ("uncontrolled", "cold")
    assert one.device == "cpu"
    assert one.stream is None
    assert one.provenance["torch"] == torch.__version__
    assert one.provenance["gpu"] is None


def test_passes_arguments_and_counts_calls() -> None:
    calls = []

    def fn(*args: object, **kwargs: object) -> None:
        calls.append((args, kwargs))

    one = convtime.time_op(
        fn, 1, "b", kwargs={"c": 3}, device="cpu", warmup_calls=4, max_samples=10, **QUICK
    )
    assert set(map(repr, calls)) == {repr(((1, "b"), {"c": 3}))}
    assert one.warmup_calls == 4
    assert len(calls) == one.warmup_calls + len(one.seconds)
    assert one.name == "fn"


def test_the_results_destruction_is_not_timed() -> None:
    class SlowToDie:
        def __del__(self) -> None:
            time.sleep(0.005)

    one = convtime.time_op(SlowToDie, device="cpu", max_samples=10, **QUICK)
    assert one.median < 0.003


def test_setup_runs_before_each_call_and_is_not_timed() -> None:
    log: list[str] = []

    def setup() -> None:
        log.append("setup")
        time.sleep(0.002)

    one = convtime.time_op(
        lambda: log.append("call"), setup=setup, device="cpu", max_samples=10, **QUICK
    )
    assert log == ["setup", "call"] * (len(log) // 2)
    assert one.median < 0.001
    with pytest.raises(TypeError, match="setup must be callable, got int"):
        convtime.time_op(time.sleep, 0, setup=1)  # type: ignore[arg-type]


def test_whatever_the_callable_raises_passes_through() -> None:
    def broken() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        convtime.time_op(broken, device="cpu")


def test_signals_end_the_sampling() -> None:
    def on_alarm(number: int, frame: object) -> None:
        raise InterruptedError("alarm")

    previous = signal.signal(signal.SIGALRM, on_alarm)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        start = time.perf_counter()
        with pytest.raises(InterruptedError, match="alarm"):
            convtime.time_op(time.sleep, 1e-4, device="cpu", budget=30, max_noise=0)
        assert time.perf_counter() - start < 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_max_samples_and_budget_end_the_sampling() -> None:
    one = convtime.time_op(time.sleep, 0.001, device="cpu", max_noise=0, max_samples=15)
    assert (len(one.seconds), one.stop_reason) == (15, "max_samples")
    one = convtime.time_op(time.sleep, 0.001, device="cpu", max_noise=0, budget=0.1)
    assert one.stop_reason == "budget"
    assert 0.1 <= one.sampling_seconds < 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": "clock"},
            "method must be one of 'auto', 'kernel', 'event', 'sync', 'cpu', got 'clock'",
        ),
        ({"queue": "full"}, "queue must be one of 'gate', 'sleep', 'none', got 'full'"),
        ({"cache": "hot"}, "cache must be one of 'cold', 'warm', got 'hot'"),
        ({"min_samples": 0}, "min_samples must be at least 1, got 0"),
        ({"min_samples": 5, "max_samples": 4}, "max_samples must be at least min_samples"),
        ({"max_samples": -1}, "max_samples must be a whole number, 0 or more, got -1"),
        ({"warmup_calls": 1.5}, "warmup_calls must be a whole number, 0 or more, got 1.5"),
        ({"budget": 0}, "budget must be more than 0 seconds"),
        ({"budget": float("nan")}, "budget must be a number, got nan"),
        ({"budget": "long"}, "budget must be a number, got 'long'"),
        ({"max_noise": -1}, "max_noise must be 0 or more"),
        ({"warmup_seconds": -1}, "warmup_seconds must be 0 or more"),
        ({"method": "event"}, "method 'event' times work on a GPU and this work is on the CPU"),
        ({"method": None}, "method must be a string, got None"),
        ({"max_samples": 2**64}, "max_samples must be a whole number"),
        ({"budget": 10**400}, "budget must be a number"),
        ({"device": "gpu"}, "device must be a CPU or a CUDA device, got 'gpu'"),
        ({"device": "meta"}, "device must be a CPU or a CUDA device, got 'meta'"),
        ({"device": "cuda:99"}, "cuda"),
    ],
)
def test_bad_options_are_refused_before_anything_is_called(
    options: dict[str, object], message: str
) -> None:
    def never() -> None:
        raise AssertionError("called")

    with pytest.raises(ValueError, match=message):
        convtime.time_op(never, **{"device": "cpu", **options})


def test_numpys_numbers_are_options_too() -> None:
    one = convtime.time_op(
        time.sleep, 0, device="cpu", max_samples=np.int64(10), max_noise=np.float32(0)
    )
    assert len(one.seconds) == 10


def test_unknown_options_and_results_instead_of_functions_are_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'metod'"):
        convtime.time_op(time.sleep, 0, metod="cpu")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="must be callable, got Tensor"):
        convtime.time_op(torch.ones(1))  # type: ignore[arg-type]


def test_names_are_the_callables_own() -> None:
    assert name_of(torch.relu) == "relu"
    assert name_of(functools.partial(torch.relu, 1)) == "relu"
    assert name_of(torch.nn.ReLU()) == "ReLU"


def _closure_over(tensor: torch.Tensor) -> Callable[[], object]:
    return lambda: tensor + 1


class Holder:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.module = torch.nn.Linear(1, 1).to(tensor.device)

    def method(self) -> None: ...

    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    "candidate",
    [
        lambda t: Candidate("args", torch.relu, (t,)),
        lambda t: Candidate("nested", torch.cat, ([t, t],)),
        lambda t: Candidate("kwargs", torch.relu, (), {"input": t}),
        lambda t: Candidate("closure", _closure_over(t)),
        lambda t: Candidate("partial", functools.partial(torch.add, t, other=t)),
        lambda t: Candidate("module", torch.nn.Linear(1, 1).to(t.device)),
        lambda t: Candidate("method of a tensor", t.relu),
        lambda t: Candidate("method of an object", Holder(t).method),
        lambda t: Candidate("callable object", Holder(t)),
    ],
)
def test_the_device_is_found_in_the_tensors(
    candidate: Callable[[torch.Tensor], Candidate], device: torch.device
) -> None:
    found, reason = _find_device([candidate(torch.ones(1, 1, device=device))])
    assert found.type == device.type
    assert "found" in reason


def test_other_threads_run_while_a_batch_is_waited_for(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("nothing is waited for on a CPU")
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        convtime.time_op(
            torch.cuda._sleep, 200_000_000, device=device, max_samples=3, min_samples=3
        )
    finally:
        done.set()
        thread.join()
    assert ticks > 50


@pytest.mark.cuda
class TestOnGpu:
    def test_kernel_agrees_with_torch_profiler(self) -> None:
        """Kineto is an independent reader of CUPTI's records."""
        x = torch.randn(8, 64, 56, 56, device="cuda")
        layer = torch.nn.Conv2d(64, 64, 3, bias=True, device="cuda")

        def step() -> None:
            layer(x).sum().backward()  # autograd launches from a thread of its own

        one = convtime.time_op(step, cache="warm")
        assert (one.method, one.method_requested) == ("kernel", "auto")
        with torch.profiler.profile(acc_events=True) as profiler:
            for _ in range(20):
                step()
            torch.cuda.synchronize()
        theirs = [e for e in profiler.events() if e.device_type == DeviceType.CUDA]
        assert sum(len(a.seconds) - a.seconds.count(None) for a in one.activities) == len(
            one.seconds
        ) * (len(theirs) // 20)
        names = {a.name for a in one.activities if a.kind == "kernel"}
        assert names <= {e.name for e in theirs}
        total = sum(e.self_device_time_total for e in theirs) / 20 * 1e-6
        assert one.median == pytest.approx(total, rel=0.05)
        assert all(span >= busy * 0.999 for span, busy in zip(one.spans, one.seconds, strict=True))

    def test_profilers_around_before_and_after_still_work(self) -> None:
        x = torch.ones(1 << 20, device="cuda")

        def kernels_seen() -> int:
            with torch.profiler.profile(acc_events=True) as profiler:
                torch.relu(x)
                torch.cuda.synchronize()
            return sum(e.device_type == DeviceType.CUDA for e in profiler.events())

        before = kernels_seen()
        assert before
        first = convtime.time_op(torch.relu, x)
        assert first.method == "kernel"
        assert kernels_seen() == before
        # kineto leaves CUPTI with a clock that does not tick in nanoseconds
        second = convtime.time_op(torch.relu, x)
        assert second.method == "kernel"
        assert second.median == pytest.approx(first.median, rel=0.05)
        event = convtime.time_op(torch.relu, x, method="event")
        assert second.median == pytest.approx(event.median, rel=0.2)
        with torch.profiler.profile(acc_events=True) as profiler:
            inside = convtime.time_op(torch.relu, x, max_samples=20)
            with pytest.raises(RuntimeError, match=r"torch\.profiler session is active"):
                convtime.time_op(torch.relu, x, method="kernel")
        assert inside.method == "event"
        assert "torch.profiler session is active" in inside.method_reason
        assert any("relu" in e.name or "clamp" in e.name for e in profiler.events())
        assert convtime.time_op(torch.relu, x).method == "kernel"

    def test_kernel_times_do_not_depend_on_the_queue(self) -> None:
        x = torch.ones(1 << 22, device="cuda")
        medians = {
            queue: convtime.time_op(torch.relu, x, queue=queue).median
            for queue in ("gate", "sleep", "none")
        }
        assert max(medians.values()) < 1.1 * min(medians.values()), medians

    def test_cold_is_slower_than_warm_where_the_data_fit_the_cache(self) -> None:
        x = torch.ones(1 << 21, device="cuda")  # 8 MiB
        for method in ("kernel", "event"):
            cold = convtime.time_op(torch.relu, x, method=method)
            warm = convtime.time_op(torch.relu, x, method=method, cache="warm")
            assert (cold.cache, warm.cache) == ("cold", "warm")
            assert cold.median > 1.1 * warm.median

    @pytest.mark.parametrize("method", ["kernel", "event", "sync"])
    def test_what_setup_issues_is_not_timed(self, method: str) -> None:
        x = torch.ones(4, device="cuda")
        one = convtime.time_op(
            torch.relu, x, setup=lambda: torch.cuda._sleep(2_000_000), method=method, max_samples=20
        )
        assert one.median < 200e-6
        assert len(one.activities) == (method == "kernel")

    def test_event_times_are_close_to_kernel_times(self) -> None:
        """The events' own cost, some 2.7 µs, is calibrated away to less than 1 µs."""
        for size in (1 << 12, 1 << 20, 1 << 24):
            x = torch.randn(size, device="cuda")
            kernel = convtime.time_op(torch.relu, x, method="kernel")
            event = convtime.time_op(torch.relu, x, method="event")
            assert event.median == pytest.approx(kernel.median, rel=0.02, abs=1e-6)
            assert 1e-6 < event.overhead < 5e-6
            assert event.raw_seconds[0] == pytest.approx(event.seconds[0] + event.overhead)

    def test_calls_that_leave_the_gpu_alone_are_timed_on_the_host(self) -> None:
        one = convtime.time_op(lambda: None, device="cuda", **QUICK)
        assert (one.method, one.method_reason) == ("cpu", "the calls issue no work to the GPU")

    def test_event_agrees_with_torch_events_on_a_long_kernel(self) -> None:
        x = torch.randn(2048, 2048, device="cuda")
        one = convtime.time_op(torch.matmul, x, x, name="matmul", method="event", cache="warm")
        assert (one.method, one.queue) == ("event", "gate")
        assert one.device == "cuda:0"
        assert one.provenance["gpu"] == torch.cuda.get_device_name()
        assert one.provenance["driver"]
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = []
        for _ in range(30):
            torch.cuda._sleep(200_000)
            start.record()
            torch.matmul(x, x)
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop) * 1e-3)
        times.sort()
        assert one.median == pytest.approx(times[15], rel=0.1)

    def test_a_held_queue_hides_the_hosts_gaps(self) -> None:
        def two_short_kernels(x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            time.sleep(100e-6)  # a slow host between two launches
            return y + 1

        x = torch.ones(64, device="cuda")
        held = convtime.time_op(two_short_kernels, x, method="event")
        assert held.queue == "gate"
        assert held.median < 20e-6
        bare = convtime.time_op(two_short_kernels, x, queue="none", method="event")
        assert bare.queue == bare.queue_requested == "none"
        assert bare.median > 80e-6

    def test_sync_and_cpu_see_more_and_less_than_the_kernel(self) -> None:
        kernel = functools.partial(torch.cuda._sleep, 2_000_000)  # about 1 ms
        event = convtime.time_op(kernel, device="cuda", method="event")
        sync = convtime.time_op(kernel, device="cuda", method="sync")
        host = convtime.time_op(kernel, device="cuda", method="cpu")
        assert event.median < sync.median < event.median + 200e-6
        assert host.median < event.median / 4

    def test_a_callable_that_waits_for_the_gpu_is_not_held_and_says_so(self) -> None:
        x = torch.ones(64, device="cuda")
        start = time.perf_counter()
        one = convtime.time_op(lambda: x.sum().item())
        assert time.perf_counter() - start < 3
        assert (one.queue, one.queue_requested) == ("none", "gate")
        assert "waits for the GPU" in one.queue_reason
        assert one.seconds

    def test_an_exception_leaves_the_gpu_usable(self) -> None:
        x = torch.ones(64, device="cuda")
        calls = 0

        def breaks_later() -> None:
            nonlocal calls
            calls += 1
            torch.relu(x)
            if calls > 10:
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            convtime.time_op(breaks_later, max_noise=0)
        start = time.perf_counter()
        assert (x + 1).sum().item() == 128
        assert time.perf_counter() - start < 1

    def test_the_current_stream_is_timed(self) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            one = convtime.time_op(torch.cuda._sleep, 2_000_000, device="cuda")
        assert one.stream == stream.cuda_stream
        assert one.median > 500e-6

    def test_cpu_tensors_are_timed_on_the_cpu_beside_a_gpu(self) -> None:
        assert convtime.time_op(torch.relu, torch.ones(4), **QUICK).method == "cpu"

    def test_memory_is_not_allocated_while_sampling(self) -> None:
        x = torch.ones(1 << 20, device="cuda")
        torch.relu(x)
        before = torch.cuda.memory_stats()["num_device_alloc"]
        convtime.time_op(torch.relu, x, max_samples=500, max_noise=0)
        assert torch.cuda.memory_stats()["num_device_alloc"] == before
