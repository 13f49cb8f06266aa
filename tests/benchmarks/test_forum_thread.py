"""What benchmarks/forum_thread.py makes of its rows, and of a small net on a CPU."""

import forum_thread
import pytest
import results
import torch
from forum_thread_parts import advice, counted, points, summary
from forum_thread_parts.net import LAYERS, Size, Training

GOALS = results.load_goals()["forum_thread"]
CPU = torch.device("cpu")
SMALL = Size(batch=2, side=32, width=4)
IDLE = {"key": "idle", "sm_clock_hz": 345e6, "power": 75.0, "temperature": 30.0, "reason": ""}
WRITE = "dram__bytes_write.sum"


def times(median, kernels=("conv",), clock=None):
    told = {"mean": median, "median": median, "min": 0.9 * median, "max": 1.2 * median}
    return {**told, "launches": 1, "kernels": list(kernels), "sm_clock_hz": clock}


def point(iterations, in_place=80e-6, isolated=100e-6, same_regime=80e-6, kernels=("conv",)):
    layer = {
        "in_place": times(in_place),
        "isolated": times(isolated, clock=1.2e9),
        "same_regime": times(same_regime, kernels, clock=1.9e9),
    }
    return {
        "key": f"{iterations} iterations",
        "iterations": iterations,
        "in_place_clock_hz": 1.98e9,
        "layers": {"layer1": layer},
    }


def counters(dirty=50e6, launches=4, in_place=50e6):
    def place(count, written):
        return {"launches": count, "values": {WRITE: written}}

    return {
        "key": "counters of layer1",
        "layer": "layer1",
        "count": 4,
        "kernel": "conv",
        "units": {WRITE: "byte"},
        "counted": {
            "in_place": place(launches, in_place),
            "warm": place(1, 5e6),
            "dirty": place(1, dirty),
            "cold": place(1, 70e6),
            "clean": place(1, 10e6),
            "behind_the_step": None,
        },
    }


def advised(**fields):
    row = {"key": "advice: pinned memory", "advice": "pinned memory", "method": "sync"}
    return {**row, "without": 4e-3, "with": 1e-3, "ratio": [0.25, 0.24, 0.26], **fields}


def test_the_summary_has_what_goals_are_set_for():
    rows = [
        IDLE,
        *(point(number) for number in (1, 10, 100, 1000)),
        counters(),
        advised(verdict=""),
    ]
    found = forum_thread.summarise(rows)
    assert set(found) == set(GOALS)
    assert found["iteration_points"] == 4
    assert found["same_regime_ratio_min"] == found["same_regime_ratio_max"] == pytest.approx(1)
    assert found["dram_write_isolated_over_in_place_max"] == pytest.approx(1)
    assert all(entry["met"] for entry in results.make_summary(rows, forum_thread.summarise, GOALS))


def test_the_worst_point_counts():
    found = forum_thread.summarise([point(1, in_place=78e-6), point(10, in_place=82e-6)])
    assert found["same_regime_ratio_min"] == pytest.approx(0.975)
    assert found["same_regime_ratio_max"] == pytest.approx(1.025)
    assert "dram_write_isolated_over_in_place_min" not in found


@pytest.mark.parametrize("row", [counters(launches=5), {**counters(), "count": 3}])
def test_writes_are_compared_only_where_launches_are_as_many(row):
    assert "dram_write_isolated_over_in_place_min" not in forum_thread.summarise([row])
    (said,) = summary.sentences([row])
    assert "so that they cannot be compared" in said


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (point(100), "So it is the state of the GPU that makes the difference"),
        (point(100, same_regime=70e-6), "the regime does not explain all of the difference"),
        (point(100, isolated=80e-6), "there is no difference here to explain"),
        (point(100, kernels=("other",)), "The kernels are not the same"),
    ],
)
def test_the_cause_is_said_as_measured(row, said):
    told = list(summary.sentences([point(1), row]))
    assert said in told[-1]
    assert "the mean time of a convolution in PyTorch's loop changes by +0.0%" in told[0]
    assert "the clock is 1980 MHz in the loop, and by themselves 1200 MHz" in told[2]


def test_the_clock_is_that_between_two_stamps_of_one_multiprocessor():
    before = [torch.tensor([1000, 7_000_000, 5]), torch.tensor([2000, 100, 3])]
    after = [torch.tensor([10_000, 50, 4]), torch.tensor([102_000, 198_100, 3])]
    assert points.clock_hz(before, after) == pytest.approx(1.98e9)
    assert points.clock_hz(before, after[:1]) is None
    assert points.clock_hz([], []) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_counters_that_cannot_be_read_leave_their_reason():
    row = counted.measure(CPU, SMALL, LAYERS[0])
    assert row["layer"] == LAYERS[0]
    assert "need a GPU" in row["reason"]


def test_advice_that_cannot_be_measured_has_its_reason(monkeypatch):
    def fail(device, size):
        raise RuntimeError("there is no mapped memory\nat all")

    monkeypatch.setitem(advice.ADVICE, "more", fail)
    failed = advice.measure(CPU, SMALL, "more")
    assert failed == {"advice": "more", "reason": "RuntimeError: there is no mapped memory"}


def test_an_isolated_convolution_computes_what_the_net_does():
    training = Training(CPU, SMALL)
    outputs = []
    layer = training.net.get_submodule(LAYERS[1])
    assert isinstance(layer, torch.nn.Conv2d)
    handle = layer.register_forward_hook(lambda module, args, output: outputs.append(output))
    weight = layer.weight.detach().clone()
    call = training.isolated(LAYERS[1])
    handle.remove()
    torch.testing.assert_close(
        torch.nn.functional.conv2d(call.x, weight, padding=1), outputs[0].detach()
    )
    assert call.count == 3
    x = call.x.clone()
    call.behind(training.step)()
    torch.testing.assert_close(call.x, x)
