"""What benchmarks/forum_thread.py makes of its rows, and of a small net on a CPU."""

from types import SimpleNamespace

import forum_thread
import pytest
import results
import torch
from forum_thread_parts import advice, counted, points, summary
from forum_thread_parts.net import LAYERS, Size, Training

import convtime

GOALS = results.load_goals()["forum_thread"]
CPU = torch.device("cpu")
SMALL = Size(batch=2, side=32, width=4)
IDLE = {"key": "idle", "sm_clock_hz": 345e6, "power": 75.0, "temperature": 30.0, "reason": ""}
WRITE = "dram__bytes_write.sum"
PROVENANCE = {"gpu": "NVIDIA H200", "torch": "2.11"}


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


def test_what_is_written_is_said_as_a_share_of_the_loops():
    idle, written = summary.sentences([IDLE, counters(dirty=48e6)])
    assert idle == "At rest the GPU's multiprocessors have a clock of 345 MHz."
    assert written == (
        "layer1: in the loop the kernel writes 50.0 MB to memory, and by itself, as a share of "
        "that, 0.96 with a dirty L2 cache, 1.40 after a flush that wrote, 0.20 after one that "
        "read, 0.10 call after call."
    )


def test_tables_show_every_row():
    reason = {"key": "counters of layer1", "layer": "layer1", "reason": "permission is missing"}
    rows = [IDLE, point(1), point(10), reason]
    lines = forum_thread.table(rows).splitlines()
    assert (
        lines[3] == "| layer1 | 10 | 80.00 | 72.00–96.00 | 100.00 | 90.00–120.00 | 80.00 | 1.000 |"
    )
    assert lines[-1] == "- Counters were not read: permission is missing."
    assert forum_thread.counters_table([counters()]).splitlines()[-1] == (
        "| layer1 | `dram__bytes_write.sum` (byte) | 5e+07 | – | 5e+07 | 7e+07 | 1e+07 | 5e+06 |"
    )
    failed = {"key": "advice: mapped memory", "advice": "mapped memory", "reason": "no"}
    measured, not_measured = forum_thread.advice_table(
        [advised(verdict="faster"), failed]
    ).splitlines()[2:]
    assert measured == (
        "| pinned memory | the call, waited for | 4000.00 | 1000.00 | 0.250 [0.240, 0.260] "
        "| faster |"
    )
    assert "not measured: no" in not_measured


@pytest.mark.parametrize("rows", [[IDLE, point(1), point(10), counters()], [point(1)]])
def test_the_threads_plots_are_drawn(rows):
    pytest.importorskip("matplotlib")
    document = {"rows": rows, "provenance": PROVENANCE}
    assert forum_thread.picture(document).startswith(b"\x89PNG")


def test_a_point_is_measured_in_the_loop_and_by_itself(monkeypatch):
    monkeypatch.setitem(points.RUNS, 2, 2)
    rows = [{"key": "2 iterations", **points.measure(CPU, SMALL, 2)}]
    assert list(rows[0]["layers"]) == list(LAYERS)
    for layer in rows[0]["layers"].values():
        for who in ("in_place", "isolated", "same_regime"):
            told = layer[who]
            assert told["launches"] == 4, "two in each of two runs"
            assert 0 < told["min"] <= told["median"] <= told["max"]
    assert all(loss == loss for loss in rows[0]["loss"])
    assert forum_thread.summarise(rows)["iteration_points"] == 1
    assert len(forum_thread.table(rows).splitlines()) == 2 + len(LAYERS)


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


def test_in_the_loop_and_alone_one_convolution_is_counted(monkeypatch):
    training = Training(CPU, SMALL)
    layer = training.net.get_submodule(LAYERS[1])
    seen = []
    layer.register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
    later = []
    training.net.get_submodule(LAYERS[2]).register_forward_hook(lambda *_: later.append(1))
    call = training.in_place(LAYERS[1])
    call.reach()
    assert (len(seen), len(later)) == (1, 1), "a whole step, and the next one up to the layer"
    output = call()
    assert len(later) == 1
    assert not torch.equal(seen[0][0], seen[1][0]), "of the next step"
    torch.testing.assert_close(layer(seen[1][0]), output)

    counts = []

    def count(call, *, metrics, cache, setup=None, repeats=1, **options):
        if setup is not None:
            setup()
        assert call().shape == (2, 4, 8, 8)
        counts.append((cache, setup is not None, repeats))
        names = ("gpu__time_duration.sum", "dram__bytes_read.sum", WRITE)
        values = {**dict.fromkeys(names, float(repeats)), "lts__t_sector_hit_rate.pct": None}
        if repeats == 1:
            values["sm__inst_executed.sum"] = 5.0
        return SimpleNamespace(
            kernels=[convtime.KernelCounters("conv", 1, values, (1, 1, 1), (32, 1, 1))],
            units=dict.fromkeys(values, "byte"),
        )

    monkeypatch.setattr(convtime, "counters", count)
    monkeypatch.setattr(counted, "_launches", lambda call, kernel: 4)
    written = []
    monkeypatch.setattr(counted, "_write_everywhere", lambda: written.append(1))
    row = {"key": "counters", **counted.measure(CPU, SMALL, LAYERS[0])}
    assert counts[::2] == [
        ("warm", True, 1),
        ("warm", True, 1),
        ("warm", True, 1),
        ("cold", False, 1),
        ("cold-clean", False, 1),
        ("warm", False, 1),
    ]
    assert len(written) == 2, "after one of these, both times"
    assert {repeats for _, _, repeats in counts[1::2]} == {counted.REPEATS}
    assert (row["count"], row["counted"]["in_place"]["launches"]) == (4, 4)
    assert row["counted"]["warm"]["values"][WRITE] == counted.REPEATS
    assert row["counted"]["warm"]["values"]["sm__inst_executed.sum"] == 5
    assert summary.dirty_over_in_place(row) == 1
    assert "1.00 after a step, 1.00 with a dirty L2 cache" in next(summary.sentences([row]))


def test_advice_is_measured_without_and_with_it(monkeypatch):
    monkeypatch.setattr(advice, "_BUDGET", 1e-3)
    x = torch.randn(64)
    monkeypatch.setitem(
        advice.ADVICE,
        "less",
        lambda device, size: advice._compared(lambda: x + 1, lambda: x + 2, method="cpu"),
    )
    row = advice.measure(CPU, SMALL, "less")
    assert (row["advice"], row["method"]) == ("less", "cpu")
    assert row["with"] > 0
    assert row["without"] > 0
    assert row["verdict"] in ("same", "faster", "slower", "uncertain")
    assert len(forum_thread.advice_table([row]).splitlines()) == 3

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


def test_each_case_has_a_row_of_its_own():
    cases = forum_thread.make_cases(CPU)
    assert len(cases) == 1 + len(forum_thread.ITERATIONS) + len(LAYERS) + 8
