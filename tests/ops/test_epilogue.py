"""Convolutions with an epilogue against PyTorch's ops, one for each step."""

from __future__ import annotations

import itertools
import math
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import convtime.nn
from convtime import ops
from convtime.core.load import _C
from convtime.ops import epilogue
from convtime.ops.flops import register_formulas

Tensors = dict[str, Any]  # tensors, or None where there is none

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "identity": lambda x: x,
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
RANKS = (1, 2, 3)
# Bounds of a single rounding, and of several: separate steps round to 16 bits after each.
TOLERANCES: dict[torch.dtype, dict[str, Any]] = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 5e-5, "atol": 5e-5},
    torch.float16: {"rtol": 4e-3, "atol": 4e-3},
    torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2},
}


@pytest.fixture(autouse=True)
def without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused and separate plans may differ in whether they use it."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def make_tensors(
    rank: int,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
    *,
    bias: bool = True,
    other: bool = True,
    channels_last: bool = False,
    requires_grad: bool = False,
    seed: int = 0,
) -> Tensors:
    """For a stride of 2 and a padding of 1."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int, scale: float = 1.0) -> torch.Tensor:
        x = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        x = x.to(device, dtype)
        if channels_last and rank > 1 and len(shape) == rank + 2:
            layouts = {2: torch.channels_last, 3: torch.channels_last_3d}
            x = x.contiguous(memory_format=layouts[rank])
        return x.requires_grad_(requires_grad)

    size = (9, 8, 7)[:rank]
    return {
        "input": randn(2, 8, *size),
        "weight": randn(16, 8, *(3,) * rank, scale=(8 * 3**rank) ** -0.5),
        "bias": randn(16) if bias else None,
        "other": randn(2, 16, *((length + 1) // 2 for length in size)) if other else None,
    }


def fused(rank: int) -> Callable[..., torch.Tensor]:
    function: Callable[..., torch.Tensor] = getattr(ops, f"conv{rank}d_epilogue")
    return function


def separate(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    other: torch.Tensor | None = None,
    alpha: float = 1.0,
    activation: str = "relu",
    **numbers: Any,
) -> torch.Tensor:
    conv = getattr(F, f"conv{weight.dim() - 2}d")
    y: torch.Tensor = conv(input, weight, bias, **numbers)
    if other is not None:
        y = y + alpha * other
    return ACTIVATIONS[activation](y)


def settings(activation: str) -> dict[str, Any]:
    return {"activation": activation, "negative_slope": 0.2, "stride": 2, "padding": 1}


def assert_same_layout_and_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert ours.stride() == theirs.stride()
    torch.testing.assert_close(ours, theirs, **TOLERANCES[ours.dtype])


@pytest.mark.filterwarnings("ignore:.*cuDNN has no engine for")
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rank", RANKS)
def test_outputs_are_those_of_separate_ops(
    rank: int, activation: str, device: torch.device
) -> None:
    for dtype in TOLERANCES:
        for bias, other, channels_last in (
            (True, True, False),
            (True, False, True),
            (False, True, True),
            (False, False, False),
        ):
            tensors = make_tensors(
                rank, device, dtype, bias=bias, other=other, channels_last=channels_last
            )
            ours = fused(rank)(**tensors, **settings(activation), alpha=0.5)
            options = {**settings(activation), "alpha": 0.5}
            del options["negative_slope"]
            assert_same_layout_and_close(ours, separate(**tensors, **options))


@pytest.mark.filterwarnings("ignore:.*cuDNN has no engine for")
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rank", RANKS)
def test_gradients_are_those_of_separate_ops(
    rank: int, activation: str, device: torch.device
) -> None:
    options = settings(activation)
    results: list[Any] = []
    for function in (fused(rank), separate):
        tensors = make_tensors(rank, device, torch.float64, requires_grad=True)
        leaves = [tensor for tensor in tensors.values() if tensor is not None]
        output = function(**tensors, alpha=0.5, **options)
        results.append(torch.autograd.grad(output.square().sum(), leaves))
        options.pop("negative_slope", None)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("wanted", ["input", "weight", "bias", "other"])
def test_only_the_gradients_that_are_asked_for(wanted: str, device: torch.device) -> None:
    results: list[Any] = []
    for function in (fused(2), separate):
        tensors = make_tensors(2, device)
        leaf = tensors[wanted]
        leaf.requires_grad_()
        output = function(**tensors, alpha=3.0, padding=1, stride=2)
        results += torch.autograd.grad(output.sum(), leaf)
    torch.testing.assert_close(*results)


PIXELS = {  # sides of the images and of the filters, and the padding
    "filters of one pixel": ((1, 1), (1, 1), (0, 0)),
    "filters larger than the images": ((1, 1), (3, 3), (1, 1)),
    "images as large as the filters": ((4, 3), (4, 3), (0, 0)),
    "images padded to more": ((1, 1), (1, 1), (1, 1)),
}


@pytest.mark.filterwarnings("ignore:.*cuDNN has no engine for")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("channels", [(1, 8), (2, 6), (16, 16), (8, 1)])
@pytest.mark.parametrize("pixels", PIXELS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_images_of_one_pixel(
    activation: Any,
    pixels: str,
    channels: tuple[int, int],
    channels_last: bool,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of strides that fit both layouts, cuDNN's engines read and wrote elsewhere."""
    image, filters, padding = PIXELS[pixels]
    given, made = channels
    dtypes = [torch.float16, torch.bfloat16, torch.float32]
    for dtype in dtypes if device.type == "cuda" else [torch.float32]:
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", dtype == torch.float32)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        shapes = [(3, given, *image), (made, given, *filters)]
        x, w = (
            torch.randn(shape, device=device, dtype=dtype).to(memory_format=layout)
            for shape in shapes
        )
        bias = torch.randn(made, device=device, dtype=dtype)
        expected = F.conv2d(x.double(), w.double(), bias.double(), padding=padding)
        for other in (None, torch.randn_like(expected, memory_format=layout).to(dtype)):
            ours = ops.conv2d_epilogue(
                x, w, bias, padding=padding, other=other, activation=activation, negative_slope=0.2
            )
            theirs = ACTIVATIONS[activation](expected if other is None else expected + other)
            tolerance = 5e-2 if dtype == torch.bfloat16 else 1e-2
            torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore:.*cuDNN has no engine for")
@pytest.mark.parametrize("activation", ["identity", "leaky_relu", "gelu", "sigmoid", "tanh"])
def test_gradcheck(activation: Any, device: torch.device) -> None:
    options: dict[str, Any] = {"dtype": torch.float64, "device": device, "requires_grad": True}
    tensors = [torch.randn(size, **options) for size in ((2, 4, 4, 3), (6, 2, 2, 2), 6)]
    other = torch.randn(2, 6, 3, 2, **options)

    def fn(*tensors: torch.Tensor) -> torch.Tensor:
        x, w, b, z = tensors
        return ops.conv2d_epilogue(
            x, w, b, groups=2, other=z, alpha=0.5, activation=activation, negative_slope=0.2
        )

    tolerance: dict[str, Any] = {"nondet_tol": 1e-12}
    assert torch.autograd.gradcheck(fn, (*tensors, other), check_forward_ad=True, **tolerance)
    assert torch.autograd.gradgradcheck(fn, (*tensors, other), **tolerance)


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_what_is_kept_for_the_gradient(activation: str, device: torch.device) -> None:
    tensors = make_tensors(2, device, requires_grad=True)
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, keep):
        output = fused(2)(**tensors, **settings(activation))
    expected = tensors["input"], tensors["weight"], output
    assert [tensor.shape for tensor in kept] == [tensor.shape for tensor in expected]
    # Of what is activated where the output does not do, and else of the output.
    assert torch.equal(kept[2], output) == (activation == "relu")


def test_a_node_does_not_keep_itself_alive(device: torch.device) -> None:
    tensors = make_tensors(2, device, requires_grad=True)
    output = fused(2)(**tensors, stride=2, padding=1)
    held = torch.nn.Module()  # by the node alone, once its name is gone
    assert output.grad_fn is not None
    output.grad_fn.register_hook(lambda *_gradients, held=held: None)
    dropped = weakref.ref(held)
    del held, output
    assert dropped() is None


def test_a_backward_pass_frees_what_is_kept(device: torch.device) -> None:
    tensors = make_tensors(2, device, requires_grad=True)
    output = fused(2)(**tensors, stride=2, padding=1)
    output.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        output.sum().backward()


def test_an_output_that_was_changed_in_place_is_noticed(device: torch.device) -> None:
    tensors = make_tensors(2, device, requires_grad=True)
    output = fused(2)(**tensors, stride=2, padding=1)
    output.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_infinities_and_nan_pass_as_in_separate_ops(activation: str, device: torch.device) -> None:
    tensors = make_tensors(2, device)
    for place, value in enumerate((math.nan, math.inf, -math.inf)):
        tensors["other"].view(-1)[place] = value
    options = settings(activation)
    ours = fused(2)(**tensors, **options)
    del options["negative_slope"]
    torch.testing.assert_close(ours, separate(**tensors, **options), equal_nan=True)


@pytest.mark.parametrize("rank", RANKS)
def test_an_image_without_a_batch(rank: int, device: torch.device) -> None:
    tensors = make_tensors(rank, device)
    alone = {**tensors, "input": tensors["input"][0], "other": tensors["other"][0]}
    ours = fused(rank)(**alone, stride=2, padding=1)
    torch.testing.assert_close(ours, separate(**alone, stride=2, padding=1))


def test_an_empty_batch(device: torch.device) -> None:
    tensors = make_tensors(2, device, requires_grad=True)
    empty = {
        **tensors,
        "input": torch.empty(0, 8, 9, 8, device=device),
        "other": torch.empty(0, 16, 5, 4, device=device),
    }
    output = fused(2)(**empty, stride=2, padding=1)
    assert output.shape == (0, 16, 5, 4)
    (gradient,) = torch.autograd.grad(output.sum(), tensors["weight"])
    assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_in_words(padding: str, device: torch.device) -> None:
    tensors = make_tensors(2, device, other=False)
    ours = fused(2)(**tensors, padding=padding, dilation=(1, 2))
    torch.testing.assert_close(ours, separate(**tensors, padding=padding, dilation=(1, 2)))


def test_depthwise_and_grouped_convolutions(device: torch.device) -> None:
    x = torch.randn(2, 8, 9, 8, device=device)
    for groups in (2, 8):
        w, b = torch.randn(16, 8 // groups, 3, 3, device=device), torch.randn(16, device=device)
        ours = ops.conv2d_epilogue(x, w, b, groups=groups)
        torch.testing.assert_close(ours, separate(x, w, b, groups=groups), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*cuDNN has no engine for")
@pytest.mark.parametrize(
    ("rank", "activation"), [(1, "identity"), (2, "relu"), (2, "gelu"), (3, "relu")]
)
def test_opcheck(rank: int, activation: str, device: torch.device) -> None:
    op = torch.ops.convtime.convolution_epilogue.default
    for bias, other, channels_last, requires_grad in (
        (True, True, False, False),
        (True, True, True, True),
        (False, False, True, True),
        (True, False, False, True),
    ):
        tensors = make_tensors(
            rank,
            device,
            bias=bias,
            other=other,
            channels_last=channels_last,
            requires_grad=requires_grad,
        )
        numbers = [2] * rank, [1] * rank, [1] * rank, 1
        torch.library.opcheck(op, (*tensors.values(), *numbers, activation, 0.5))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_compiles_without_graph_breaks_and_with_dynamic_shapes(
    activation: Any, device: torch.device
) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return 2 * ops.conv2d_epilogue(x + 1, w, other=z, padding=1, activation=activation)

    compiled = torch.compile(fn, backend="aot_eager", fullgraph=True, dynamic=True)
    w = torch.randn(4, 3, 3, 3, device=device, requires_grad=True)
    for size in (8, 11):
        x = torch.randn(2, 3, size, size + 1, device=device)
        z = torch.randn(2, 4, size, size + 1, device=device, requires_grad=True)
        actual, expected = compiled(x, w, z), fn(x, w, z)
        torch.testing.assert_close(actual, expected)
        gradients = (torch.autograd.grad(out.sum(), (w, z)) for out in (actual, expected))
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_compiled_autograd_traces_the_gradient(device: torch.device) -> None:
    results: list[Any] = []
    for compiles in (True, False):
        tensors = make_tensors(2, device, requires_grad=True)
        loss = fused(2)(**tensors, stride=2, padding=1, alpha=0.5).square().sum()
        if compiles:
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
                loss.backward()
        else:
            loss.backward()
        results.append([tensor.grad for tensor in tensors.values() if tensor is not None])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_all_four(dtype: torch.dtype, device: torch.device) -> None:
    tensors = make_tensors(2, device)
    with torch.autocast(device.type, dtype=dtype):
        ours = fused(2)(**tensors, stride=2, padding=1)
    assert ours.dtype == dtype
    cast = {
        name: tensor if tensor is None else tensor.to(dtype) for name, tensor in tensors.items()
    }
    assert torch.equal(ours, fused(2)(**cast, stride=2, padding=1))


def test_vmap_is_that_of_separate_ops(device: torch.device) -> None:
    tensors = make_tensors(2, device)
    others = tensors["other"]
    inputs = torch.stack([tensors["input"], 2 * tensors["input"]])
    weights = torch.stack([tensors["weight"], -tensors["weight"]], dim=1)

    def run(function: Any) -> Any:
        def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = function(
                x, w, tensors["bias"], other=tensors["other"], stride=2, padding=1
            )
            return output

        def call_with_other(z: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = function(
                tensors["input"], tensors["weight"], other=z, stride=2, padding=1
            )
            return output

        return (
            torch.vmap(call_with_other, 1)(torch.stack([others, 2 * others], dim=1)),
            torch.vmap(call, (0, None))(inputs, tensors["weight"]),
            torch.vmap(call, (0, 1))(inputs, weights),
            torch.vmap(torch.func.grad(lambda x, w: call(x, w).sum()), (0, None))(
                inputs, tensors["weight"]
            ),
        )

    for ours, theirs in zip(run(fused(2)), run(separate), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_addends_of_one_example_are_batched(device: torch.device) -> None:
    tensors = make_tensors(2, device)
    example, addend = tensors["input"][0], tensors["other"][0]

    def call(z: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = fused(2)(example, tensors["weight"], other=z, stride=2, padding=1)
        return output

    addends = torch.stack([addend, -addend])
    torch.testing.assert_close(torch.vmap(call)(addends), torch.stack([*map(call, addends)]))


def test_flops_are_the_convolutions(device: torch.device) -> None:
    register_formulas()
    tensors = make_tensors(2, device)
    counts = []
    for function in (fused(2), separate):
        with FlopCounterMode(display=False) as counter:
            function(**tensors, stride=2, padding=1)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "activation": (
        {"activation": "swish"},
        "conv2d_epilogue: activation must be one of 'identity', 'relu', .*, got 'swish'",
    ),
    "no name": ({"activation": None}, "conv2d_epilogue: activation must be a str, got None"),
    "infinite alpha": ({"alpha": math.inf}, "alpha and negative_slope must be finite, got inf"),
    "shape of other": (
        {"other": torch.ones(2, 16, 1, 1)},
        r"conv2d_epilogue: other must have the output's shape \[2, 16, 5, 4\], got \[2, 16, 1, 1\]",
    ),
    "dtype of other": (
        {"other": torch.ones(2, 16, 5, 4, dtype=torch.float16)},
        r"other must have the input's dtype \(Float\), got Half",
    ),
    "bias": ({"bias": torch.ones(3)}, r"conv2d_epilogue: bias must have shape \(16\)"),
    "weight": (
        {"weight": torch.ones(16, 8, 3)},
        r"conv2d_epilogue: weight must have 4 dimensions, got shape \(16, 8, 3\)",
    ),
    "groups": ({"groups": 3}, "conv2d_epilogue: .* must be a multiple of groups"),
    "policy": ({"policy": "fastest"}, "conv2d_epilogue: policy must be 'heuristic', 'benchmark'"),
    "another graph": (
        {"policy": "ConvFwd_ADD_GELU_FWD_eng0"},
        "names an engine of ConvFwd_ADD_GELU_FWD, but this call computes ConvFwd_ADD_ADD_RELU_FWD",
    ),
    "an engine of a convolution alone": (
        {"policy": "ConvFwd_eng0"},
        "names an engine of ConvFwd, but this call computes ConvFwd_ADD_ADD_RELU_FWD",
    ),
    "no tensor": ({"input": [1.0]}, "conv2d_epilogue: input must be a tensor, got list"),
    "other": ({"other": 1.0}, "conv2d_epilogue: other must be a tensor or None, got float"),
    "alpha": ({"alpha": "1"}, "conv2d_epilogue: alpha must be a real number, got '1'"),
    "slope": ({"negative_slope": None}, "negative_slope must be a real number, got None"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(case: str, device: torch.device) -> None:
    changes, message = BAD[case]
    arguments = {**make_tensors(2, device), "stride": 2, "padding": 1}
    for name, value in changes.items():
        arguments[name] = value.to(device) if isinstance(value, torch.Tensor) else value
    with pytest.raises((RuntimeError, TypeError), match=message) as caught:
        fused(2)(**arguments)
    assert len(str(caught.value).splitlines()) == 1


def test_a_convolution_does_not_take_an_engine_of_an_epilogue(device: torch.device) -> None:
    tensors = make_tensors(2, device, other=False)
    with pytest.raises(RuntimeError, match="names an engine of ConvFwd_ADD_ADD_RELU_FWD, but"):
        ops.conv2d(tensors["input"], tensors["weight"], policy="ConvFwd_ADD_ADD_RELU_FWD_eng0")


def test_an_engine_needs_cudnn() -> None:
    tensors = make_tensors(2, "cpu")
    with pytest.raises(RuntimeError, match="on cpu without cuDNN's plans; leave policy out"):
        fused(2)(**tensors, stride=2, padding=1, policy="eng0")


PLAIN: dict[str, dict[str, Any]] = {
    "numbers": {"stride": 2, "padding": 1},
    "tuples and lists": {"stride": (2,), "padding": [1]},
    "a word": {"stride": 2, "padding": "valid", "other": None},
    "uneven padding": {"padding": "same", "dilation": 1, "other": None},
    "no tensors": {"stride": 2, "padding": 1, "bias": None, "other": None},
    "whole numbers": {"stride": 2, "padding": 1, "alpha": 2, "negative_slope": 0},
    "a policy": {"stride": 2, "padding": 1, "policy": "heuristic"},
}


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", PLAIN)
def test_plain_arguments_take_the_direct_entry(
    case: str, rank: int, device: torch.device, monkeypatch: pytest.MonkeyPatch, spy: Any
) -> None:
    tensors = make_tensors(rank, device)
    if case == "uneven padding":
        tensors["weight"] = tensors["weight"][(..., *[slice(2)] * rank)]
    arguments = {**tensors, **PLAIN[case], "activation": "leaky_relu"}
    with spy:
        expected = fused(rank)(**arguments)
    assert torch.ops.convtime.convolution_epilogue in spy.seen
    monkeypatch.setattr(epilogue, "_by_torch_ops", lambda *_: pytest.fail("it went by torch.ops"))
    with torch.device("meta"):  # as torch.set_default_device, and of no concern here
        assert torch.equal(fused(rank)(**arguments), expected)


def test_arguments_that_are_not_plain_go_by_torch_ops(device: torch.device, spy: Any) -> None:
    class Tagged(torch.Tensor):
        pass

    class Whole:
        def __index__(self) -> int:
            return 2

    tensors = make_tensors(2, device)
    expected = fused(2)(**tensors, stride=2, padding=1)
    assert torch.equal(fused(2)(**tensors, stride=Whole(), padding=1), expected)
    tagged = {**tensors, "other": tensors["other"].as_subclass(Tagged)}
    assert isinstance(fused(2)(**tagged, stride=2, padding=1), Tagged)
    with spy:
        assert torch.equal(fused(2)(**tensors, stride=2, padding=1), expected)
    assert torch.ops.convtime.convolution_epilogue in spy.seen


def test_an_ops_warnings_are_pythons() -> None:
    one = torch.ones(1)
    with pytest.warns(UserWarning, match="degrees of freedom is <= 0"):
        assert _C.call_op(torch.ops.aten.var, one, unbiased=True).isnan()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="degrees of freedom is <= 0"):
            _C.call_op(torch.ops.aten.var, one)
    with pytest.raises(RuntimeError, match="size"):
        _C.call_op(torch.ops.aten.add, torch.ones(2), torch.ones(3))


@pytest.mark.parametrize("shape", [(2, 16, 5, 5), (16, 5, 4), (2, 16, 5, 4, 1)])
def test_the_fake_refuses_another_of_another_shape(shape: tuple[int, ...]) -> None:
    tensors = make_tensors(2, "cpu")
    with FakeTensorMode() as mode:
        fakes: Tensors = {
            name: None if tensor is None else mode.from_tensor(tensor)
            for name, tensor in tensors.items()
        }
        fakes["other"] = torch.empty(shape)
        with pytest.raises(RuntimeError):
            fused(2)(**fakes, stride=2, padding=1)


# --- What needs a GPU ---------------------------------------------------------------------------

LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
# Of ResNet-50 and others: input, weight, stride, padding.
PROBLEMS = {
    "1×1": ((8, 64, 56, 56), (64, 64, 1, 1), 1, 0),
    "3×3": ((8, 64, 56, 56), (64, 64, 3, 3), 1, 1),
    "3×3/2": ((8, 128, 56, 56), (128, 128, 3, 3), 2, 1),
    "expand": ((8, 64, 56, 56), (256, 64, 1, 1), 1, 0),
    "7×7/2": ((8, 3, 224, 224), (64, 3, 7, 7), 2, 3),
    "odd": ((3, 24, 17, 19), (40, 24, 3, 3), 1, 1),
}


def on_gpu(
    problem: str, dtype: torch.dtype, layout: str
) -> tuple[Tensors, dict[str, Any], torch.Size]:
    x_size, w_size, stride, padding = PROBLEMS[problem]
    generator = torch.Generator("cuda").manual_seed(0)

    def randn(size: tuple[int, ...]) -> torch.Tensor:
        x = torch.randn(size, generator=generator, device="cuda").to(dtype)
        return x.contiguous(memory_format=LAYOUTS[layout]) if len(size) == 4 else x

    x, w = randn(x_size), randn(w_size) / math.prod(w_size[1:]) ** 0.5
    w = w.contiguous(memory_format=LAYOUTS[layout])
    numbers: dict[str, Any] = {"stride": stride, "padding": padding}
    size = F.conv2d(x, w, **numbers).shape
    tensors: Tensors = {"input": x, "weight": w, "bias": randn(w_size[:1]), "other": randn(size)}
    return tensors, numbers, size


def pytorchs_fused(tensors: Tensors, numbers: dict[str, Any], alpha: float) -> torch.Tensor:
    x, w, b, z = tensors.values()
    sizes = [numbers["stride"]] * 2, [numbers["padding"]] * 2, [1, 1], 1
    if z is None:
        return torch.cudnn_convolution_relu(x, w, b, *sizes)
    return torch.cudnn_convolution_add_relu(x, w, z, alpha, b, *sizes)


def fill_free_memory_with_nan(nbytes: int) -> None:
    """What outputs and workspaces are made of next."""
    blocks = [torch.full((nbytes // 4,), math.nan, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    del blocks


@pytest.mark.cuda
@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("allow_tf32", [False, True])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_relu_is_pytorchs_fused_one_to_the_bit(
    problem: str,
    allow_tf32: bool,
    dtype: torch.dtype,
    layout: str,
    bias: bool,
    other: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allow_tf32)
    tensors, numbers, _ = on_gpu(problem, dtype, layout)
    tensors["bias"] = tensors["bias"] if bias else None
    tensors["other"] = tensors["other"] if other else None
    try:
        theirs = pytorchs_fused(tensors, numbers, 0.5)
    except RuntimeError as error:
        if "unable to find an engine" not in str(error):
            raise
        convtime.clear_plan_cache()
        with pytest.warns(UserWarning, match="cuDNN has no engine for relu"):
            fused(2)(**tensors, **numbers, alpha=0.5)
        return
    ours = fused(2)(**tensors, **numbers, alpha=0.5)
    assert ours.stride() == theirs.stride()
    assert torch.equal(ours, theirs)
    choice = convtime.plan_cache()[-1]
    assert choice.tag.startswith("ConvFwd_ADD_ADD_RELU_FWD_eng")


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:.*cuDNN has no engine for")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("channels", [1, 3, 8, 20])
@pytest.mark.parametrize("image", [(1, 1), (1, 3), (2, 2), (7, 7), (5, 9), (8, 16), (131, 17)])
def test_planes_and_channels_of_any_number(
    image: tuple[int, int], channels: int, channels_last: bool
) -> None:
    """Separate kernels, which depthwise convolutions need, add the bias of a channel to it."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(3, channels, *image, device="cuda", dtype=dtype).to(memory_format=layout)
        w = torch.ones(channels, 1, 1, 1, device="cuda", dtype=dtype)
        bias = torch.arange(channels, device="cuda").to(dtype)
        unaligned = torch.empty(x.numel() + 1, device="cuda", dtype=dtype)[1:]
        for other in (None, 2 * x, unaligned.as_strided(x.shape, x.stride()).copy_(2 * x)):
            ours = ops.conv2d_epilogue(
                x, w, bias, other=other, alpha=0.5, groups=channels, activation="leaky_relu",
                negative_slope=0.25,
            )  # fmt: skip
            wide = x.to(torch.float64)
            y = (wide if other is None else 2 * wide) + bias.to(wide).view(-1, 1, 1)
            expected = F.leaky_relu(y, 0.25).to(dtype)
            torch.testing.assert_close(ours, expected, **TOLERANCES[dtype])


@pytest.mark.cuda
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_memory_that_was_not_written_is_not_read(
    activation: str, dtype: torch.dtype, layout: str
) -> None:
    tensors, numbers, _ = on_gpu("3×3", dtype, layout)
    tensors["other"] = None
    for policy in ("heuristic", "benchmark"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*cuDNN has no engine for")
            for _ in range(2):
                fill_free_memory_with_nan(8 * 64 * 56 * 56 * dtype.itemsize)
                output = fused(2)(**tensors, **numbers, activation=activation, policy=policy)
                assert output.isfinite().all()


@pytest.mark.cuda
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("activation", ["identity", "relu"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_sums_and_a_relu_are_always_fused(
    problem: str, dtype: torch.dtype, layout: str, activation: str
) -> None:
    for other in (False, True):
        tensors, numbers, _ = on_gpu(problem, dtype, layout)
        tensors["other"] = tensors["other"] if other else None
        ours = fused(2)(**tensors, **numbers, activation=activation)
        theirs = separate(**tensors, **numbers, activation=activation)
        tolerance = 3e-2 if dtype == torch.bfloat16 else 5e-3
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:.*cuDNN has no engine for")
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("activation", ["identity", "relu", "gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_timed_ways_compute_the_same(rank: int, activation: str, dtype: torch.dtype) -> None:
    """Which one is fastest depends on the GPU.

    One of them converts to channels-last and back, and pads the output's channels.
    """
    last = torch.channels_last if rank == 2 else torch.channels_last_3d
    cases = itertools.product(
        ((3, 17, 40), (8, 9, 25), (64, 14, 94), (33, 31, 40), (16, 40, 1), (1, 28, 64)),
        (torch.contiguous_format, last),
    )
    for (channels, size, outputs), layout in cases:
        x = torch.randn(2, channels, *(size,) * rank, device="cuda", dtype=dtype)
        x = x.contiguous(memory_format=layout)
        w = torch.randn(outputs, channels, *(3,) * rank, device="cuda", dtype=dtype)
        w = (w / channels**0.5).contiguous(memory_format=layout)
        bias = torch.randn(outputs, device="cuda", dtype=dtype)
        other = torch.randn(2, outputs, *(size - 2,) * rank, device="cuda", dtype=dtype)
        other = other.contiguous(memory_format=layout)
        if channels == 64:  # begins anywhere within 16 bytes
            storage = torch.randn(1 + other.numel(), device="cuda", dtype=dtype)
            other = storage.as_strided(other.shape, other.stride(), 1)
        expected = separate(
            x.double(), w.double(), bias.double(), other=other.double(), activation=activation
        )
        # PyTorch takes images and weights of one channel as contiguous, whichever layout is asked.
        strides = separate(x, w, bias, activation="identity").stride()
        for _ in range(2):  # the first call times the ways
            ours = fused(rank)(x, w, bias, other=other, activation=activation, policy="benchmark")
            assert ours.stride() == strides
            tolerance = 2e-2 if dtype == torch.float16 else 1e-3
            torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.cuda
def test_benchmarked_plans_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, numbers, _ = on_gpu("3×3", torch.float16, "nhwc")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    convtime.clear_plan_cache()
    ours = fused(2)(**tensors, **numbers)
    torch.testing.assert_close(ours, separate(**tensors, **numbers), rtol=1e-2, atol=1e-2)
    choices = [choice for choice in convtime.plan_cache() if choice.activation == "relu"]
    assert (choices[-1].policy, choices[-1].source) == ("benchmark", "benchmark")
    assert len(choices[-1].timed) > 1
    # Timed against a plain one, and what follows in a kernel of its own.
    assert convtime.plan_cache()[-1].policy == "benchmark"
    assert any(choice.tag.startswith("ConvFwd_eng") for choice in convtime.plan_cache())
    named = fused(2)(**tensors, **numbers, policy=choices[-1].tag)
    torch.testing.assert_close(named, ours, rtol=1e-2, atol=1e-2)


@pytest.mark.cuda
def test_epilogues_have_plans_of_their_own() -> None:
    convtime.clear_plan_cache()
    tensors, numbers, _ = on_gpu("3×3", torch.float16, "nhwc")
    results = [
        fused(2)(**tensors, **numbers, alpha=alpha, activation=activation)
        for activation, alpha in (("relu", 1.0), ("relu", 2.0), ("identity", 1.0))
    ]
    choices = convtime.plan_cache()
    assert [(choice.activation, choice.alpha) for choice in choices] == [
        ("relu", 1.0),
        ("relu", 2.0),
        ("identity", 1.0),
    ]
    for choice in choices:
        assert choice.z == choice.y
        assert choice.b is not None
        assert choice.b.sizes == (1, 64, 1, 1)
    for i, first in enumerate(results):
        assert not any(torch.equal(first, second) for second in results[:i])


@pytest.mark.cuda
@pytest.mark.filterwarnings("error")
def test_steps_of_their_own_are_said_once_for_each_problem() -> None:
    convtime.clear_plan_cache()
    x = torch.randn(2, 8, 9, 9, device="cuda", dtype=torch.float64)
    w = torch.randn(4, 8, 3, 3, device="cuda", dtype=torch.float64)
    with pytest.warns(UserWarning, match="cuDNN has no engine for gelu after a conv"):
        first = ops.conv2d_epilogue(x, w, activation="gelu")
    assert torch.equal(first, ops.conv2d_epilogue(x, w, activation="gelu"))  # without a warning
    torch.testing.assert_close(first, F.gelu(F.conv2d(x, w)))
    with pytest.raises(RuntimeError, match="conv2d_epilogue: "):
        ops.conv2d_epilogue(x, w, activation="gelu", policy="eng0")


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("activation", "dtype", "why"),
    [
        ("tanh", torch.float16, "cuDNN's tanh makes NaN of infinity"),
        ("gelu_tanh", torch.float32, "cuDNN's gelu_tanh is less exact than float32 without TF32"),
    ],
)
def test_what_engines_get_wrong_is_left_to_a_kernel(
    activation: str, dtype: torch.dtype, why: str
) -> None:
    tensors, numbers, _ = on_gpu("3×3", dtype, "nhwc")
    convtime.clear_plan_cache()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fused(2)(**tensors, **numbers, activation=activation)
    assert [choice.activation for choice in convtime.plan_cache()] == ["identity"]
    with pytest.raises(RuntimeError, match=f"conv2d_epilogue: policy names .* {why}, so"):
        fused(2)(**tensors, **numbers, activation=activation, policy="eng0")


@pytest.mark.cuda
@pytest.mark.parametrize("width", [8, 7])  # rows of whole packs of 16 bytes, and others
@pytest.mark.parametrize("channels", [16, 6])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_what_follows_a_depthwise_convolution_is_rounded_once(
    dtype: torch.dtype, layout: str, channels: int, width: int
) -> None:
    def randn(*size: int) -> torch.Tensor:
        return torch.randn(size, device="cuda").to(dtype)

    x = randn(2, channels, 8, width).contiguous(memory_format=LAYOUTS[layout])
    w, b, z = randn(channels, 1, 3, 3), randn(channels), randn(2, channels, 8, width)
    # Which engines of cuDNN's, and a kernel of convtime's, are to make of it what PyTorch does.
    for i, value in enumerate((math.nan, math.inf, -math.inf, 100, -100)):
        z[0, 0, i] = z[1, 1, i] = value
    numbers: dict[str, Any] = {"padding": 1, "groups": channels}
    convolved = F.conv2d(x, w, **numbers)
    wide = torch.promote_types(dtype, torch.float32)
    for activation, function in ACTIVATIONS.items():
        for bias, other in ((b, z), (b, None), (None, z), (None, None)):
            ours = ops.conv2d_epilogue(
                x,
                w,
                bias,
                **numbers,
                other=other,
                alpha=0.5,
                activation=activation,  # type: ignore[arg-type]
                negative_slope=0.2,
            )
            exact = convolved.to(wide)
            if other is not None:
                exact = exact + 0.5 * other.to(wide)
            if bias is not None:
                exact = exact + bias.to(wide).view(-1, 1, 1)
            assert ours.stride() == convolved.stride()
            expected = function(exact).to(dtype)
            eps = torch.finfo(dtype).eps
            torch.testing.assert_close(ours, expected, rtol=4 * eps, atol=8 * eps, equal_nan=True)


@pytest.mark.cuda
def test_more_elements_than_31_bits_count() -> None:
    x = torch.ones(1, 1, 2**16, 2**15 + 16, device="cuda", dtype=torch.float16)
    w = torch.ones(1, 1, 1, 1, device="cuda", dtype=torch.float16)
    b = w.flatten()
    for activation in ("relu", "sigmoid"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = ops.conv2d_epilogue(x, w, b, activation=activation)
        expected = float(ACTIVATIONS[activation](torch.tensor(2.0)))
        assert float((y - expected).abs().max()) < 2e-3


@pytest.mark.cuda
def test_streams_and_threads() -> None:
    tensors, numbers, _ = on_gpu("3×3", torch.float16, "nhwc")
    expected = fused(2)(**tensors, **numbers)
    results: list[torch.Tensor] = []

    def run() -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            results.append(fused(2)(**tensors, **numbers))
        stream.synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    for result in results:
        assert torch.equal(result, expected)


@pytest.mark.cuda
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_captured_by_a_cuda_graph(activation: str) -> None:
    tensors, numbers, _ = on_gpu("3×3", torch.float16, "nhwc")
    x = tensors["input"]
    fused(2)(**tensors, **numbers, activation=activation)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = fused(2)(**tensors, **numbers, activation=activation)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(output, fused(2)(**tensors, **numbers, activation=activation))


@pytest.mark.cuda
def test_plans_are_not_timed_while_a_graph_is_captured() -> None:
    tensors, numbers, _ = on_gpu("odd", torch.float16, "nhwc")
    fused(2)(**tensors, **numbers, activation="silu")  # by a kernel that is compiled for the plan
    convtime.clear_plan_cache()
    torch.cuda.synchronize()
    message = "plans cannot be timed during CUDA graph capture"
    with pytest.raises(RuntimeError, match=message), torch.cuda.graph(torch.cuda.CUDAGraph()):
        fused(2)(**tensors, **numbers, policy="benchmark")


@pytest.mark.cuda
def test_old_plans_may_be_dropped_while_a_graph_is_captured() -> None:
    tensors, numbers, _ = on_gpu("3×3", torch.float16, "nhwc")
    fused(2)(**tensors, **numbers, activation="silu")
    convtime.clear_plan_cache()  # which the next call in this thread does for its own plans
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = fused(2)(**tensors, **numbers)
    graph.replay()
    assert torch.equal(output, fused(2)(**tensors, **numbers))


@pytest.mark.cuda
def test_deterministic_training_repeats_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    tensors, numbers, _ = on_gpu("3×3", torch.float16, "nhwc")
    leaves = [tensor.requires_grad_() for tensor in tensors.values() if tensor is not None]

    def run() -> list[torch.Tensor]:
        output = fused(2)(**tensors, **numbers)
        return [output.detach(), *torch.autograd.grad(output.sum(), leaves)]

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)
    assert all(choice.deterministic for choice in convtime.plan_cache()[-3:])


@pytest.mark.cuda
def test_a_thousand_repeats_are_equal() -> None:
    tensors, numbers, _ = on_gpu("3×3", torch.float16, "nhwc")
    expected = fused(2)(**tensors, **numbers)
    different = torch.zeros((), device="cuda", dtype=torch.int64)
    for _ in range(1000):
        different += (fused(2)(**tensors, **numbers) != expected).sum()
    assert int(different) == 0


@pytest.mark.cuda
def test_tensors_on_two_devices_are_refused() -> None:
    tensors, numbers, size = on_gpu("odd", torch.float32, "nchw")
    with pytest.raises(RuntimeError, match=r"other must be on the input's device \(cuda:0\)"):
        fused(2)(**{**tensors, "other": torch.ones(size)}, **numbers)
