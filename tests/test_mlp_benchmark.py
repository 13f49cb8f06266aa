"""What mlp.py makes of its rows, and how it and mlp_overhead.py get them, without a GPU."""

import mlp
import pytest
import results

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


def test_the_first_layers_input_has_no_gradient():
    assert mlp.flops(64, 4, 1024) == 2 * 1024 * 64 * 64 * (4 + 4 + 3)


def test_the_roofline_is_the_slower_of_products_and_memory():
    small, large = speed(), speed("w4096_l4_b8192")
    numbers = 2 * 1024 * 64 + 4 * 4 * 64 * 64
    assert mlp.roofline(small) == pytest.approx(2 * numbers / 4e12)
    assert mlp.roofline(large) == pytest.approx(2 * 8192 * 4096 * 4096 * 11 / 1e15)
