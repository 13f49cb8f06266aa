"""What epilogue.py makes of its rows, without a GPU."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import epilogue  # noqa: E402
import results  # noqa: E402

GOALS = results.load_goals()["epilogue"]


def row(convtime, separate, compiled):
    seconds = {
        "convtime": convtime,
        "separate": separate,
        "compiled": compiled,
        "pytorch_fused": convtime,
    }
    return {
        "key": f"{convtime} {separate}",
        "layer": "layer1.0.conv1",
        "label": "64×64×56×56 → 64, 1×1",
        "epilogue": "bias, ReLU",
        "dtype": "float16",
        "layout": "nhwc",
        "seconds": seconds,
    }


def test_the_summary_is_of_geometric_means():
    summary = epilogue.summarise([row(10e-6, 20e-6, 10e-6), row(10e-6, 80e-6, 40e-6)])
    assert set(summary) == set(GOALS)
    assert summary == {
        "speedup_over_separate_geomean": pytest.approx(4.0),
        "speedup_over_compile_geomean": pytest.approx(2.0),
    }
    assert epilogue.summarise([]) == {}


def test_the_table_has_times_and_speedups():
    lines = epilogue.table([row(10e-6, 20e-6, 15e-6)]).splitlines()
    assert lines[2:] == [
        "| layer1.0.conv1 | 64×64×56×56 → 64, 1×1 | bias, ReLU | float16, nhwc | 10.00 | 20.00 "
        "| 15.00 | 10.00 | 2.00 | 1.50 |"
    ]


def test_the_layers_are_those_that_a_relu_follows():
    layers = epilogue.layers()
    assert len(layers) == len({layer.problem for layer in layers})
    assert {layer.names[0].rpartition(".")[2] for layer in layers} == {"conv1", "conv2", "conv3"}
    assert sum(map(epilogue.residual_is_added, layers)) == 4  # of each stage one
