"""epilogue.py without a GPU: what it draws, measures and makes of its rows."""

import functools
import json
import math
from types import SimpleNamespace

import epilogue
import pytest
import results
import torch
from common import compiled, families

import convtime
from convtime.conv.problem import ConvProblem

GOALS = results.load_goals()["epilogue"]
CPU = torch.device("cpu")
DRAWN = [epilogue.draw(seed, index) for seed in range(3) for index in range(epilogue.DRAWN)]
SMALL = epilogue.Fused("small", ConvProblem(2, 3, (9, 9), 5, (3, 3), bias=True), adds=True)


def row(convtime, separate, compiled, **changes):
    seconds = {
        "convtime": convtime,
        "separate": separate,
        "compiled": compiled,
    }
    return {
        "key": f"{convtime} {separate}",
        "layer": "layer1.0.conv1",
        "label": "64×64×56×56 → 64, 1×1",
        "epilogue": "bias, ReLU",
        "dtype": "float16",
        "layout": "nhwc",
        "seconds": seconds,
        "first_calls": {"convtime": 0.5, "separate": 1.0, "compiled": 12.0},
        **changes,
    }


def test_the_summary_has_geometric_means_and_minima():
    summary = epilogue.summarise([row(10e-6, 20e-6, 10e-6), row(10e-6, 80e-6, 40e-6)])
    assert set(summary) == set(GOALS)
    assert summary == {
        "rows": 2,
        "speedup_over_separate_geomean": pytest.approx(4.0),
        "speedup_over_separate_min": pytest.approx(2.0),
        "speedup_over_compile_geomean": pytest.approx(2.0),
        "speedup_over_compile_min": pytest.approx(1.0),
    }
    assert epilogue.summarise([]) == {"rows": 0}


def test_a_minimum_is_an_intervals_upper_end():
    speedups = {
        peer: {"value": 0.95, "low": 0.9, "high": high}
        for peer, high in (("separate", 0.97), ("compiled", 1.0))
    }
    summary = epilogue.summarise([row(10e-6, 9.5e-6, 9.5e-6, speedups=speedups)])
    assert summary["speedup_over_separate_min"] == 0.97
    assert summary["speedup_over_compile_min"] == 1.0
    assert summary["speedup_over_compile_geomean"] == pytest.approx(0.95)


def test_drawn_convolutions_are_of_the_families():
    for fused in DRAWN:
        problem = fused.problem
        outputs = problem.batch * problem.out_channels * math.prod(problem.output_size)
        inputs = problem.batch * problem.in_channels * math.prod(problem.size)
        assert max(inputs, outputs) <= epilogue.MOST_ELEMENTS
        assert 2e6 < epilogue.flops_of(problem) <= epilogue.FLOPS[1]
        assert problem.kernel_size[0] in (1, 3, 5, 7)
        assert min(problem.in_channels, problem.out_channels) >= 16
        assert max(problem.in_channels, problem.out_channels) <= 1024


@pytest.mark.parametrize("seed", range(3))
def test_every_property_of_the_families_is_drawn(seed):
    drawn = DRAWN[seed * epilogue.DRAWN : (seed + 1) * epilogue.DRAWN]
    assert {each.problem.kernel_size[0] for each in drawn} == {1, 3, 5, 7}
    for has in (
        lambda each: each.adds,
        lambda each: each.problem.stride == (2, 2),
        lambda each: each.problem.dilation == (2, 2),
        lambda each: any(each.problem.padding),
        lambda each: each.problem.in_channels % 8,
        lambda each: each.problem.out_channels % 8,
    ):
        assert 0 < sum(bool(has(each)) for each in drawn) < len(drawn)


def test_resnet50_and_the_drawn_ones_are_cases():
    cases = epilogue.make_cases(CPU, 4, 0.1)
    drawn = {key for key in cases if key.startswith("drawn")}
    assert len(drawn) == epilogue.DRAWN >= 40
    assert len(cases) - len(drawn) == 40
    assert all((case.seed == 4) == (key in drawn) for key, case in cases.items())
    assert sum("float16 nhwc" in key for key in drawn) == epilogue.DRAWN / 2
    assert all(case.compile for case in cases.values())


@pytest.fixture
def on_cpu(benchmarks_on_cpu, monkeypatch):
    """A plan, and the flags of PyTorch as they were before."""
    monkeypatch.setattr(convtime, "plan_cache", lambda: [SimpleNamespace(tag="a plan")])
    flags = (
        (torch.backends.cudnn, "benchmark"),
        (torch.backends.cudnn, "fp32_precision"),
        (torch.backends.cuda.matmul, "allow_tf32"),
    )
    before = [getattr(*flag) for flag in flags]
    yield
    for flag, value in zip(flags, before, strict=True):
        setattr(*flag, value)


def test_a_row_is_summed_up_and_shown(on_cpu):
    measure = functools.partial(epilogue.measure, SMALL, "float32", "nhwc", CPU, 0.05)
    measured = families.Case(measure, seed=9).row()
    measured = json.loads(json.dumps({"key": "a", **measured}, allow_nan=False))
    assert measured["seed"] == 9
    assert set(measured["speedups"]) == set(epilogue.PEERS)
    assert max(measured["difference_from_separate"].values()) < 1e-5
    assert set(epilogue.summarise([measured])) == set(GOALS)
    assert "| small | 2×3×9×9 → 5, 3×3 bias | bias, residual, ReLU |" in epilogue.table([measured])
    assert "convtime" in epilogue.tell(measured)


def test_a_case_is_compiled_as_it_is_measured(on_cpu, monkeypatch):
    called = []

    def compile_whole(function, mode):
        def call(*arguments):
            called.append((mode, torch.is_grad_enabled(), torch.backends.cudnn.benchmark))
            return function(*arguments)

        return call

    monkeypatch.setattr(compiled, "compile_whole", compile_whole)
    epilogue.compile_beforehand(SMALL, "float32", "nchw", CPU)
    epilogue.measure(SMALL, "float32", "nchw", CPU, 0.05)
    assert set(called) == {("max-autotune-no-cudagraphs", False, True)}


def test_the_distribution_has_worst_median_and_best():
    rows = [row(10e-6, 20e-6, time * 1e-6, seed=2) for time in (9, 11, 30)]
    told = epilogue.distribution_table(rows)
    assert "| over torch.compile, float16, nhwc | 3 | 0.90 | – | 1.10 | 3.00 |" in told
    assert "| over separate calls, float16, nhwc | 3 | 2.00 | – | 2.00 | 2.00 |" in told
    assert "3 rows are drawn by seed 2" in told
