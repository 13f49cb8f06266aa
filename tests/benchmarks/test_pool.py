"""pool.py without a GPU: what it draws, measures and makes of its rows."""

import functools
import itertools
import json

import pool
import pytest
import results
import torch
from common import compiled, families
from torch.nn import functional as F

import convtime

GOALS = results.load_goals()["pool"]
CPU = torch.device("cpu")
POOLS = [pool.draw(seed, index) for seed in range(3) for index in range(pool.DRAWN)]


def row(which, convtime, copy=18e-6, eager=150e-6, compiled=40e-6, width=0.0, **changes):
    """A row; with a width, intervals reach that share of a speedup to either side."""
    seconds = {"copy": copy, "convtime": convtime, "eager": eager, "compiled": compiled}
    speedups = {
        peer: {
            "value": time / convtime,
            "low": (1 - width) * time / convtime,
            "high": (1 + width) * time / convtime,
        }
        for peer, time in seconds.items()
        if peer != "convtime"
    }
    return {
        "key": f"{which} {convtime}",
        "direction": which,
        "window": "3×3/2",
        "dtype": "fp16",
        "layout": "nchw",
        "bytes": 64_000_000,
        "seconds": seconds,
        **({"speedups": speedups} if width else {}),
        **changes,
    }


def test_the_summary_has_the_worst_case_of_each():
    rows = [
        row("forward", 20e-6),
        row("forward", 10e-6, copy=9.5e-6, seed=0),
        row("backward", 30e-6, copy=24e-6, eager=240e-6),
        row("backward", 20e-6, eager=50e-6, seed=0),
    ]
    summary = pool.summarise(rows)
    assert set(summary) == set(GOALS)
    assert summary == {
        "configurations": 1,
        "share_of_copy_bandwidth_min": pytest.approx(0.9),
        "speedup_over_eager_min": pytest.approx(7.5),
        "speedup_over_compile_min": pytest.approx(2.0),
        "speedup_over_compile_geomean": pytest.approx(8**0.5),
        "backward_speedup_over_eager_min": pytest.approx(2.5),
    }


def test_a_minimum_is_missed_where_an_interval_is_wholly_below_it():
    def met(width):
        rows = [row("forward", 10e-6, compiled=9.4e-6, width=width)]
        entries = results.make_summary(rows, pool.summarise, GOALS)
        return {entry["name"]: entry["met"] for entry in entries}["speedup_over_compile_min"]

    assert met(0.02)  # 0.92 to 0.96
    assert not met(0.01)  # 0.93 to 0.949
    assert not met(0.0)


def test_what_was_not_measured_is_not_summed_up():
    assert pool.summarise([]) == {"configurations": 0}
    assert "speedup_over_eager_min" not in pool.summarise([row("backward", 20e-6)])
    assert "backward_speedup_over_eager_min" not in pool.summarise([row("forward", 20e-6)])


def test_the_bound_is_the_longer_of_a_copy_and_the_comparisons():
    def share(**changes):
        return pool.share_of_bound(row("forward", 20e-6, copy=10e-6, width=0.1, **changes))

    assert share().value == pytest.approx(0.5)
    assert share(comparison_seconds=9e-6) == share()
    compared = share(comparison_seconds=16e-6)
    assert (compared.value, compared.high) == (pytest.approx(0.8), pytest.approx(0.88))


def test_small_inputs_are_not_judged_by_the_bound():
    small = row("forward", 20e-6, copy=2e-6, shape=[1, 64, 112, 112])
    assert "share_of_copy_bandwidth_min" not in pool.summarise([small])
    half, single = (row("forward", 20e-6, shape=[1, 1, 2500, 2500], dtype=d) for d in pool.DTYPES)
    assert (pool.is_bounded(half), pool.is_bounded(single)) == (False, True)


def test_the_backward_pass_reads_a_byte_an_output_more():
    assert pool.bytes_of("forward", 400, 100, 50) == 500
    assert pool.bytes_of("backward", 400, 100, 50) == 550


def test_drawn_configurations_are_pytorchs():
    for drawn in POOLS:
        x = torch.zeros((1, 1, *drawn.shape[2:]))
        numbers = (drawn.window, drawn.stride, drawn.padding, drawn.dilation, drawn.ceil_mode)
        assert F.max_pool2d(x, *numbers).numel() > 0
        assert all(2 <= size <= 7 for size in drawn.window)
        assert all(1 <= s <= w for s, w in zip(drawn.stride, drawn.window, strict=True))
        elements = torch.Size(drawn.shape).numel()
        assert 2 * elements >= 0.1e6 or drawn.shape[0] > 1
        assert 4 * elements <= 210e6


def test_every_property_of_the_families_is_drawn():
    for seed in range(3):
        drawn = POOLS[seed * pool.DRAWN : (seed + 1) * pool.DRAWN]
        sizes = [2 * torch.Size(each.shape).numel() for each in drawn]
        assert min(sizes) < 1e6
        assert max(sizes) > 50e6
        assert {side for each in drawn for side in each.window} == set(range(2, 8))
        for has in (
            lambda each: each.window[0] != each.window[1],
            lambda each: each.dilation == 2,
            lambda each: each.ceil_mode,
            lambda each: any(each.padding),
            lambda each: each.shape[1] % 8,
            lambda each: each.shape[2] % 2 and each.shape[3] % 2,
        ):
            assert 0 < sum(bool(has(each)) for each in drawn) < len(drawn)


def test_a_case_depends_on_its_seed_and_index_alone():
    assert pool.draw(1, 7) == pool.draw(1, 7)
    assert len(set(POOLS)) == len(POOLS)


def test_every_configuration_is_measured_in_each_dtype_and_layout():
    cases = pool.make_cases(CPU, 5, 0.1)
    drawn = {key: case for key, case in cases.items() if "drawn" in key}
    forward = [key for key in drawn if key.startswith("forward")]
    backward = [key for key in drawn if key.startswith("backward")]
    assert len(forward) >= 240
    assert len(backward) == pool.DRAWN
    assert {tuple(key.split()[-2:]) for key in backward} == set(
        itertools.product(pool.DTYPES, pool.LAYOUTS)
    )
    assert all((case.seed == 5) == (key in drawn) for key, case in cases.items())
    assert all((case.compile is None) == key.startswith("backward") for key, case in cases.items())


@pytest.mark.parametrize("which", pool.PASSES)
def test_a_row_is_summed_up_and_shown(benchmarks_on_cpu, which):
    drawn = pool.Pool((2, 3, 9, 11), (3, 2), (2, 1), (1, 0), ceil_mode=True)
    case = families.Case(
        functools.partial(pool.measure, which, drawn, "fp32", "nhwc", CPU, 0.05), seed=9
    )
    measured = json.loads(json.dumps({"key": "a", **case.row()}, allow_nan=False))
    assert measured["seed"] == 9
    peers = {"eager", "copy", "compiled"} if which == "forward" else {"eager", "copy"}
    assert set(measured["speedups"]) == peers
    for found in measured["speedups"].values():
        assert found["low"] <= found["value"] <= found["high"]
    assert measured["samples"] >= 20
    assert (measured["window"], measured["shape"]) == ("3×2/2×1 p1×0 ceil", [2, 3, 9, 11])
    assert set(pool.summarise([measured])) <= set(GOALS)
    assert "| 2×3×9×11 | 3×2/2×1 p1×0 ceil | fp32 | nhwc |" in pool.table([measured])
    assert families.tell(measured).startswith("convtime ")


def test_a_wrong_result_is_no_row(benchmarks_on_cpu, monkeypatch):
    monkeypatch.setattr(convtime.ops, "relu_max_pool2d", lambda x, *numbers: x)
    with pytest.raises(RuntimeError, match="differs from PyTorch's for Pool"):
        pool.measure("forward", pool.NETWORKS["2×2/2"], "fp32", "nchw", CPU, 0.05)


def test_a_case_is_compiled_beforehand(benchmarks_on_cpu, monkeypatch):
    compiled_shapes = []

    def compile_whole(function, mode):
        assert mode == "max-autotune-no-cudagraphs"
        return lambda x: compiled_shapes.append(x.shape)

    monkeypatch.setattr(compiled, "compile_whole", compile_whole)
    pool.compile_beforehand(pool.Pool((1, 2, 8, 8), (2, 2), (2, 2)), "fp32", "nchw", CPU)
    assert compiled_shapes == [(1, 2, 8, 8)]


def test_the_distribution_has_worst_median_and_best():
    rows = [row("forward", 10e-6, compiled=t * 1e-6, width=0.1, seed=3) for t in (9, 20, 40)]
    rows.append(row("forward", 10e-6, compiled=30e-6, width=0.1))
    told = pool.distribution_table(rows)
    assert (
        "| over torch.compile, forward, fp16, nchw | 4 | 0.90 | 0.81 to 0.99 | 2.50 | 4.00 |"
    ) in told
    assert "fp32" not in told, "there are no such rows"
    assert "3 rows are drawn by seed 3; 1 are of the networks' own shapes." in told
    without = pool.distribution_table([row("forward", 10e-6, compiled=9e-6)])
    assert "| 1 | 0.90 | – | 0.90 | 0.90 |" in without
