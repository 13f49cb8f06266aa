"""Energy and memory of a call: the counter's steps, on a fake of NVML; and on a GPU."""

import contextlib
import types

import pytest
import torch

import convtime
from convtime.counting import costs
from convtime.counting.costs import _counter, watch
from convtime.counting.costs_result import Energy, PeakMemory
from convtime.counting.kernel_counters import CountersUnavailable
from convtime.timing.sampling.measure import Place


class Machine:
    """A GPU that draws so many watts, with a counter that moves every tenth of a second."""

    def __init__(self, watts, batch_seconds, calls_of_batch, step_seconds=0.1):
        self.now = 0.0
        self.watts = watts
        self.batch_seconds = batch_seconds
        self.calls_of_batch = calls_of_batch
        self.step_seconds = step_seconds

    def next(self):
        self.now += self.batch_seconds
        return self.calls_of_batch

    def joules(self):
        return self.watts * (self.now // self.step_seconds) * self.step_seconds

    def clock(self):
        return self.now


def test_energy_is_that_between_two_steps_of_the_counter():
    machine = Machine(watts=500, batch_seconds=0.005, calls_of_batch=100)
    watched = watch(machine, machine.joules, 2.0, machine.clock)
    truth = 500 * 0.005 / 100
    assert watched.joules / watched.calls == pytest.approx(truth, rel=0.01)
    assert 2.0 <= watched.seconds <= 2.2
    resolution = watched.resolution / watched.calls
    assert abs(watched.joules / watched.calls - truth) <= resolution < 0.06 * truth


def test_long_calls_are_known_less_well():
    machine = Machine(watts=500, batch_seconds=0.3, calls_of_batch=1)
    watched = watch(machine, machine.joules, 3.0, machine.clock)
    truth = 500 * 0.3
    assert abs(watched.joules / watched.calls - truth) <= watched.resolution / watched.calls


def test_a_counter_that_stands_still_is_said_to():
    machine = Machine(watts=0, batch_seconds=0.01, calls_of_batch=1)
    with pytest.raises(CountersUnavailable, match="counter did not change during 1.0 s of work"):
        watch(machine, machine.joules, 1.0, machine.clock)


def test_the_counter_is_nvmls_in_joules(gpu):
    steps = iter([1000, 1000, 2500])
    gpu.answers["TotalEnergyConsumption"] = lambda: next(steps)
    with _counter(torch.device("cuda", 0)) as joules:
        assert [joules(), joules()] == [1.0, 2.5]


@pytest.mark.parametrize("error", ["NotSupported", "NoPermission"])
def test_a_gpu_that_does_not_count_its_energy(gpu, error):
    gpu.answers["TotalEnergyConsumption"] = getattr(gpu, f"NVMLError_{error}")()
    with (
        pytest.raises(CountersUnavailable, match="cuda:0 or its driver does not count it"),
        _counter(torch.device("cuda", 0)),
    ):
        pass


def test_without_nvml_the_reason_is_told(gpu):
    gpu.failures["Init"] = gpu.NVMLError_DriverNotLoaded()
    with (
        pytest.raises(CountersUnavailable, match="energy cannot be read: NVML cannot be asked"),
        _counter(torch.device("cuda", 0)),
    ):
        pass


class Meter:
    """A GPU's counter of energy that moves where something is told to draw it, and batches of 1."""

    def __init__(self, monkeypatch):
        self.total = 0.0
        cpu = Place(torch.device("cpu"), (), "")
        monkeypatch.setattr(costs, "_WARM_UP_SECONDS", 0)
        monkeypatch.setattr(costs, "gpu_place", lambda *_: cpu)
        monkeypatch.setattr(costs, "_counter", lambda _: contextlib.nullcontext(lambda: self.total))
        monkeypatch.setattr(costs, "_Batches", self.batches)

    def batches(self, call):
        def next_batch():
            call()
            return 1

        return types.SimpleNamespace(next=next_batch)

    def draw(self, joules):
        self.total += joules


@pytest.mark.parametrize("before", [None, 0.5, 300])
def test_energy_of_a_setup_is_not_the_calls(monkeypatch, before):
    meter = Meter(monkeypatch)
    setup = None if before is None else lambda: meter.draw(before)
    found = convtime.energy(meter.draw, 100, before=setup, seconds=0.01)
    assert found.joules == pytest.approx(100)


def test_energy_of_a_backward_pass_is_not_that_of_the_forward_pass(monkeypatch):
    meter = Meter(monkeypatch)

    class Op(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            meter.draw(300)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            meter.draw(100)
            return gradient

    x = torch.ones(4, requires_grad=True)
    found = convtime.energy(Op.apply, x, backward=True, before=lambda: meter.draw(7), seconds=0.01)
    assert found.joules == pytest.approx(100)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "long"])
def test_seconds_must_be_positive(seconds):
    with pytest.raises(ValueError, match="seconds must be a positive number, got"):
        convtime.energy(torch.relu, torch.zeros(3), seconds=seconds)


def test_costs_are_sentences():
    told = str(Energy("mm", 0.0123, 0.0002, 650.4, 2.04, 108_000, "cuda:0"))
    assert told == "mm: 12.3 mJ ± 200 µJ a call, at 650 W over 108,000 calls in 2 s on cuda:0"
    told = str(PeakMemory("mm", 8_388_608, 4_194_304, "cuda:0"))
    assert told == "mm: 8.389 MB at most on cuda:0, 4.194 MB of them its result"


@pytest.mark.cuda
@pytest.mark.timing
def test_a_matmul_takes_energy():
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    found = convtime.energy(torch.mm, x, x, seconds=1.0)
    seconds = convtime.time_op(torch.mm, x, x, cache="warm", regime="sustained").median
    assert 50 < found.watts < 2000
    assert found.joules == pytest.approx(found.watts * seconds, rel=0.5)
    assert 0 < found.resolution < found.joules


@pytest.mark.cuda
def test_peak_memory_is_the_allocators():
    x = torch.randn(1 << 20, device="cuda")

    def work():
        twice = torch.cat([x, x])
        return twice.sum()

    found = convtime.peak_memory(work)
    assert 8 << 20 <= found.bytes < 9 << 20
    assert 0 < found.result_bytes < 1 << 20
    assert found.device == "cuda:0"


@pytest.mark.cuda
def test_peak_memory_of_a_backward_pass_is_not_that_of_the_forward_pass():
    x = torch.randn(1 << 20, device="cuda", requires_grad=True)

    def forward(x):
        waste = torch.empty(16 << 20, device="cuda")  # 64 MiB that only the forward pass takes
        del waste
        return x.exp()

    found = convtime.peak_memory(forward, x, backward=True)
    assert 4 << 20 <= found.bytes < 17 << 20
    assert found.result_bytes == 4 << 20  # the gradient of x


@pytest.mark.cuda
def test_peak_memory_of_a_setup_is_not_the_calls():
    x = torch.randn(1 << 20, device="cuda")
    kept = {}

    def setup():
        kept["large"] = torch.empty(16 << 20, device="cuda")

    assert 4 << 20 <= convtime.peak_memory(torch.relu, x, before=setup).bytes < 5 << 20


@pytest.mark.cuda
@pytest.mark.timing
def test_a_backward_pass_takes_its_own_energy():
    # Large enough for a slow host: it issues a backward pass while the GPU computes the one before.
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    y = x.clone().requires_grad_()
    forward = convtime.energy(torch.mm, x, y, seconds=1.0)
    backward = convtime.energy(torch.mm, x, y, backward=True, seconds=1.0)  # a product, too
    # Of other layouts, and without the forward pass, which would double it.
    assert backward.joules == pytest.approx(forward.joules, rel=0.5)
