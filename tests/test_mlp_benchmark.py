"""What mlp.py makes of its rows, without a GPU."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import mlp  # noqa: E402
import results  # noqa: E402

GOALS = results.load_goals()["mlp"]


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
        "w64_l4_b1024_over_best_pytorch": pytest.approx(4),
        "w64_l4_b1024_over_compile_max_autotune": pytest.approx(90),
        "w128_l5_b65536_over_best_pytorch": pytest.approx(2),
    }
    assert set(summary) <= set(GOALS)


def test_the_worse_task_counts():
    rows = [trained("mse", 0.102, 0.1), trained("cross_entropy", 0.99, 1.0, error=3e-3)]
    summary = mlp.summarise(rows)
    assert summary == {
        "final_loss_difference": pytest.approx(0.02),
        "weight_error_over_pytorch_fp16": pytest.approx(1.5),
    }
    assert set(summary) <= set(GOALS)
    assert mlp.summarise(rows[:1]) == {}


def test_the_table_has_each_net_and_task():
    lines = mlp.table([speed(), trained("mse", 0.102, 0.1)]).splitlines()
    assert "| 64 × 4, 1024 | 10.0 | 9 | 0.1 | 1000.0 | 900.0 | 60.0 | 40.0 |" in lines
    assert "| mse | 0.10200 | 0.10000 | 1.00e-03 | 2.00e-03 |" in lines


def test_the_first_layers_input_has_no_gradient():
    assert mlp.flops(64, 4, 1024) == 2 * 1024 * 64 * 64 * (4 + 4 + 3)


def test_the_roofline_is_the_slower_of_products_and_memory():
    small, large = speed(), speed("w4096_l4_b8192")
    numbers = 2 * 1024 * 64 + 4 * 4 * 64 * 64
    assert mlp.roofline(small) == pytest.approx(2 * numbers / 4e12)
    assert mlp.roofline(large) == pytest.approx(2 * 8192 * 4096 * 4096 * 11 / 1e15)


def test_heavy_steps_are_timed_in_smaller_numbers():
    counts = [mlp.steps_of(shape) for shape in mlp.SHAPES.values()]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 100
    assert 5 <= counts[-1] < 10


def test_pytorchs_steps_take_one_batch_after_the_other():
    torch = pytest.importorskip("torch")
    seen = []

    def forward(x, y):
        seen.append((x[0, 0].item(), y[0].item()))
        return model(x).sum()

    model = mlp.make_model(4, 2, 3)
    inputs = torch.arange(24.0).reshape(6, 4)
    step = mlp.make_step(forward, model, inputs, torch.arange(6), 2)
    for _ in range(4):
        step()
    assert seen == [(0, 0), (8, 2), (16, 4), (0, 0)]


def test_there_is_a_case_for_each_net_and_task():
    torch = pytest.importorskip("torch")
    cases = mlp.make_cases(torch.device("cpu"))
    assert list(cases) == [*mlp.SHAPES, "training mse", "training cross_entropy"]
