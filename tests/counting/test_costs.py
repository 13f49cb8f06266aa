"""Energy and memory of a call: on simulated counters and allocators, a fake of NVML, and a GPU."""

import contextlib
import functools
import itertools
import types
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import convtime
from convtime.counting import costs
from convtime.counting.costs import _Batches, _counter, watch
from convtime.counting.results import CountersUnavailable, Energy, PeakMemory
from convtime.timing.sampling.measure import WorkDevices


class Meter:
    """A GPU whose counter shows the energy that was drawn in whole steps; notes each reading."""

    def __init__(self, step=0.0):
        self.now = 0.0
        self.drawn = 0.0
        self.calls = 0
        self.readings = []
        self._step = step

    def clock(self):
        return self.now

    def work(self, joules, seconds=0.001):
        self.drawn += joules
        self.now += seconds

    def joules(self):
        shown = self.drawn // self._step * self._step if self._step else self.drawn
        self.readings.append((self.now, shown, self.calls))
        return shown

    def batches_of(self, sizes, joules, seconds, burst=0):
        """Batches of so many calls, in turn; each takes the same, the first after 0.5 s more."""
        turns, more = itertools.cycle(sizes), [burst]

        def next_batch():
            size = next(turns)
            self.calls += size
            if self.now >= 0.5 and more:
                self.drawn += more.pop()
            self.work(size * joules, size * seconds)
            return size

        return types.SimpleNamespace(next=next_batch)


@settings(max_examples=50)
@given(
    watts=st.floats(50, 1000),
    call_seconds=st.floats(1e-4, 0.05),
    step=st.floats(0.1, 40),
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    asked=st.floats(0.5, 3),
    burst=st.sampled_from([0, 1000]),
)
def test_energy_is_that_between_two_steps_of_the_counter(
    watts, call_seconds, step, sizes, asked, burst
):
    assume(step < 0.5 * watts)  # or the counter would stand still for too long
    meter = Meter(step)
    truth = watts * call_seconds
    watched = watch(
        meter.batches_of(sizes, truth, call_seconds, burst), meter.joules, asked, clock=meter.clock
    )
    assert abs(watched.joules / watched.calls - truth) <= watched.resolution / watched.calls
    # The same by numpy, from all readings: the first begins a step of the counter, or none.
    times, shown, calls = np.array(meter.readings).T
    assert times[0] >= 0.5, "it warms up"
    (steps,) = np.nonzero(np.diff(shown))
    steps += 1
    first = steps[0]
    last = steps[np.argmax(times[steps] - times[first] >= asked)]
    assert last == len(times) - 1, "it ends with the first step that is late enough"
    assert watched.calls == calls[last] - calls[first]
    assert watched.joules == shown[last] - shown[first]
    assert watched.seconds == times[last] - times[first]
    unsure = calls[first] - calls[first - 1] + calls[last] - calls[last - 1]
    assert watched.resolution == pytest.approx(
        np.diff(shown)[first:last].max() + watched.joules * unsure / watched.calls
    )


def test_a_counter_that_stands_still_is_said_to():
    meter = Meter()
    with pytest.raises(CountersUnavailable, match=r"counter did not change during 1.0 s of work"):
        watch(meter.batches_of([1], 0, 0.01), meter.joules, 0.1, meter.clock)
    assert meter.now == pytest.approx(0.5 + 1.0, abs=0.03)
    slow = Meter(step=99)  # a step each 0.99 s
    assert watch(slow.batches_of([1], 1, 0.01), slow.joules, 0.1, slow.clock).joules == 99


@settings(max_examples=30)
@given(call_seconds=st.floats(1e-6, 0.01), count=st.integers(2, 20))
def test_batches_double_until_they_last_long_enough(call_seconds, count):
    meter = Meter()
    waited = []

    class Event:
        def record(self):
            self.calls = meter.calls

        def synchronize(self):
            waited.append(self.calls)

    def call():
        meter.calls += 1
        meter.work(0, call_seconds)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.cuda, "Event", Event)
        patched.setattr(costs, "time", types.SimpleNamespace(perf_counter=meter.clock))
        batches = _Batches(call)
        ends, done = [], []
        for _ in range(count):
            done.append(batches.next())
            ends.append(meter.calls)
    sizes = np.diff([0, *ends])
    assert done == [0, *sizes[:-1]], "one batch waits while another runs"
    assert waited == ends[:-1]
    for size, later in itertools.pairwise(sizes):
        assert later == (size if size * call_seconds >= 0.0025 else min(2 * size, 1000))


@pytest.fixture
def meter(monkeypatch):
    """What stands in for the GPU and its counter."""
    meter = Meter()

    def batches(call):
        def next_batch():
            call()
            meter.calls += 1
            return 1

        return types.SimpleNamespace(next=next_batch)

    monkeypatch.setattr(costs, "watch", functools.partial(watch, clock=meter.clock))
    monkeypatch.setattr(costs, "gpu_of_work", lambda *_: WorkDevices(torch.device("cpu"), (), ""))
    monkeypatch.setattr(costs, "_counter", lambda _: contextlib.nullcontext(meter.joules))
    monkeypatch.setattr(costs, "_Batches", batches)
    return meter


@pytest.mark.parametrize("before", [None, 0.5, 300])
def test_energy_of_a_setup_is_not_the_calls(meter, before):
    setup = None if before is None else lambda: meter.work(before, 0.003)
    found = convtime.energy(meter.work, 100, before=setup, seconds=0.1003, name="mine")
    assert found.joules == pytest.approx(100)
    apart = 0 if before is None else before
    duration = 0.001 if before is None else 0.004
    # The step and the two ends are a call each; the setup alone is watched for 34 calls.
    assert found.resolution == pytest.approx(3 * (100 + apart) / found.calls + 3 * apart / 34)
    assert found.watts == pytest.approx((100 + apart) / duration)
    assert found.seconds == pytest.approx(found.calls * duration)
    assert found.seconds >= 0.1003
    assert found.name == "mine"
    wrong: list[Any] = [0, -1, float("nan"), float("inf"), "long"]
    for seconds in wrong:
        with pytest.raises(ValueError, match="seconds must be a positive number, got"):
            convtime.energy(torch.relu, torch.zeros(3), seconds=seconds)


def test_energy_of_a_backward_pass_is_not_that_of_the_forward_pass(meter):
    class Op(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            meter.work(300)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            meter.work(100)
            return gradient

    x = torch.ones(4, requires_grad=True)
    found = convtime.energy(Op.apply, x, backward=True, before=lambda: meter.work(7), seconds=0.1)
    assert found.joules == pytest.approx(100)


def test_the_counter_is_nvmls_in_joules(gpu):
    steps = iter([1000, 1000, 2500])
    gpu.answers["TotalEnergyConsumption"] = lambda: next(steps)
    with _counter(torch.device("cuda", 0)) as joules:
        assert [joules(), joules()] == [1.0, 2.5]
    for said in ("cuda:0 or its driver does not count it", "NVML cannot be asked"):
        gpu.answers["TotalEnergyConsumption"] = gpu.NVMLError_NotSupported()
        with pytest.raises(CountersUnavailable, match=said), _counter(torch.device("cuda", 0)):
            pass
        gpu.failures["Init"] = gpu.NVMLError_DriverNotLoaded()


@given(exponent=st.floats(-6, 4), sign=st.sampled_from([1, -1]), size=st.integers(1, 10**12))
def test_costs_are_sentences(exponent, sign, size):
    joules = sign * 10**exponent
    told = str(Energy("mm", joules, 0.0002, 650.4, 2.04, 108_000, "cuda:0"))
    number, unit = told.removeprefix("mm: ").split()[:2]
    assert float(number) * {"J": 1, "mJ": 1e-3, "µJ": 1e-6}[unit] == pytest.approx(joules, rel=5e-3)
    assert unit == "J" or abs(float(number)) <= 1000
    assert told.endswith("± 200 µJ a call, at 650 W over 108,000 calls in 2 s on cuda:0")
    told = str(PeakMemory("mm", size, 4_194_304, "cuda:0"))
    assert float(told.split()[1].replace(",", "")) == pytest.approx(size / 1e6, abs=5e-4)
    assert told.endswith("MB at most on cuda:0, 4.194 MB of them its result")


@settings(max_examples=30)
@given(*[st.integers(0, 1 << 30)] * 5)
def test_peak_memory_is_that_of_one_call(allocated, workspace, setup, temporary, result):
    # PyTorch's allocator of a GPU, as far as it counts.
    now = types.SimpleNamespace(allocated=allocated, peak=allocated)
    calls = itertools.count()

    def take(*sizes):
        for size in sizes:
            now.allocated += size
            now.peak = max(now.peak, now.allocated)

    def call():
        take(workspace if next(calls) == 0 else 0, temporary, -temporary, result)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(costs, "gpu_of_work", lambda *_: WorkDevices(torch.device("cpu"), (), ""))
        for name, answer in {
            "synchronize": lambda _: None,
            "reset_peak_memory_stats": lambda _: setattr(now, "peak", now.allocated),
            "memory_allocated": lambda _: now.allocated,
            "max_memory_allocated": lambda _: now.peak,
        }.items():
            patched.setattr(torch.cuda, name, answer)
        found = convtime.peak_memory(call, before=lambda: take(setup))
    assert (found.bytes, found.result_bytes) == (max(temporary, result), result)


@pytest.mark.cuda
@pytest.mark.timing
def test_a_matmul_and_its_gradient_take_energy():
    # Large enough for a slow host: it issues a backward pass while the GPU computes the one before.
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    y = x.clone().requires_grad_()
    forward = convtime.energy(torch.mm, x, y, seconds=1.0)
    seconds = convtime.time_op(torch.mm, x, y, cache="warm", regime="sustained").median
    assert 50 < forward.watts < 2000
    assert forward.joules == pytest.approx(forward.watts * seconds, rel=0.5)
    assert 0 < forward.resolution < forward.joules
    backward = convtime.energy(torch.mm, x, y, backward=True, seconds=1.0)  # a product, too
    # Of other layouts, and without the forward pass, which would double it.
    assert backward.joules == pytest.approx(forward.joules, rel=0.5)


@pytest.mark.cuda
def test_peak_memory_is_the_allocators():
    x = torch.randn(1 << 20, device="cuda", requires_grad=True)
    kept = {}

    def setup():
        kept["large"] = torch.empty(16 << 20, device="cuda")

    found = convtime.peak_memory(lambda: torch.cat([x, x]).detach().sum(), before=setup)
    assert 8 << 20 <= found.bytes < 9 << 20
    assert 0 < found.result_bytes < 1 << 20
    assert found.device == "cuda:0"

    def forward(x):
        torch.empty(16 << 20, device="cuda")  # 64 MiB that only the forward pass takes
        return x.exp()

    found = convtime.peak_memory(forward, x, backward=True)
    assert 4 << 20 <= found.bytes < 17 << 20
    assert found.result_bytes == 4 << 20  # the gradient of x
