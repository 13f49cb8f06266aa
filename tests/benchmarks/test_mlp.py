"""mlp.py without a GPU: what it draws, measures and makes of its rows."""

import functools
import json

import mlp
import pytest
import results
import torch
from common import compiled, families, graphs

from convtime import nn

GOALS = results.load_goals()["mlp"]
CPU = torch.device("cpu")
NETS = [mlp.draw(seed, index) for seed in range(20) for index in range(mlp.DRAWN)]


def speed(shape="w64_l4_b1024", **changes):
    seconds = {
        "convtime": 10e-6,
        "eager": 1000e-6,
        "compiled": 900e-6,
        "eager graph": 60e-6,
        "compiled graph": 40e-6,
    }
    return {
        "key": shape,
        "kind": "speed",
        "shape": shape,
        "ceilings": {"flops_per_second": 1e15, "bytes_per_second": 4e12},
        "seconds": seconds | changes,
    }


def trained(task, ours, theirs, error=1e-3):
    return {
        "key": f"training {task}",
        "kind": "training",
        "task": task,
        "losses": {"convtime": [9.0, *[ours] * 100], "pytorch": [9.0, *[theirs] * 100]},
        "weight_error": {"convtime": error, "pytorch": 2e-3},
    }


def test_a_speedup_is_over_the_fastest_of_pytorchs():
    summary = mlp.summarise([speed(), speed("w128_l5_b65536", convtime=20e-6)])
    assert summary == {
        "drawn_nets": 0,
        "w64_l4_b1024_over_best_pytorch": pytest.approx(4),
        "w64_l4_b1024_over_compile_max_autotune": pytest.approx(90),
        "w128_l5_b65536_over_best_pytorch": pytest.approx(2),
    }
    assert set(summary) <= set(GOALS)


def test_the_worse_task_counts():
    rows = [trained("mse", 0.102, 0.1), trained("cross_entropy", 0.99, 1.0, error=3e-3)]
    summary = mlp.summarise(rows)
    assert summary == {
        "drawn_nets": 0,
        "final_loss_difference": pytest.approx(0.02),
        "weight_error_over_pytorch_fp16": pytest.approx(1.5),
    }
    assert set(summary) <= set(GOALS)
    assert mlp.summarise(rows[:1]) == {"drawn_nets": 0}


def test_the_first_layers_input_has_no_gradient():
    assert mlp.flops(64, 4, 1024) == 2 * 1024 * 64 * 64 * (4 + 4 + 3)


def test_the_roofline_is_the_slower_of_products_and_memory():
    small, large = speed(), speed("w4096_l4_b8192")
    numbers = 2 * 1024 * 64 + 4 * 4 * 64 * 64
    assert mlp.roofline(small) == pytest.approx(2 * numbers / 4e12)
    assert mlp.roofline(large) == pytest.approx(2 * 8192 * 4096 * 4096 * 11 / 1e15)


def drawn(shape, net, convtime=20e-6, graph=40e-6, width=0.1):
    """A row of a drawn net, whose intervals reach that share of a speedup to either side."""
    seconds = {"convtime": convtime, "eager graph": 60e-6, "compiled graph": graph}
    over = {peer: time / convtime for peer, time in seconds.items() if peer != "convtime"}
    speedups = {
        peer: {"value": value, "low": (1 - width) * value, "high": (1 + width) * value}
        for peer, value in over.items()
    }
    return speed(shape) | {"seed": 3, "net": net, "seconds": seconds, "speedups": speedups}


def test_drawn_nets_are_judged_by_intervals():
    rows = [
        drawn("drawn 0", [64, 2, 256]),
        drawn("drawn 1", [2048, 8, 512], graph=19e-6, width=0.04),
    ]
    summary = mlp.summarise(rows)
    assert summary == {
        "drawn_nets": 2,
        "drawn_over_best_pytorch_min": pytest.approx(0.988),
        "drawn_over_best_pytorch_geomean": pytest.approx((2 * 0.95) ** 0.5),
    }
    everything = [*rows, *map(speed, mlp.SHAPES), *(trained(task, 1, 1) for task in mlp.TASKS)]
    assert set(mlp.summarise(everything)) == set(GOALS)
    assert "| 2048 × 8, 512 | 20.0 |" in mlp.table(rows)


def test_the_distribution_has_worst_median_and_best():
    rows = [drawn(f"drawn {i}", [64, 2, 256], graph=g * 1e-6) for i, g in enumerate((20, 30, 50))]
    told = mlp.distribution_table([*rows, speed(), trained("mse", 1, 1)])
    assert "| drawn nets, up to 128 wide | 3 | 1.00 | 0.90 to 1.10 | 1.50 | 2.50 |" in told
    assert "| named nets, up to 128 wide | 1 | 4.00 | – | 4.00 | 4.00 |" in told
    assert "wider" not in told, "there are no such rows"
    assert "3 rows are drawn by seed 3; 1 are of the networks' own shapes." in told


def test_drawn_nets_are_of_the_family():
    for width, layers, batch in NETS:
        assert 16 <= width <= 2048
        assert 2 <= layers <= 8
        assert 256 <= batch <= 262_144
        assert batch % 2 == 0
        assert width * batch <= 2**26
    assert {layers for _, layers, _ in NETS} == set(range(2, 9))
    assert 0.1 < sum(width % 8 > 0 for width, _, _ in NETS) / len(NETS) < 0.4
    for widths in (range(16, 129), range(129, 513), range(513, 2049)):
        assert sum(width in widths for width, _, _ in NETS) > len(NETS) / 5


def test_a_timed_call_is_short():
    for net in NETS:
        assert mlp.LEAST_STEPS <= mlp.steps_of(net) <= mlp.MOST_STEPS
    assert mlp.steps_of((64, 4, 1024)) == mlp.MOST_STEPS
    assert mlp.steps_of((128, 8, 262_144)) < 10


def test_named_and_drawn_nets_are_cases():
    cases = mlp.make_cases(CPU, 4, 0.1)
    drawn = {key for key in cases if key.startswith("drawn")}
    assert len(drawn) == mlp.DRAWN >= 16
    assert set(mlp.SHAPES) < set(cases)
    assert all((case.seed == 4) == (key in drawn) for key, case in cases.items())
    assert all((case.compile is None) == ("training" in key) for key, case in cases.items())


@pytest.fixture
def on_cpu(benchmarks_on_cpu, monkeypatch):
    """Steps are not captured, and convtime's not tuned."""
    monkeypatch.setattr(graphs, "capture", lambda step: step)
    trainer = nn.MLPTrainer
    monkeypatch.setattr(nn, "MLPTrainer", lambda *data, tune, **options: trainer(*data, **options))


@pytest.mark.parametrize("peers", [mlp.PEERS, mlp.GRAPHS])
def test_a_row_is_summed_up_and_shown(on_cpu, monkeypatch, peers):
    monkeypatch.setattr(mlp, "MOST_STEPS", mlp.LEAST_STEPS)
    case = families.Case(
        functools.partial(mlp.measure_speed, "drawn 0", (16, 2, 256), peers, 2, CPU, 0.01), seed=9
    )
    measured = json.loads(json.dumps({"key": "a", **case.row()}, allow_nan=False))
    assert measured["seed"] == 9
    assert set(measured["speedups"]) == set(peers)
    assert min(measured["samples"].values()) >= 12
    summary = mlp.summarise([measured])
    assert summary["drawn_nets"] == 1
    assert set(summary) <= set(GOALS)
    assert "| 16 × 2, 256 |" in mlp.table([measured])
    assert mlp.tell(measured).startswith("convtime ")


def test_the_compiled_peers_are_compiled_beforehand(on_cpu, monkeypatch):
    modes = []

    def compile_whole(function, mode):
        modes.append(mode)
        return function

    monkeypatch.setattr(compiled, "compile_whole", compile_whole)
    mlp.compile_beforehand((16, 2, 256), mlp.PEERS, 2, CPU)
    assert modes == ["max-autotune", "max-autotune-no-cudagraphs"]
    mlp.compile_beforehand((16, 2, 256), mlp.GRAPHS, 2, CPU)
    assert modes[2:] == ["max-autotune-no-cudagraphs"]
