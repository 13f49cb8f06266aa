"""PyTorch's and convtime's layers, compared on small problems."""

import dataclasses
import inspect
import json
import statistics
from typing import Any

import pytest
import torch

import convtime
from convtime.conv import compare as conv_compare
from convtime.conv.compare import SIDES, LayerResult, compare_layers, layer_call
from convtime.conv.flags import Flags
from convtime.conv.layouts import DTYPES, LAYOUTS, memory_format
from convtime.conv.problem import PASSES, ConvLayer, ConvProblem
from convtime.conv.sources.model import LoadedModel
from convtime.conv.step import compare_step
from convtime.core.errors import InputError
from convtime.core.kinds import KINDS

CPU = torch.device("cpu")
QUICK: dict[str, Any] = {"budget": 0.02, "max_samples": 20}
SMALL = ConvLayer(
    ("small",),
    ConvProblem(
        batch=2,
        in_channels=4,
        size=(9, 11),
        out_channels=6,
        kernel_size=(3, 5),
        padding=(1, 2),
    ),
)


def changed(layer=SMALL, names=None, **changes):
    """The layer with another problem."""
    return ConvLayer(names or layer.names, dataclasses.replace(layer.problem, **changes))


def compare_one(layer=SMALL, device=CPU, **options):
    (result,) = compare_layers([layer], device=device, **(QUICK | options))
    return result


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bias": True, "stride": (2, 1)},
        {"groups": 2, "dilation": (2, 1)},
        {"padding": "same", "kernel_size": (2, 4)},
        {"padding_mode": "reflect"},
        {"padding_mode": "circular", "padding": "same"},
    ],
)
def test_kinds_of_layers(device, changes):
    layer = changed(**changes)
    result = compare_one(layer, device)
    assert result.layer is layer
    assert result.bit_identical
    assert result.pytorch_repeats
    assert torch.device(result.pytorch.device).type == device.type
    for measurement in (result.pytorch, result.convtime):
        assert measurement.min > 0
    assert result.ratio.low <= result.ratio.value <= result.ratio.high
    assert result.gflops == pytest.approx(
        layer.problem.flops / statistics.median(result.convtime.seconds) / 1e9,
        rel=0.02,  # a tick
    )
    backends = {"cpu": ("Mkldnn", "Slow2d", "SlowDilated2d", "Xnnpack2d"), "cuda": ("Cudnn",)}
    assert result.backend in backends[device.type]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_both_sides_get_the_same_data_in_dtype_and_layout(monkeypatch, device, dtype, layout):
    calls = {}
    original = convtime.compare

    def record(candidates, **options):
        calls.update(candidates)
        return original(candidates, **options)

    monkeypatch.setattr(conv_compare, "compare", record)
    result = compare_one(device=device, dtype=dtype, layout=layout)
    assert (result.dtype, result.layout) == (dtype, layout)
    assert result.bit_identical
    theirs, ours = (inspect.getclosurevars(calls[who]).nonlocals for who in ("pytorch", "convtime"))
    assert type(theirs["module"]) is torch.nn.Conv2d
    assert type(ours["module"]) is convtime.nn.Conv2d
    assert theirs["module"].weight is ours["module"].weight
    assert theirs["x"] is ours["x"]
    for tensor in (theirs["module"].weight, theirs["x"]):
        assert tensor.dtype == DTYPES[dtype]
        assert tensor.device.type == device.type
        assert tensor.is_contiguous(memory_format=memory_format(layout, 4))
        assert tensor.float().std() > 0.01


def test_seed_decides_the_data_and_the_global_state_is_left_alone(monkeypatch):
    inputs = []

    def backend(module, x):
        inputs.append((x, module.weight))
        return "?"

    monkeypatch.setattr(conv_compare, "_backend", backend)
    before = torch.get_rng_state()
    for seed in (0, 0, 1):
        compare_one(seed=seed)
    assert torch.equal(torch.get_rng_state(), before)
    first, again, other = inputs
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))


@pytest.mark.parametrize("side", ["ours", "pytorch"])
def test_one_bit_is_a_difference(monkeypatch, side):
    class Off(torch.nn.Conv2d):
        calls = 0

        def forward(self, x):
            y = super().forward(x)
            if Off.calls or side == "ours":  # PyTorch's second call, or convtime's every one
                bits = y.view(torch.int32)
                bits[0, 0, 0, 0] ^= 1
            Off.calls += 1
            return y

    monkeypatch.setattr(*(convtime.nn if side == "ours" else torch.nn, "Conv2d", Off))
    result = compare_one()
    assert result.bit_identical == (side == "pytorch")
    assert result.pytorch_repeats == (side == "ours")


OPTIONS: dict[str, dict[str, Any]] = {
    "conv1d": {},
    "conv2d": {"bias": True, "stride": (1, 2)},
    "conv3d": {"groups": 2, "bias": True, "padding": "same"},
    "conv_transpose1d": {"output_padding": (1,), "stride": (2,)},
    "conv_transpose2d": {"dilation": (1, 2), "padding": (1, 0)},
    "conv_transpose3d": {"bias": True},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.function)
def test_every_kind_in_both_passes(device, kind, layout):
    rank, options = kind.rank, OPTIONS[kind.function]
    problem = ConvProblem(
        2, 4, (7, 5, 6)[:rank], 6, (3, 1, 2)[:rank], transposed=kind.transposed, **options
    )
    layer = ConvLayer(("a",), problem)
    results = list(compare_layers([layer], device=device, passes=PASSES, layout=layout, **QUICK))
    assert [result.pass_name for result in results] == ["forward", "backward"]
    assert [result.title for result in results] == ["a", "a backward"]
    assert [result.flops for result in results] == [problem.flops, 2 * problem.flops]
    for result in results:
        assert result.bit_identical or not result.pytorch_repeats
        assert result.same_kernels is (None if device.type == "cpu" else True)
        again = LayerResult.from_dict(json.loads(json.dumps(result.to_dict())), {})
        assert (again.pass_name, again.layer) == (result.pass_name, layer)


def test_every_gradient_is_compared(monkeypatch):
    class Off(torch.nn.Conv2d):
        def forward(self, x):
            return super().forward(x).clone() + 0 * self.bias.sum()

    monkeypatch.setattr(convtime.nn, "Conv2d", Off)
    layer = changed(bias=True)
    forward, backward = compare_layers([layer], device=CPU, passes=PASSES, **QUICK)
    assert forward.bit_identical
    assert backward.bit_identical

    class Doubled(torch.nn.Conv2d):
        def forward(self, x):
            bias = self.bias[:, None, None]
            return super().forward(x) + bias - bias.detach()

    monkeypatch.setattr(convtime.nn, "Conv2d", Doubled)
    (backward,) = compare_layers([layer], device=CPU, passes=PASSES[1:], **QUICK)
    assert not backward.bit_identical
    assert backward.pytorch_repeats


class Net(torch.nn.Module):
    """Two kinds of layers, and outputs of which some are no tensors."""

    steps: list[Any] = []  # noqa: RUF012 (the copy's too)

    def __init__(self):
        super().__init__()
        self.flat = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.deep = torch.nn.ConvTranspose3d(4, 2, 2)

    def forward(self, x):
        self.steps.append((torch.is_grad_enabled(), self.training, x, type(self.flat).__module__))
        y = self.norm(self.flat(x))
        return {"deep": self.deep(y[:, :, None]), "flat": [y, None]}, "text"


def loaded(module, *shape, device=CPU):
    return LoadedModel("my:net", module.to(device), torch.randn(shape, device=device))


def test_a_models_step_is_timed_before_and_after_replacing(device):
    Net.steps.clear()
    net = Net().eval()
    step = compare_step(
        loaded(net, 2, 3, 8, 8, device=device), dtype="float64", layout="nhwc", **QUICK
    )
    assert all(training and grad for grad, training, _, _ in net.steps)
    assert {where for *_, where in net.steps} == {"torch.nn.modules.conv", "convtime.nn.layers"}
    assert net.steps[-1][2].dtype == torch.float64
    assert net.flat.weight.is_contiguous(memory_format=torch.channels_last)
    assert net.deep.weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert type(net.flat) is torch.nn.Conv2d
    assert net.flat.weight.grad is None
    assert (step.model, step.input_shape) == ("my:net", (2, 3, 8, 8))
    assert step.ratio.low <= step.ratio.value <= step.ratio.high
    assert step.pytorch.method == ("cpu" if device.type == "cpu" else "sync")
    document = json.loads(json.dumps(step.to_dict(), allow_nan=False))
    assert document["ratio"]["value"] == step.ratio.value
    assert document["pytorch"]["seconds"]


class ReturnsDataclass(torch.nn.Linear):
    @dataclasses.dataclass
    class Output:
        y: torch.Tensor

    def __init__(self):
        super().__init__(3, 3)

    def forward(self, x):
        return self.Output(super().forward(x))


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (
            torch.nn.Identity(),
            "no output has a gradient: its parameters may be frozen.*; --no",
        ),
        (torch.nn.Linear(3, 3).requires_grad_(False), "no output has a gradient"),
        (ReturnsDataclass(), "no output has a gradient.* such as a dataclass"),
        (
            torch.nn.Sequential(torch.nn.Unflatten(0, (1, 2)), torch.nn.BatchNorm2d(1)),
            "called on shape .* raised ValueError: .*; --no-backward times its layers' forward",
        ),
        (torch.nn.Linear(7, 7), "the model of my:net, called on shape .* raised RuntimeError: "),
    ],
)
def test_a_step_that_fails_is_said(module, says):
    with pytest.raises(InputError, match=f"a training step of .*{says}"):
        compare_step(loaded(module, 2, 3), **QUICK)


def test_the_sign_of_zero_is_a_difference(monkeypatch):
    class Negative(torch.nn.Conv2d):
        def forward(self, x):
            return torch.full_like(super().forward(x), -0.0)

    class Positive(torch.nn.Conv2d):
        def forward(self, x):
            return torch.full_like(super().forward(x), 0.0)

    monkeypatch.setattr(torch.nn, "Conv2d", Positive)
    monkeypatch.setattr(convtime.nn, "Conv2d", Negative)
    result = compare_one()
    assert not result.bit_identical
    assert result.pytorch_repeats


def test_a_layer_that_does_not_fit_names_itself_and_the_next_call_works(device):
    huge = changed(names=("huge",), batch=2**31 - 1)
    results = compare_layers([SMALL, huge], device=device, **QUICK)
    assert next(results).layer == SMALL  # asked for one by one
    with pytest.raises(InputError, match=r"^layer huge .* does not fit in memory; .*--batch"):
        next(results)
    assert compare_one(device=device).bit_identical


def test_weights_too_large_for_the_host_are_refused(monkeypatch):
    wide = changed(in_channels=400, out_channels=600, groups=2)
    monkeypatch.setattr(conv_compare, "_host_bytes", lambda: 4 * 600 * 200 * 3 * 5)
    with pytest.raises(InputError, match="does not fit in memory"):
        compare_one(wide)


def test_what_pytorch_cannot_run_is_said():
    reflect = changed(padding=(9, 2), padding_mode="reflect")
    with pytest.raises(
        InputError, match=r"layer small .* cannot be run: RuntimeError: .*[Pp]adding"
    ):
        compare_one(reflect)


def test_result_as_json():
    result = compare_one()
    row = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert row["layer"]["names"] == ["small"]
    assert row["layer"]["problem"]["kernel_size"] == [3, 5]
    for who in ("pytorch", "convtime"):
        assert row[who]["median"] == pytest.approx(statistics.median(row[who]["seconds"]), rel=0.02)
        assert row[who]["method"]["used"] == "cpu"
        assert "provenance" not in row[who]
    rounds = zip(row["convtime"]["seconds"], row["pytorch"]["seconds"], strict=True)
    median = statistics.median(ours / theirs for ours, theirs in rounds)
    assert row["ratio"]["value"] == pytest.approx(median, rel=1e-3)
    again = LayerResult.from_dict(row, {"gpu": None})
    assert again.layer == SMALL
    assert again.ratio == result.ratio
    assert row["ratio"] == {
        "value": result.ratio.value,
        "low": result.ratio.low,
        "high": result.ratio.high,
        "confidence": result.ratio.confidence,
    }
    assert list(again.convtime.seconds) == row["convtime"]["seconds"]
    assert again.convtime.provenance == {"gpu": None}
    assert again.flags == Flags.current()


@pytest.mark.parametrize("side", [None, [], {}, "text"])
def test_a_row_that_is_broken_is_refused(side):
    row = compare_one().to_dict()
    for broken in ({**row, "pytorch": side}, {"convtime": side}):
        with pytest.raises(ValueError, match="a LayerResult cannot be read"):
            LayerResult.from_dict(broken, {})


def test_times_are_recorded_to_the_picosecond():
    result = compare_one()
    odd = dataclasses.replace(result.pytorch, seconds=(1 / 3,), raw_seconds=(2 / 3,))
    row = dataclasses.replace(result, pytorch=odd).to_dict()["pytorch"]
    assert row["seconds"] == [0.333333333333]
    assert row["raw_seconds"] == [0.666666666667]


def test_flags_are_those_that_were_set(device):
    usual = compare_one(device=device)
    assert usual.flags == Flags.current()
    changes = {"benchmark": True, "deterministic": True, "allow_tf32": False}
    with torch.backends.cudnn.flags(enabled=True, **changes):
        result = compare_one(device=device)
    assert usual.flags == Flags.current()
    assert result.flags == dataclasses.replace(usual.flags, **changes) != usual.flags
    again = LayerResult.from_dict(json.loads(json.dumps(result.to_dict())), {})
    assert again.flags == result.flags


@pytest.mark.parametrize("side", SIDES)
def test_one_sides_layer_is_called_alone(side):
    problem = SMALL.problem
    of: dict[str, Any] = {"device": CPU, "dtype": "float64", "layout": "nhwc"}
    (output,) = layer_call(problem, side, **of)()
    assert output.shape == problem.output_shape
    assert not output.requires_grad
    gradients = layer_call(problem, side, **of, pass_name="backward")()
    assert [each.shape for each in gradients] == [problem.input_shape, problem.weight_shape]
    other = SIDES[1 - SIDES.index(side)]
    assert torch.equal(output, layer_call(problem, other, **of)()[0])


def test_layers_are_built_where_gradients_are_recorded() -> None:
    problem = ConvProblem(batch=1, in_channels=2, size=(5, 5), out_channels=3, kernel_size=(3, 3))
    ours, pytorch, x = conv_compare.build_layers(
        problem, torch.device("cpu"), "float32", "nchw", seed=0
    )
    assert ours.weight is pytorch.weight
    assert pytorch.weight.requires_grad
    assert torch.isfinite(pytorch(x)).all()
