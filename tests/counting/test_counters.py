"""convtime.counters: options and refusals, what the core is asked for; and on a GPU."""

import contextlib
import itertools
import math
from typing import Any

import pytest
import torch

import convtime
from convtime.core.load import _C
from convtime.counting.metrics import DURATION, GROUPS
from convtime.counting.results import CountersUnavailable
from convtime.timing.measurement import Condition
from convtime.timing.sampling.measure import WorkDevices
from tests.helpers.gh100 import Gh100

READ = "dram__bytes_read.sum"


def test_without_a_gpu_there_are_no_counters(monkeypatch):
    monkeypatch.setattr(_C, "cuda_available", lambda: False)
    for read in (
        lambda: convtime.counters(torch.relu, torch.zeros(3)),
        lambda: convtime.energy(torch.relu, torch.zeros(3)),
        lambda: convtime.peak_memory(torch.relu, torch.zeros(3)),
        convtime.counter_names,
    ):
        with pytest.raises(CountersUnavailable, match="PyTorch finds no GPU that it can use"):
            read()
    assert issubclass(CountersUnavailable, RuntimeError)
    with pytest.raises(TypeError, match="must be callable"):
        convtime.counters(3)  # type: ignore[arg-type]
    for options, said in (
        ({"metrics": "dramm"}, "no metric or group 'dramm'"),
        ({"replay": "range"}, "replay must be one of 'call', 'kernel', got 'range'"),
        ({"cache": "rotate"}, "cache must be one of 'cold', 'cold-clean', 'warm', got 'rotate'"),
        ({"repeats": 0}, "repeats must be a whole number, 1 or more, got 0"),
        ({"repeats": 1.5}, "repeats must be a whole number, 1 or more, got 1.5"),
        ({"repeats": True}, "repeats must be a whole number, 1 or more, got True"),
    ):  # told before the machine is looked at
        with pytest.raises(ValueError, match=".") as raised:
            convtime.counters(torch.relu, torch.zeros(3), **options)
        assert said in str(raised.value)


class Core:
    """Stands in for what needs a GPU: it makes the call that it is to count, and notes the rest."""

    def __init__(self):
        self.asked = None
        self.refuses = None

    def count_kernels(self, *, call, **asked):
        if self.refuses:
            raise _C.CuptiError(self.refuses, "CUPTI call failed: f returned something")
        self.asked = asked
        fn, args, kwargs, setup = call
        if setup is not None:
            setup()
        fn(*args, **kwargs)
        values = [[float(place) for place in range(len(asked["metrics"]))]]
        return {
            "launches": [("copy", (8, 1, 1), (128, 1, 1))],
            "unnamed": "",
            "passes": 3,
            "values": [values],
        }


@pytest.fixture
def core(monkeypatch):
    core, gpu = Core(), torch.device("cuda", 0)
    monkeypatch.setattr(_C, "cuda_available", lambda: True)
    monkeypatch.setattr(_C, "count_kernels", core.count_kernels, raising=False)
    monkeypatch.setattr(_C, "CuptiError", type("CuptiError", (RuntimeError,), {}), raising=False)
    turn = {"exclusive": Condition(True, True)}
    for name, stand_in in {
        "find_devices": lambda _candidates, _device: WorkDevices(gpu, (), "asked for"),
        "on": lambda _device, _stream: contextlib.nullcontext(),
        "take_turn": lambda *_: contextlib.nullcontext(turn),
        "provenance": lambda _device: {"gpu": "H200"},
        "flush_buffers": lambda _cache, _gpus: [],
        "without_persisting_lines": lambda _cache, _gpus: contextlib.nullcontext(""),
        "GpuChip": lambda _device: Gh100(),
    }.items():
        monkeypatch.setattr(f"convtime.counting.counters.{name}", stand_in)
    return core


def test_the_core_counts_the_call_as_asked(core):
    seen: list[object] = []
    counters = convtime.counters(
        lambda *args, **kwargs: seen.append((args, kwargs)),
        1,
        kwargs={"two": 2},
        metrics="dram,dram_read_bytes",
        name="mine",
        before=lambda: seen.append("set up"),
        repeats=2,
        replay="kernel",
        cache="warm",
    )
    assert seen == ["set up", ((1,), {"two": 2})]
    assert core.asked["metrics"][:2] == [DURATION, READ]
    assert (core.asked["replays_kernels"], core.asked["repeats"]) == (True, 2)
    assert (counters.name, counters.cache, counters.replay) == ("mine", "warm", "kernel")
    assert counters["dram_read_bytes"] == counters[READ] == 1
    assert counters.provenance == {"gpu": "H200"}
    x = torch.ones(3, requires_grad=True)
    convtime.counters(torch.sum, x, backward=True)  # with its forward pass before it
    assert x.grad is not None


def test_what_cupti_refuses_is_told(core):
    for refusal, said in (
        ("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("kernels uncounted", "cannot be read: CUPTI call failed"),
        ("CUPTI_ERROR_INVALID_OPERATION", "could not be read: CUPTI call failed"),
    ):
        core.refuses = refusal
        with pytest.raises(RuntimeError, match=said) as raised:
            convtime.counters(torch.relu, torch.zeros(3))
        assert isinstance(raised.value, CountersUnavailable) == ("could not" not in said)


# On a GPU.

MIB = 1 << 20
REPLAYS: tuple[Any, ...] = ("call", "kernel")


def floats(count):
    return torch.randn(count, device="cuda")


@pytest.mark.cuda
def test_a_large_relu_reads_and_writes_its_tensors():
    x = floats(64 * MIB).requires_grad_()  # far more than the L2 cache holds
    backward = convtime.counters(torch.relu, x, backward=True, metrics="dram")
    assert backward[READ] == pytest.approx(2 * x.nbytes, rel=0.1)  # gradient and result
    x = x.detach()
    graph = graph_of(1, x)
    for replay in REPLAYS:
        counters = convtime.counters(torch.relu, x, metrics=["dram", "time"], replay=replay)
        assert counters[READ] == pytest.approx(x.nbytes, rel=0.1)
        # Some of what it wrote is in the cache when it ends, and some was when it began.
        assert counters["dram__bytes_write.sum"] == pytest.approx(x.nbytes, rel=0.3)
        assert counters["dram__sectors_read.sum"] * 32 == pytest.approx(counters[READ], rel=0.01)
        assert counters.replay == replay
        (kernel,) = counters.kernels
        assert kernel.launches == 1
        assert counters.kernels_reason == ""
        captured = convtime.counters(graph.replay, metrics="dram", replay=replay, device="cuda")
        assert captured[READ] == pytest.approx(x.nbytes, rel=0.1)


@pytest.mark.cuda
def test_kernels_are_those_that_a_timing_sees():
    x, weight = floats(64 * 56 * 56).view(1, 64, 56, 56), floats(64 * 64 * 9).view(64, 64, 3, 3)

    def work():
        return torch.relu(torch.nn.functional.conv2d(x, weight, padding=1)).sum()

    counters = convtime.counters(work)
    timed = convtime.time_op(work, method="kernel")
    seen = sorted((each.name, each.grid) for each in timed.activities if each.kind == "kernel")
    counted = itertools.chain.from_iterable(
        [(each.name, each.grid)] * each.launches for each in counters.kernels
    )
    assert sorted(counted) == seen


@pytest.mark.cuda
@pytest.mark.timing
def test_a_warm_cache_is_read_from_and_a_timing_after_counters_equals_one_before():
    x = floats(MIB)
    before = convtime.time_op(torch.relu, x)
    cold = convtime.counters(torch.relu, x, metrics="dram", cache="cold-clean")
    warm = convtime.counters(torch.relu, x, metrics="dram", cache="warm")
    assert cold[READ] > 0.8 * x.nbytes
    assert warm[READ] < 0.5 * x.nbytes
    after = convtime.time_op(torch.relu, x)
    # A profiler that is left initialised doubles it.
    assert after.median / before.median < 1.3
    assert after.method == "kernel"


@pytest.mark.cuda
@pytest.mark.thorough
def test_every_group_and_all_metrics_have_values():
    x = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    metrics = [*GROUPS, "achieved_occupancy"]
    for replay in REPLAYS:
        counters = convtime.counters(torch.mm, x, x, metrics=metrics, repeats=3, replay=replay)
        assert not [metric for metric, value in counters.totals.items() if value is None]
        assert all(len(values) == 3 for values in counters.samples.values())
        assert 0 < counters["achieved_occupancy"] <= 1
        assert counters["sm__inst_executed_pipe_tensor.sum"] > 0
        assert 1 < counters.passes < 50
    counters = convtime.counters(torch.relu, floats(MIB), metrics="all")
    assert counters.passes > 50
    assert len(counters.totals) > 1000
    known = [value for value in counters.totals.values() if value is not None]
    assert len(known) > 0.9 * len(counters.totals)
    assert all(map(math.isfinite, known))


@pytest.mark.cuda
def test_this_gpu_has_the_groups_and_knows_nearest_names():
    listed = convtime.counter_names()
    assert DURATION in {each.name for each in listed}
    assert {each.group for each in listed if each.group} == set(GROUPS)
    with pytest.raises(ValueError, match="did you mean"):
        convtime.counters(torch.relu, floats(8), metrics="sm__cycles_elapse.max")


@pytest.mark.cuda
def test_calls_that_cannot_be_counted_are_refused_and_leave_nothing():
    x, times, calls = floats(MIB), itertools.count(), itertools.count()

    def changing():
        for _ in range(next(times) % 2 + 1):
            torch.relu(x)

    def failing():
        if next(calls) == 3:  # after the first, and the two that are traced
            raise ZeroDivisionError
        return torch.relu(x)

    with pytest.raises(ValueError, match="do not launch the same kernels each time"):
        convtime.counters(changing, metrics="time", replay="call")
    assert convtime.counters(changing, metrics="time").kernels_reason
    with pytest.raises(ValueError, match="launches no kernel"):
        convtime.counters(lambda: None, device="cuda")
    with pytest.raises(ZeroDivisionError):
        convtime.counters(failing)
    with pytest.raises(RuntimeError, match="another timing or recording of this process"):
        convtime.time_op(lambda: convtime.counters(torch.relu, x), method="kernel")
    assert convtime.counters(torch.relu, x, metrics="dram")[READ] > 0
    assert convtime.time_op(torch.relu, x).method == "kernel"


@pytest.mark.cuda
def test_counters_are_refused_while_a_profiler_runs_and_work_behind_it():
    x = floats(MIB)
    for behind in (False, True):
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            torch.relu(x)
            if not behind:
                with pytest.raises(RuntimeError, match=r"cannot be read: a torch.profiler session"):
                    convtime.counters(torch.relu, x, metrics="dram")
            torch.relu(x)
            torch.cuda.synchronize()
        names = [each.name for each in profile.events()]
        assert sum("relu" in name or "elementwise" in name for name in names) >= 2
        assert convtime.counters(torch.relu, x, metrics="dram")[READ] > 0


def graph_of(kernels, x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(kernels):
            torch.relu(x)
    return graph


@pytest.mark.cuda
@pytest.mark.timing
def test_a_graph_of_several_kernels_is_refused():
    x = floats(MIB)
    for kernels, replay in itertools.product((2, 3), REPLAYS):
        graph = graph_of(kernels, x)
        said = rf"counted \d of the {kernels} kernels that .* count the call that was captured"
        with pytest.raises(CountersUnavailable, match=said):
            convtime.counters(graph.replay, metrics="dram", replay=replay, device="cuda")
        assert convtime.counters(torch.relu, x, metrics="dram")[READ] > 0
    graphs = itertools.cycle([graph_of(1, x), graph_of(2, x)])
    with pytest.raises(CountersUnavailable, match="some of them in CUDA graphs"):
        convtime.counters(lambda: next(graphs).replay(), metrics="dram", device="cuda")
