"""What epilogue.py makes of its rows, without a GPU."""

import dataclasses
from types import SimpleNamespace

import epilogue
import pytest
import results
import torch

import convtime

GOALS = results.load_goals()["epilogue"]


def row(convtime, separate, compiled):
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
        "| 15.00 | 2.00 | 1.50 | 0.5, 1.0, 12.0 |"
    ]


def test_the_layers_are_those_that_a_relu_follows():
    layers = epilogue.layers()
    assert len(layers) == len({layer.problem for layer in layers})
    assert {layer.names[0].rpartition(".")[2] for layer in layers} == {"conv1", "conv2", "conv3"}
    assert sum(map(epilogue.residual_is_added, layers)) == 4  # of each stage one


@pytest.fixture
def tf32_off_again():
    before = torch.backends.cudnn.fp32_precision
    yield
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.fp32_precision = before


@pytest.mark.usefixtures("tf32_off_again")
def test_plans_may_be_timed_from_the_first_call_of_a_shape_on(monkeypatch):
    layer = next(each for each in epilogue.layers() if epilogue.residual_is_added(each))
    small = dataclasses.replace(layer.problem, batch=1, size=(8, 8), in_channels=4, out_channels=4)
    called = []
    conv2d = torch.nn.functional.conv2d

    def watched(*args):
        called.append(torch.backends.cudnn.benchmark)
        return conv2d(*args)

    def compared(calls, **options):
        one = SimpleNamespace(median=1e-6, seconds=[1e-6], activities=[])
        return SimpleNamespace(measurements=dict.fromkeys(calls, one))

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.nn.functional, "conv2d", watched)
    monkeypatch.setattr("common.compiled.compile_whole", lambda function, mode: function)
    monkeypatch.setattr(convtime, "compare", compared)
    monkeypatch.setattr(convtime, "plan_cache", lambda: [SimpleNamespace(tag="a plan")])
    row = epilogue.measure(
        dataclasses.replace(layer, problem=small), "float32", "nhwc", torch.device("cpu")
    )
    assert called
    assert all(called)
    # What Inductor asks for its own kernels, of convolutions and of products.
    assert torch.backends.cudnn.fp32_precision == "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert max(row["difference_from_separate"].values()) < 1e-5
    assert set(row["seconds"]) == {"convtime", *epilogue.PEERS}
    assert len(epilogue.table([row]).splitlines()) == 3
