"""PyTorch's and convtime's layers, compared on small problems."""

import dataclasses
import itertools
import json
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import convtime
from convtime.conv.call import DTYPES, LAYOUTS, Flags, memory_format
from convtime.conv.problem import PASSES, ConvLayer, ConvProblem
from convtime.conv.problem_line import ProblemLine
from convtime.core.errors import InputError
from convtime.core.kinds import KINDS
from convtime.layers import compare as conv_compare
from convtime.layers.compare import SIDES, LayerResult, build_layers, compare_layers, layer_call
from convtime.timing.verdict import Ratio
from tests.helpers.convolutions import SMALL, layer_result, problems, with_known_times
from tests.helpers.measurements import make
from tests.helpers.recorded import activity

CPU = torch.device("cpu")
QUICK: dict[str, Any] = {"budget": 0.001, "max_samples": 20, "warmup": 1}
ON_GPU: dict[str, Any] = {"budget": 0.02, "max_samples": 20}
# Of the kinds of layers, and of what cuDNN's plans are told.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "conv1d": [{}],
    "conv2d": [
        {"bias": True, "stride": (1, 2)},
        {"groups": 2, "dilation": (2, 1)},
        {"padding": "same", "kernel_size": (2, 4)},
        {"padding": (1, 1), "padding_mode": "reflect"},
        {"padding_mode": "circular", "padding": "same"},
    ],
    "conv3d": [{"groups": 2, "bias": True, "padding": "same"}],
    "conv_transpose1d": [{"output_padding": (1,), "stride": (2,)}],
    "conv_transpose2d": [{"dilation": (1, 2), "padding": (1, 0)}],
    "conv_transpose3d": [{"bias": True}],
}


def changed(**changes: Any) -> ConvProblem:
    return dataclasses.replace(SMALL, **changes)


def compared(problem: ConvProblem = SMALL, device: torch.device = CPU, **options: Any) -> Any:
    layer = ConvLayer(("small",), problem)
    timing = (QUICK if device.type == "cpu" else ON_GPU) | options
    results = [*compare_layers([layer], device=device, **timing)]
    return results if "passes" in options else results[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.function)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_every_kind_in_both_passes(device: torch.device, kind: Any, layout: str) -> None:
    for options in OPTIONS[kind.function][: 1 if layout == "nhwc" else None]:
        sizes = {"size": (7, 5, 6)[: kind.rank], "kernel_size": (3, 1, 2)[: kind.rank]}
        problem = ConvProblem(
            batch=2, in_channels=4, out_channels=6, transposed=kind.transposed, **(sizes | options)
        )
        results = compared(problem, device, passes=PASSES, layout=layout)
        assert [result.title for result in results] == ["small", "small backward"]
        for result, pass_name in zip(results, PASSES, strict=True):
            assert (result.layer.problem, result.pass_name) == (problem, pass_name)
            assert result.bit_identical or not result.pytorch_repeats
            assert result.same_kernels is (None if device.type == "cpu" else True)
            assert torch.device(result.pytorch.device).type == device.type
            assert min(result.pytorch.min, result.convtime.min) > 0
            assert result.ratio.low <= result.ratio.value <= result.ratio.high
            backends = {"cpu": ("Mkldnn", "Slow", "Xnnpack"), "cuda": ("Cudnn",)}
            assert result.backend.startswith(backends[device.type])


@settings(max_examples=20)
@given(problem=problems(), dtype=st.sampled_from([*DTYPES]), layout=st.sampled_from([*LAYOUTS]))
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_both_layers_share_their_data(problem: ConvProblem, dtype: str, layout: str) -> None:
    before = torch.get_rng_state()
    built = [build_layers(problem, CPU, dtype, layout, seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    dense = memory_format(layout, 2 + problem.rank)
    for ours, pytorch, x in built:
        assert type(pytorch) is getattr(torch.nn, problem.kind.layer)
        assert type(ours) is getattr(convtime.nn, problem.kind.layer)
        assert ours.weight is pytorch.weight
        assert ours.bias is pytorch.bias
        assert pytorch.weight.requires_grad
        assert x.shape == problem.input_shape
        for tensor in (pytorch.weight, x):
            assert (tensor.dtype, tensor.device) == (DTYPES[dtype], CPU)
            assert tensor.is_contiguous(memory_format=dense)
    (_, first, x), (_, again, same), (_, other, different) = built
    assert torch.equal(first.weight, again.weight)
    assert torch.equal(x, same)
    assert not torch.equal(first.weight, other.weight)
    assert not torch.equal(x, different)
    wide = ConvProblem(2, 64, (16, 16), 32, (3, 3), groups=2)
    _, pytorch, x = build_layers(wide, CPU, "float32", "nchw", 0)
    assert pytorch(x).var().item() == pytest.approx(1, rel=0.15)


@pytest.mark.parametrize("is_ours", [True, False])
def test_one_bit_is_a_difference(monkeypatch: pytest.MonkeyPatch, is_ours: bool) -> None:
    calls = itertools.count()

    class Off(torch.nn.Conv2d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            y = super().forward(input)
            if next(calls) or is_ours:  # PyTorch's second call, or convtime's every one
                y.view(torch.int32)[0, 0, 0, 0] ^= 1
            return y

    monkeypatch.setattr(convtime.nn if is_ours else torch.nn, "Conv2d", Off)
    result = compared()
    assert result.bit_identical != is_ours
    assert result.pytorch_repeats == is_ours


@pytest.mark.parametrize("factor", [0, 1])
def test_every_gradient_is_compared(monkeypatch: pytest.MonkeyPatch, factor: int) -> None:
    class Off(torch.nn.Conv2d):
        """The same output, with a gradient of the bias that is 1 + factor as large."""

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            assert self.bias is not None
            bias = self.bias[:, None, None] * factor
            return super().forward(input) + bias - bias.detach()

    monkeypatch.setattr(convtime.nn, "Conv2d", Off)
    (backward,) = compared(changed(bias=True), passes=PASSES[1:])
    assert backward.bit_identical == (factor == 0)
    assert backward.pytorch_repeats


def test_a_layer_that_does_not_fit_names_itself_and_the_next_call_works(
    device: torch.device,
) -> None:
    layers = [ConvLayer(("small",), SMALL), ConvLayer(("huge",), changed(batch=2**31 - 1))]
    results = compare_layers(layers, device=device, **QUICK)
    assert next(results).layer == layers[0]  # asked for one by one
    with pytest.raises(InputError, match=r"^layer huge .* does not fit in memory; .*--batch"):
        next(results)
    assert compared(device=device).bit_identical


def test_what_cannot_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    says = r"layer small .* cannot be run: RuntimeError: .*[Pp]adding"
    with pytest.raises(InputError, match=says):
        compared(changed(padding=(9, 2), padding_mode="reflect"))
    # Weights, input, and the outputs of both.
    numbers = 6 * 4 * 3 * 5 + 2 * 4 * 9 * 11 + 2 * (2 * 6 * 9 * 11)
    monkeypatch.setattr(conv_compare, "_host_bytes", lambda: 4 * numbers)
    compared()
    monkeypatch.setattr(conv_compare, "_host_bytes", lambda: 4 * numbers - 1)
    with pytest.raises(InputError, match="does not fit in memory"):
        compared()


@settings(max_examples=40)
@given(
    problem=problems(),
    ticks=st.lists(st.integers(100, 10_000), min_size=1, max_size=9, unique=True),
    ends=st.tuples(*[st.integers(970, 1030)] * 2),
    bits=st.tuples(st.booleans(), st.booleans()),
    backward=st.booleans(),
)
def test_what_follows_from_times_and_bits(
    problem: ConvProblem,
    ticks: list[int],
    ends: tuple[int, int],
    bits: tuple[bool, bool],
    backward: bool,
) -> None:
    low, high = sorted(ends)
    result = layer_result(
        problem,
        convtime=make(seconds=tuple(each / 1e9 for each in ticks), activities=()),
        ratio=Ratio((low + high) / 2000, low / 1000, high / 1000),
        bit_identical=bits[0],
        pytorch_repeats=bits[1],
        pass_name=PASSES[backward],
    )
    flops = problem.flops * (2 if backward else 1)
    assert result.flops == flops
    assert result.gflops == pytest.approx(flops / statistics.median(ticks), rel=1e-6)
    if low > 990 and high < 1010:
        assert result.verdict == "same"
    elif low > 1010 or high < 990:
        assert result.verdict == ("slower" if low > 1010 else "faster")
    elif {low, high}.isdisjoint({990, 1010}):
        assert result.verdict == "uncertain"
    assert result.is_different == (bits[1] and not bits[0])
    command, name, line, *options = result.reproducer.split(" ")
    assert (command, name, options) == ("convtime", "conv", ["--backward"] * backward)
    assert ProblemLine.parse(line) == ProblemLine(problem, "float32", "nchw")
    row = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert (row["flops"], row["verdict"]) == (flops, result.verdict)
    assert LayerResult.from_dict(row, result.pytorch.provenance) == result


def test_the_same_kernels_may_run_in_any_order() -> None:
    first, second = make(activities=(activity("a"),)), make(activities=(activity("b"),))
    both = make(activities=(*first.activities, *second.activities))
    swapped = make(activities=both.activities[::-1])
    for theirs, ours, same in ((both, swapped, True), (both, first, False), (first, second, False)):
        assert layer_result(pytorch=theirs, convtime=ours).same_kernels is same
    assert layer_result().same_kernels is None


def test_a_result_is_of_both_sides_and_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_compare, "compare", with_known_times)
    for result in compared(passes=PASSES):
        assert (result.pytorch.median, result.convtime.median) == pytest.approx((1e-5, 2e-5))
        assert (result.ratio.value, result.verdict) == (pytest.approx(2), "slower")
    row = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert all("provenance" not in row[who] for who in SIDES)
    again = LayerResult.from_dict(row, {"gpu": None})
    assert (again.layer, again.flags, again.ratio) == (result.layer, Flags.current(), result.ratio)
    assert again.convtime.provenance == {"gpu": None}
    sides: list[Any] = [None, [], {}, "text"]
    for side in sides:
        for broken in ({**row, "pytorch": side}, {"convtime": side}):
            with pytest.raises(ValueError, match="a LayerResult cannot be read"):
                LayerResult.from_dict(broken, {})
    # Times are written to the picosecond.
    odd = dataclasses.replace(result.pytorch, seconds=(1 / 3,), raw_seconds=(2 / 3,))
    row = dataclasses.replace(result, pytorch=odd).to_dict()["pytorch"]
    assert (row["seconds"], row["raw_seconds"]) == ([0.333333333333], [0.666666666667])


def test_one_sides_layer_is_called_alone() -> None:
    of: dict[str, Any] = {"device": CPU, "dtype": "float64", "layout": "nhwc"}
    (theirs,), (ours,) = (layer_call(SMALL, side, **of)() for side in SIDES)
    assert torch.equal(theirs, ours)
    assert theirs.shape == SMALL.output_shape
    assert not theirs.requires_grad
    for side in SIDES:
        gradients = layer_call(SMALL, side, **of, pass_name="backward")()
        assert [each.shape for each in gradients] == [SMALL.input_shape, SMALL.weight_shape]
