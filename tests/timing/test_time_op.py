from __future__ import annotations

import ast
import asyncio
import dataclasses
import functools
import gc
import inspect
import itertools
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

import convtime
from convtime.core.load import _C
from convtime.timing import options as options_module
from convtime.timing.candidate import Candidate, name_of
from convtime.timing.options import Cache, Method, Options, Stop
from convtime.timing.sampling.measure import find_place
from convtime.tuning.race import OWN_OPTIONS

QUICK: dict[str, Any] = {"warmup": 1, "budget": 0.2}


@pytest.mark.timing
def test_times_a_call_of_known_duration() -> None:
    one = convtime.time_op(time.sleep, 0.005, device="cpu", max_samples=20)
    assert 0.005 <= one.min <= one.median < 0.02
    assert (one.method, one.method.requested) == ("cpu", "auto")
    assert one.method.reason == "the work is on the CPU"
    assert (one.queue, one.queue.requested) == ("none", "gate")
    assert one.queue.reason == "method 'cpu' does not queue calls on a device"
    assert (one.cache, one.cache.requested) == ("uncontrolled", "auto")
    assert one.cache.reason == "a flush takes milliseconds on a CPU; cache='cold' requests it"
    assert one.device == "cpu"
    assert one.stream is None
    assert one.provenance["torch"] == torch.__version__
    assert one.provenance["gpu"] is None


def test_passes_arguments_and_counts_calls() -> None:
    calls = []

    def fn(*args: object, **kwargs: object) -> None:
        calls.append((args, kwargs))

    one = convtime.time_op(
        fn, 1, "b", kwargs={"c": 3}, device="cpu", warmup=4, max_samples=10, budget=0.2
    )
    assert set(map(repr, calls)) == {repr(((1, "b"), {"c": 3}))}
    assert one.warmup_calls == 4 + 16  # which say how often it is to be called for each sample
    assert one.repeats > 1
    sampled = len(one.seconds) + len(one.discarded)  # the latter where something disturbed them
    assert len(calls) == one.warmup_calls + one.repeats * sampled
    assert one.name == "fn"


async def _sleeps() -> None:
    await asyncio.sleep(0.01)


async def _yields_later() -> AsyncIterator[int]:
    yield 1


def _yields() -> Iterator[int]:
    yield 1


class _Waits:
    async def __call__(self) -> None:
        await _sleeps()


def _promises() -> asyncio.Future[None]:
    loop = asyncio.new_event_loop()
    loop.close()
    return asyncio.Future(loop=loop)


@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")  # of what earlier tests left
@pytest.mark.parametrize(
    ("function", "what"),
    [
        (_sleeps, "'_sleeps'.* coroutine.* asyncio.run"),
        (functools.partial(_sleeps), "'_sleeps'.* coroutine.* asyncio.run"),
        (_Waits(), "'_Waits'.* coroutine.* asyncio.run"),
        (lambda: _sleeps(), "coroutine.* asyncio.run"),
        (_promises, "Future.* asyncio.run"),
        (_yields, "'_yields'.* generator.* list"),
        (lambda: (each for each in "ab"), "generator.* list"),
        (_yields_later, "'_yields_later'.* asynchronous generator.* iterates"),
        (lambda: _yields_later(), "async_generator.* iterate"),
    ],
)
def test_what_has_not_done_its_work_is_refused(
    function: Callable[[], object], what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    calls: list[Callable[[], object]] = [
        lambda: convtime.time_op(function, device="cpu"),
        lambda: convtime.compare([int, function], device="cpu"),
        lambda: convtime.diagnose(function, device="cpu"),
        lambda: convtime.time_op(function, backward=True, device="cpu"),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=what):
            call()
    gc.collect()
    assert "never awaited" not in capfd.readouterr().err
    assert convtime.time_op(list, range(3), **QUICK, device="cpu").repeats >= 1


@pytest.mark.parametrize("setup", [_sleeps, _yields, _yields_later])
def test_a_setup_that_would_not_run_is_refused(setup: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=rf"before must .*'{setup.__name__}'"):
        convtime.time_op(int, before=setup, device="cpu")


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
        lambda: log.append("call"), before=setup, device="cpu", max_samples=10, **QUICK
    )
    assert log == ["setup", "call"] * (len(log) // 2)
    assert one.median < 0.001
    with pytest.raises(TypeError, match="before must be callable, got int"):
        convtime.time_op(time.sleep, 0, before=1)  # type: ignore[arg-type]


def test_whatever_the_callable_raises_passes_through() -> None:
    def broken() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        convtime.time_op(broken, device="cpu")


def test_signals_end_the_sampling() -> None:
    class AlarmError(Exception):
        pass

    def on_alarm(number: int, frame: object) -> None:
        raise AlarmError

    previous = signal.signal(signal.SIGALRM, on_alarm)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        start = time.perf_counter()
        with pytest.raises(AlarmError):
            convtime.time_op(int, device="cpu", budget=60, stop="budget")
        assert time.perf_counter() - start < 30
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.timing
def test_max_samples_and_budget_end_the_sampling() -> None:
    one = convtime.time_op(time.sleep, 0.001, device="cpu", tolerance=0, max_samples=15)
    assert one.stop_reason == "max_samples"
    assert 10 <= len(one.seconds) <= 15  # without those that others disturbed
    one = convtime.time_op(time.sleep, 0.001, device="cpu", tolerance=0, budget=0.1)
    assert one.stop_reason == "budget"
    assert 0.1 <= one.sampling_seconds < 5


@pytest.mark.parametrize("stop", ["noise", "entropy", "count", "budget"])
def test_max_samples_holds_whatever_ends_the_sampling(stop: Stop) -> None:
    one = convtime.time_op(int, device="cpu", stop=stop, tolerance=0, warmup=1, max_samples=12)
    assert len(one.seconds) <= 12
    assert one.stop_reason in ("settled", "max_samples")


@pytest.mark.parametrize("stop", ["interval", "noise", "entropy", "verdict", "count", "budget"])
def test_without_max_samples_only_a_budget_takes_more_than_ten_thousand(stop: Stop) -> None:
    rule = Options(stop=stop, tolerance=0).stop_rule()
    varied = np.random.default_rng(0).random(10_000).tolist()
    reason = _C.stop_reason([varied], elapsed_seconds=0, **rule)
    assert reason == ("not yet" if stop == "budget" else "max_samples")


@pytest.mark.parametrize("stop", ["interval", "noise"])
def test_one_sample_settles_nothing(stop: Stop) -> None:
    """Of one sample neither an interval nor a deviation is known, however wide either may be."""
    one = convtime.time_op(
        time.sleep, 1e-4, device="cpu", warmup=1, min_samples=1, tolerance=1000, stop=stop
    )
    assert one.stop_reason == "settled"
    assert len(one.seconds) >= 5
    two = convtime.time_op(time.sleep, 0, device="cpu", warmup=1, min_samples=1, max_samples=2)
    assert (len(two.seconds), two.stop_reason) == (2, "max_samples")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": "clock"},
            "method must be one of 'auto', 'kernel', 'event', 'graph', 'sync', 'cpu', got 'clock'",
        ),
        ({"queue": "full"}, "queue must be one of 'gate', 'sleep', 'none', got 'full'"),
        (
            {"cache": "hot"},
            "cache must be one of 'auto', 'cold', 'cold-clean', 'warm', 'rotate', got 'hot'",
        ),
        ({"min_samples": 0}, "min_samples must be at least 1, got 0"),
        ({"min_samples": 5, "max_samples": 4}, "max_samples must be at least min_samples"),
        ({"min_samples": True}, "min_samples must be a whole number, 0 or more, got True"),
        ({"pin": False}, "pin must be the number of a CPU, 0 or more, got False"),
        ({"warmup": True}, "warmup must be 'steady', .* got True"),
        ({"timeout": True}, "timeout must be a positive number of seconds or None, got True"),
        ({"budget": True}, "budget must be a number, got True"),
        ({"exclusive": 1}, "exclusive must be True or False, got 1"),
        ({"max_samples": -1}, "max_samples must be a whole number, 0 or more, got -1"),
        ({"warmup": "long"}, "warmup must be 'steady', a whole number of calls or a float of sec"),
        ({"warmup": -1.5}, "warmup must be 'steady', .* 0 or more, got -1.5"),
        ({"warmup": None}, "warmup must be 'steady', .* got None"),
        ({"stop": "never"}, "stop must be one of 'interval', 'noise', .*, got 'never'"),
        ({"stop": "verdict"}, "needs something to compare with; use convtime.compare"),
        ({"flops": 0}, "flops must be a positive number, got 0"),
        ({"nbytes": float("inf")}, "nbytes must be a positive number, got inf"),
        ({"method": "graph", "backward": True}, "method 'graph' captures calls back to back"),
        (
            {"cache": "rotate", "grad_to_none": [torch.ones(1)]},
            "grad_to_none .*cache='rotate', which copies them",
        ),
        ({"budget": 0}, "budget must be more than 0 seconds"),
        ({"budget": float("nan")}, "budget must be a number, got nan"),
        ({"budget": "long"}, "budget must be a number, got 'long'"),
        ({"tolerance": -1}, "tolerance must be 0 or more"),
        ({"method": "event"}, "method 'event' times work on a GPU and this work is on the CPU"),
        ({"method": None}, "method must be one of 'auto', .*, got None"),
        ({"max_samples": 2**64}, "max_samples must be a whole number"),
        ({"budget": 10**400}, "budget must be a number"),
        ({"device": "gpu"}, "device must be cpu, cuda or cuda:N, got 'gpu'"),
        ({"device": "meta"}, "device must be cpu, cuda or cuda:N, got 'meta'"),
        ({"device": "cuda:99"}, "cuda"),
    ],
)
def test_bad_options_are_refused_before_anything_is_called(
    options: dict[str, Any], message: str
) -> None:
    def never() -> None:
        raise AssertionError("called")

    with pytest.raises(ValueError, match=message):
        convtime.time_op(never, **{"device": "cpu", **options})


def test_numpys_numbers_are_options_too() -> None:
    one = convtime.time_op(
        time.sleep,
        0,
        device="cpu",
        max_samples=np.int64(10),  # type: ignore[arg-type]
        tolerance=np.float32(0),  # type: ignore[arg-type]
    )
    assert len(one.seconds) == 10
    cpu = np.array(min(os.sched_getaffinity(0)))
    Options(pin=cpu, min_samples=np.int8(3), budget=np.float32(1)).check_ranges()  # type: ignore[arg-type]


def test_unknown_options_and_results_instead_of_functions_are_refused() -> None:
    with pytest.raises(TypeError, match="time_op has no option 'metod'"):
        convtime.time_op(time.sleep, 0, metod="cpu")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="must be callable, got Tensor"):
        convtime.time_op(torch.ones(1))  # type: ignore[arg-type]
    candidate = convtime.Candidate(abs, 1, name="a")
    with pytest.raises(
        TypeError, match="got the Candidate 'a' and arguments, backward; pass these"
    ):
        convtime.time_op(candidate, 2, backward=True)
    assert convtime.time_op(candidate, name="b", device="cpu", **QUICK).name == "b"


def test_names_are_the_callables_own() -> None:
    assert name_of(torch.relu) == "relu"
    assert name_of(functools.partial(torch.relu, torch.ones(1))) == "relu"
    assert name_of(torch.nn.ReLU()) == "ReLU"


class Proxy:
    def __getattr__(self, name: str) -> Proxy:
        return Proxy()

    def __call__(self) -> None: ...


def test_a_proxy_that_answers_everything_is_called_by_its_type() -> None:
    assert convtime.time_op(Proxy(), device="cpu", max_samples=10, **QUICK).name == "Proxy"


def test_a_verdict_needs_several_candidates() -> None:
    message = r"stop='verdict' needs several candidates, got \['alone'\] alone"
    with pytest.raises(ValueError, match=message):
        convtime.compare({"alone": int}, stop="verdict", device="cpu")


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("span", "metric 'span' needs a GPU's activity records.*on the CPU"),
        ("sum", "metric 'sum'"),
        ("total", "metric must be one of 'busy', 'span', 'sum', got 'total'"),
    ],
)
def test_a_metric_that_a_cpu_does_not_have_is_refused(metric: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        convtime.time_op(torch.relu, torch.ones(4), metric=metric)
    assert convtime.time_op(torch.relu, torch.ones(4), **QUICK).metric == "elapsed"


def test_compare_names_itself_where_an_option_is_unknown() -> None:
    with pytest.raises(
        TypeError, match="compare has no option 'foo'; there are method, metric, queue, "
    ):
        convtime.compare({"one": int}, foo=1)  # type: ignore[call-overload]


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
        lambda tensor: Candidate(torch.relu, tensor, name="args"),
        lambda tensor: Candidate(torch.cat, [tensor, tensor], name="nested"),
        lambda tensor: Candidate(torch.relu, kwargs={"input": tensor}, name="kwargs"),
        lambda tensor: Candidate(_closure_over(tensor), name="closure"),
        lambda tensor: Candidate(
            functools.partial(torch.add, tensor, other=tensor), name="partial"
        ),
        lambda tensor: Candidate(torch.nn.Linear(1, 1).to(tensor.device), name="module"),
        lambda tensor: Candidate(tensor.relu, name="method of a tensor"),
        lambda tensor: Candidate(Holder(tensor).method, name="method of an object"),
        lambda tensor: Candidate(Holder(tensor), name="callable object"),
    ],
)
def test_the_device_is_found_in_the_tensors(
    candidate: Callable[[torch.Tensor], Candidate], device: torch.device
) -> None:
    place = find_place([candidate(torch.ones(1, 1, device=device))], None)
    assert place.device.type == device.type
    assert "found" in place.reason


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


@pytest.mark.timing
@pytest.mark.cuda
class TestOnGpu:
    def test_kernel_agrees_with_torch_profiler(self) -> None:
        """Kineto is an independent reader of CUPTI's records."""
        x = torch.randn(8, 64, 56, 56, device="cuda")
        layer = torch.nn.Conv2d(64, 64, 3, bias=True, device="cuda")

        def step() -> None:
            layer(x).sum().backward()  # autograd launches from a thread of its own

        one = convtime.time_op(step, cache="warm")
        assert (one.method, one.method.requested) == ("kernel", "auto")
        with torch.profiler.profile(acc_events=True) as profiler:
            for _ in range(20):
                step()
            torch.cuda.synchronize()
        theirs = [event for event in profiler.events() if event.device_type == DeviceType.CUDA]
        assert sum(
            len(activity.seconds) - activity.seconds.count(None) for activity in one.activities
        ) == len(one.seconds) * (len(theirs) // 20)
        names = {activity.name for activity in one.activities if activity.kind == "kernel"}
        assert names <= {event.name for event in theirs}
        total = sum(event.self_device_time_total for event in theirs) / 20 * 1e-6
        assert one.median == pytest.approx(total, rel=0.05)
        assert all(
            span >= busy * 0.999 for span, busy in zip(one.span_seconds, one.seconds, strict=True)
        )

    def test_profilers_around_before_and_after_still_work(self) -> None:
        x = torch.ones(1 << 20, device="cuda")

        def kernels_seen() -> int:
            with torch.profiler.profile(acc_events=True) as profiler:
                torch.relu(x)
                torch.cuda.synchronize()
            return sum(event.device_type == DeviceType.CUDA for event in profiler.events())

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
            torch.sin(x)
            inside = convtime.time_op(torch.relu, x, max_samples=20)
            with pytest.raises(RuntimeError, match=r"torch\.profiler session is active"):
                convtime.time_op(torch.relu, x, method="kernel")
            torch.cos(x)
            torch.cuda.synchronize()
        assert inside.method == "event"
        assert "torch.profiler session is active" in inside.method.reason
        kernels = [
            profiled.name
            for profiled in profiler.events()
            if profiled.device_type == DeviceType.CUDA
        ]
        assert sum("relu" in name or "clamp" in name for name in kernels) >= 20
        assert sum("sin_kernel" in name for name in kernels) == 1
        assert sum("cos_kernel" in name for name in kernels) == 1
        assert convtime.time_op(torch.relu, x).method == "kernel"
        assert kernels_seen() == before

    def test_a_first_profiler_after_kernel_times_sees_everything(self) -> None:
        """kineto sets itself up once a process, and what it then finds lasts."""
        script = """
import convtime, torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
x = torch.ones(1 << 20, device="cuda")
assert convtime.time_op(torch.relu, x).method == "kernel"
for _ in range(2):
    with torch.profiler.profile(acc_events=True) as profiler:
        for _ in range(3):
            torch.relu(x)
        torch.cuda.synchronize()
    print(sum(e.device_type == DeviceType.CUDA for e in profiler.events()))
    assert convtime.time_op(torch.relu, x).method == "kernel"
"""
        run = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
        )
        assert (run.returncode, run.stdout.split()) == (0, ["3", "3"]), run.stderr

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
    def test_what_setup_issues_is_not_timed(self, method: Method) -> None:
        x = torch.ones(4, device="cuda")
        one = convtime.time_op(
            torch.relu,
            x,
            before=lambda: torch.cuda._sleep(2_000_000),
            method=method,
            max_samples=20,
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
            assert 0 < event.overhead_uncertainty < 0.5e-6
            assert event.overhead_reason == ""

    def test_a_queue_that_is_not_held_is_calibrated_so(self) -> None:
        x = torch.randn(1 << 24, device="cuda")
        held = convtime.time_op(torch.relu, x, method="event")
        free = convtime.time_op(torch.relu, x, method="event", queue="none")
        assert (free.queue, free.overhead_reason) == ("none", "")
        assert free.median == pytest.approx(held.median, rel=0.05)

    def test_the_timings_own_memory_is_pytorchs(self) -> None:
        x = torch.ones(1 << 10, device="cuda")
        y = torch.empty_like(x)

        def allocations() -> int:
            return int(torch.cuda.memory_stats()["allocation.all.allocated"])

        for method in ("kernel", "event", "sync"):
            before = allocations()
            convtime.time_op(torch.neg, x, kwargs={"out": y}, method=method, cache="warm")
            # The clock's stamps; events are calibrated with tensors, which are PyTorch's anyway.
            assert allocations() > before, method

    def test_a_measurement_outlives_a_calibration_that_fails(self) -> None:
        """In a process of its own, where no earlier calibration is known."""
        subprocess.run([sys.executable, "-c", _FIRST_UNDER_A_PROFILER], check=True, timeout=50)

    def test_a_first_call_that_compiles_does_not_make_every_batch_a_single_call(self) -> None:
        x = torch.randn(1 << 10, device="cuda")
        calls = itertools.count()

        def compiles() -> torch.Tensor:
            if next(calls) == 0:
                time.sleep(0.3)
            return torch.relu(x)

        start = time.perf_counter()
        convtime.time_op(compiles, warmup=1, stop="count", max_samples=2000)
        assert time.perf_counter() - start < 3

    def test_calls_of_many_launches_never_overfill_the_queue(self) -> None:
        x = torch.randn(1 << 10, device="cuda")

        def many() -> torch.Tensor:
            y = x
            for _ in range(200):
                y = torch.relu(y)
            return y

        for method in ("kernel", "event"):
            one = convtime.time_op(many, method=method, warmup=3, max_samples=100)
            assert (one.queue, one.queue.reason) == ("gate", "")
            assert one.discarded == ()

    def test_calls_that_leave_the_gpu_alone_are_timed_on_the_host(self) -> None:
        one = convtime.time_op(lambda: None, device="cuda", **QUICK)
        assert (one.method, one.method.reason) == ("cpu", "the calls issue no work to the GPU")

    def test_event_agrees_with_torch_events_on_a_long_kernel(self) -> None:
        x = torch.randn(2048, 2048, device="cuda")
        one = convtime.time_op(
            torch.matmul, x, x, name="matmul", method="event", cache="warm",
            regime="as-is", placement="as-is",
        )  # fmt: skip
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
        assert bare.queue == bare.queue.requested == "none"
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
        assert (one.queue, one.queue.requested) == ("none", "gate")
        assert "waits for the GPU" in one.queue.reason
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
            convtime.time_op(breaks_later, tolerance=0)
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
        convtime.time_op(torch.relu, x, max_samples=500, tolerance=0)
        assert torch.cuda.memory_stats()["num_device_alloc"] == before


def profiled_kernel_seconds(fn: Callable[[], object], calls: int = 20) -> float:
    """Median time of a call's kernels, by torch.profiler."""
    fn()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            torch.ops.convtime.flush_l2()
            fn()
        torch.cuda.synchronize()
    kernels = [
        event.device_time
        for event in profile.events()
        if event.device_type == DeviceType.CUDA and "Memset" not in event.name
    ]
    each = len(kernels) // calls
    return float(np.median(np.reshape(kernels, (calls, each)).sum(axis=1))) * 1e-6


@pytest.mark.timing
def test_each_sample_has_its_batch() -> None:
    compared = convtime.compare(
        {"add": lambda: 1 + 1, "sub": lambda: 1 - 1},
        device="cpu",
        warmup=1,
        stop="count",
        max_samples=150,
    )
    add, sub = compared.measurements.values()
    assert len(add.batches) == 150
    assert add.batches == sub.batches == tuple(sorted(add.batches))
    assert len(set(add.batches)) >= 3  # of 64 rounds at most
    assert add.places == ()
    assert 0 < add.clock_tick < 1e-6
    assert add.interval_over == "batches"
    assert 2 <= add.interval_count <= len(set(add.batches))


@pytest.mark.cuda
@pytest.mark.timing
@pytest.mark.parametrize("method", ["kernel", "event", "graph"])
def test_samples_are_read_from_a_clock_that_ticks(method: Method) -> None:
    x = torch.ones(1 << 20, device="cuda")
    one = convtime.time_op(torch.relu, x, method=method)
    tick = one.clock_tick
    assert 1e-9 <= tick < 2e-6
    assert len(one.batches) == len(one.seconds)
    low, high = one.median_interval
    assert high - low >= tick / 4
    if method != "graph":  # whose samples are averages
        raw = one.raw_seconds or one.seconds
        off = [abs(sample / tick - round(sample / tick)) * tick for sample in raw]
        assert max(off) < 2e-9  # as far as they are rounded


@pytest.mark.cuda
@pytest.mark.timing
@pytest.mark.parametrize("cache", ["cold", "warm", "rotate"])
def test_a_graph_times_what_the_profiler_sees(cache: Cache) -> None:
    x = torch.randn(1 << 22, device="cuda")
    one, kernel = (
        # A graph's results lie elsewhere than those of other calls.
        convtime.time_op(torch.relu, x, method=method, cache=cache, placement="as-is")
        for method in ("graph", "kernel")
    )
    assert (one.method, one.queue, one.cache) == ("graph", "gate", cache)
    assert one.overhead > 0
    assert one.raw_seconds[0] - one.seconds[0] == pytest.approx(one.overhead)
    assert one.median == pytest.approx(kernel.median, abs=0.5e-6, rel=0.03)
    if cache == "cold":
        expected = profiled_kernel_seconds(lambda: torch.relu(x))
        assert one.median == pytest.approx(expected, abs=0.5e-6, rel=0.03)


@pytest.mark.cuda
def test_what_breaks_a_capture_is_named_and_nothing_stays_broken() -> None:
    x = torch.randn(1024, device="cuda")
    with pytest.raises(RuntimeError, match="method 'graph' cannot capture this call: .*capturing"):
        convtime.time_op(lambda: x.sum().item(), device="cuda", method="graph")
    before = torch.cuda.memory_reserved()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="cannot capture"):
            convtime.time_op(lambda: torch.randn(1 << 20, device="cuda").cpu(), method="graph")
    assert torch.randn(8, device="cuda").isfinite().all()  # the generator works
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before
    assert convtime.time_op(torch.relu, x, method="graph").method == "graph"


@pytest.mark.cuda
def test_an_interrupt_while_capturing_is_an_interrupt() -> None:
    def interrupted() -> None:
        if torch.cuda.is_current_stream_capturing():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convtime.time_op(interrupted, device="cuda", method="graph")
    x = torch.randn(1024, device="cuda")
    assert convtime.time_op(torch.relu, x, method="graph").method == "graph"


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


@pytest.mark.cuda
def test_threads_can_wait_for_the_same_calibration() -> None:
    """Whoever calibrates waits for the GPU without the GIL, which the others then have."""
    subprocess.run([sys.executable, "-c", _TIMES_IN_THREADS], check=True, timeout=50)


@pytest.mark.cuda
def test_a_thread_that_finds_cupti_taken_is_told_so_once() -> None:
    x = torch.ones(1 << 10, device="cuda")
    started, errors = threading.Event(), []

    def refused() -> None:
        started.wait()
        try:
            convtime.time_op(torch.relu, x, method="kernel", exclusive=False)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=refused)
    thread.start()
    try:
        convtime.time_op(
            torch.relu, x, method="kernel", before=started.set, stop="budget", budget=0.5
        )
    finally:
        started.set()
        thread.join()
    assert errors == [
        "method 'kernel' cannot be used: another timing or recording of this process uses it, and "
        "CUPTI serves one at a time; use 'event' or 'auto'"
    ]


@pytest.mark.cuda
def test_random_numbers_can_be_captured() -> None:
    x = torch.empty(1 << 20, device="cuda")
    assert convtime.time_op(x.normal_, method="graph").method == "graph"
    assert torch.randn(8, device="cuda").isfinite().all()


@pytest.mark.timing
@pytest.mark.cuda
@pytest.mark.parametrize("method", ["kernel", "event", "sync"])
def test_every_sample_carries_its_clock(method: Method) -> None:
    x = torch.randn(1 << 20, device="cuda")
    one = convtime.time_op(torch.relu, x, method=method, cache="warm")
    assert one.max_sm_clock_hz is not None
    assert len(one.sm_clocks_hz) == len(one.seconds)
    known = [clock for clock in one.sm_clocks_hz if clock is not None]
    assert len(known) > 0.9 * len(one.seconds)
    assert all(1e8 < clock < 1.02 * one.max_sm_clock_hz for clock in known)


@pytest.mark.timing
@pytest.mark.cuda
def test_rotation_makes_small_tensors_cold() -> None:
    x = torch.randn(1 << 20, device="cuda")  # 4 MiB: in the cache, if warm
    y = torch.empty_like(x)
    times = {
        cache: convtime.time_op(torch.neg, x, kwargs={"out": y}, cache=cache)
        for cache in ("warm", "rotate", "cold")
    }
    assert times["rotate"].cache == "rotate"
    assert times["rotate"].median > 1.3 * times["warm"].median
    assert times["rotate"].median == pytest.approx(times["cold"].median, rel=0.3)


@pytest.mark.cuda
def test_what_cannot_be_rotated_is_named() -> None:
    x = torch.randn(1 << 20, device="cuda")
    y = torch.randn(1 << 20, device="cuda")
    one = convtime.time_op(functools.partial(lambda: x + 1), cache="rotate")
    assert (one.cache, one.cache.requested) == ("warm", "rotate")
    assert "closure variable 'x'" in one.cache.reason
    one = convtime.time_op(functools.partial(lambda a: a + x, y), cache="rotate")
    assert one.cache == "partly warm"
    assert "closure variable 'x'" in one.cache.reason


@pytest.mark.cuda
def test_backward_times_the_backward_pass_alone() -> None:
    module = torch.nn.Linear(512, 512, device="cuda")
    x = torch.randn(512, 512, device="cuda", requires_grad=True)
    forward = convtime.time_op(module, x)
    backward = convtime.time_op(module, x, backward=True)
    names = [activity.name for activity in backward.activities]
    assert len(names) > len(forward.activities)
    assert not any("accumulate" in name or "vectorized_elementwise" in name for name in names), (
        "a gradient was added to another"
    )
    assert x.grad is not None
    rotated = convtime.time_op(module, x, backward=True, cache="rotate")
    assert rotated.cache == "rotate"
    with pytest.raises(ValueError, match="backward=True needs a result that requires grad"):
        convtime.time_op(torch.relu, x.detach(), backward=True)


@pytest.mark.cuda
def test_gradients_are_cleared_where_asked() -> None:
    x = torch.randn(1 << 20, device="cuda", requires_grad=True)
    loss = torch.relu(x).sum()
    adding = convtime.time_op(loss.backward, kwargs={"retain_graph": True})
    writing = convtime.time_op(loss.backward, kwargs={"retain_graph": True}, grad_to_none=[x])
    assert len(writing.activities) < len(adding.activities)


@pytest.mark.timing
@pytest.mark.cuda
def test_work_goes_to_the_stream_asked_for() -> None:
    x = torch.randn(1 << 20, device="cuda")
    stream = torch.cuda.Stream()
    seen: set[int] = set()

    def call() -> torch.Tensor:
        seen.add(torch.cuda.current_stream().cuda_stream)
        return torch.relu(x)

    for method in ("kernel", "event", "graph"):
        one = convtime.time_op(call, stream=stream, method=method)
        assert one.stream == stream.cuda_stream
        assert one.median < 20e-6
    assert stream.cuda_stream in seen
    with pytest.raises(TypeError, match="stream must be a torch.cuda.Stream, got 7"):
        convtime.time_op(call, stream=7)  # type: ignore[arg-type]


@pytest.mark.cuda
def test_kernels_on_other_streams_count() -> None:
    x = torch.randn(1 << 20, device="cuda")
    side = torch.cuda.Stream()

    def call() -> None:
        with torch.cuda.stream(side):
            torch.relu(x)
        torch.neg(x)

    one = convtime.time_op(call)
    assert len(one.activities) == 2


@pytest.mark.timing
@pytest.mark.cuda
def test_steady_warm_up_ends_and_says_so() -> None:
    x = torch.randn(1 << 20, device="cuda")
    one = convtime.time_op(torch.relu, x)
    assert one.steady is True
    assert one.warmup_seconds < 0.5
    assert convtime.time_op(torch.relu, x, warmup=5).steady is None
    timed = convtime.time_op(torch.relu, x, warmup=0.1)
    assert 0.1 <= timed.warmup_seconds < 0.3


@pytest.mark.timing
@pytest.mark.cuda
@pytest.mark.parametrize("stop", ["interval", "noise", "entropy", "count", "budget"])
def test_every_stop_criterion_ends(stop: Stop) -> None:
    x = torch.randn(1 << 20, device="cuda")
    most = 2000 if stop == "count" else None
    one = convtime.time_op(torch.relu, x, stop=stop, max_samples=most, budget=0.5)
    assert one.stop == stop
    assert one.stop_reason == {"count": "max_samples", "budget": "budget"}.get(stop, "settled")


@pytest.mark.timing
@pytest.mark.cuda
def test_ceilings_are_possible_for_a_gpu() -> None:
    ceilings = convtime.ceilings()
    assert 1e11 < ceilings.bytes_per_second < 1e13
    assert 1e12 < ceilings.flops_per_second < 1e16
    assert convtime.ceilings() is ceilings
    x = torch.randn(1 << 26, device="cuda")
    one = convtime.time_op(torch.neg, x, nbytes=2 * x.nbytes)
    assert one.bytes_per_second is not None
    assert 0.5 < one.bytes_per_second / ceilings.bytes_per_second < 1.5


@pytest.mark.cuda
def test_the_calls_of_a_captured_graph_can_be_timed() -> None:
    """Replaying is a call like others, and what it holds is listed."""
    x = torch.randn(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.relu(x)
    with torch.cuda.graph(graph):
        y = torch.relu(x)
        y = torch.relu(y)
    one = convtime.time_op(graph.replay)
    assert sum(activity.kind == "kernel" for activity in one.activities) == 2


@pytest.mark.cuda
def test_a_capture_that_fails_warns_of_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.relu(x)
    with torch.cuda.graph(graph):
        torch.relu(x)
    with pytest.raises(RuntimeError, match="cannot capture"):
        convtime.time_op(graph.replay, method="graph")
    assert "Graph is empty" not in capfd.readouterr().err


@pytest.mark.timing
@pytest.mark.cuda
@pytest.mark.parametrize("method", ["kernel", "sync"])
def test_calls_can_use_two_devices(method: Method) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x, y = (torch.ones(1 << 20, device=f"cuda:{index}") for index in range(2))

    def both() -> None:
        torch.relu(x)
        with torch.cuda.device(1):
            torch.neg(y)

    with pytest.raises(ValueError, match="the calls use several devices; use 'kernel', 'sync'"):
        convtime.time_op(both, method="event")
    cold = convtime.time_op(both, method=method)
    warm = convtime.time_op(both, method=method, cache="warm")
    assert cold.device == "cuda:0"
    if method == "kernel":  # the host does not see which device took how long
        near = {activity.name: activity.seconds for activity in warm.activities}
        assert len(near) == len(cold.activities) == 2
        for far in cold.activities:  # the input comes from memory again, on each of the devices
            assert statistics.median(far.seconds) > 1.3 * statistics.median(near[far.name])


@pytest.mark.timing
@pytest.mark.cuda
def test_a_device_that_is_not_the_current_one_can_be_timed() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = torch.ones(1 << 20, device="cuda:1")
    for method in ("kernel", "event", "graph", "sync"):
        one = convtime.time_op(torch.relu, x, method=method)
        assert (one.device, one.method) == ("cuda:1", method)
        assert 1e-6 < one.median < 50e-6
    assert torch.cuda.current_device() == 0


def test_the_options_signature_docs_and_types_are_one_list() -> None:
    names = [field.name for field in dataclasses.fields(Options)]
    for function, but in (
        (convtime.time_op, {"margin"}),
        (convtime.compare, set()),
        (convtime.race, set(OWN_OPTIONS)),
    ):
        parameters = inspect.signature(function).parameters
        taken = [name for name in names if name not in but]
        assert set(taken) <= set(parameters)
        assert all(f"        {name}: " in (function.__doc__ or "") for name in taken)
        assert "{options}" not in (function.__doc__ or "")
    # What type checkers see is written out beside it, since no type follows from a dataclass.
    source = ast.parse(inspect.getsource(options_module))
    shared = [
        node
        for node in ast.walk(source)
        if isinstance(node, ast.ClassDef)
        and node.name in ("DeviceOptions", "RaceOptions", "ConditionOptions", "SharedOptions")
    ]
    typed = {
        statement.target.id: ast.unparse(statement.annotation)
        for node in shared
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    (listed,) = (
        node
        for node in ast.walk(source)
        if isinstance(node, ast.ClassDef) and node.name == "Options"
    )
    annotated = {
        statement.target.id: ast.unparse(statement.annotation.slice.elts[0])  # type: ignore[attr-defined]
        for statement in listed.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    assert typed == {
        name: kind for name, kind in annotated.items() if name not in ("stop", "margin")
    }
