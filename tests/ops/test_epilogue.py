"""Convolutions with an epilogue against PyTorch's ops, one for each step."""

from __future__ import annotations

import itertools
import math
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import convtime.nn
from convtime import ops
from convtime.core.load import _C
from convtime.ops import epilogue
from convtime.ops.flops import register_formulas
from tests.helpers.op_calls import FORMATS, kept_by
from tests.helpers.op_examples import AMOUNTS, for_all

Tensors = dict[str, Any]  # tensors, or None where there is none

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: getattr(F, name) for name in ("relu", "relu6", "gelu", "silu", "sigmoid", "tanh")},
    "identity": lambda x: x,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
RANKS = (1, 2, 3)
# Bounds of a single rounding, and of several: separate steps round to 16 bits after each.
TOLERANCES: dict[torch.dtype, dict[str, Any]] = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 5e-5, "atol": 5e-5},
    torch.float16: {"rtol": 4e-3, "atol": 4e-3},
    torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2},
}


NO_ENGINE = "ignore:.*cuDNN has no engine for"  # a warning where a kernel of convtime's runs


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
            x = x.contiguous(memory_format=FORMATS[rank + 2])
        return x.requires_grad_(requires_grad)

    size = (9, 8, 7)[:rank]
    return {
        "input": randn(2, 8, *size),
        "weight": randn(16, 8, *(3,) * rank, scale=(8 * 3**rank) ** -0.5),
        "bias": randn(16) if bias else None,
        "other": randn(2, 16, *((length + 1) // 2 for length in size)) if other else None,
    }


def fused(rank: int) -> Callable[..., torch.Tensor]:
    """convtime's, with the slope of ACTIVATIONS."""
    function: Callable[..., torch.Tensor] = getattr(ops, f"conv{rank}d_epilogue")
    return partial(function, negative_slope=0.2)


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


@st.composite
def calls(draw: st.DrawFn, activation: str) -> tuple[Any, ...]:
    """What tensors to make, which of them have a gradient, and the options of both."""
    made = {
        "rank": draw(st.sampled_from(RANKS)),
        "dtype": draw(st.sampled_from(list(TOLERANCES))),
        **{name: draw(st.booleans()) for name in ("bias", "other", "channels_last")},
        "seed": draw(st.integers(0, 9)),
    }
    wanted = draw(st.sampled_from([*itertools.product((True, False), repeat=4)][:-4]))
    alpha = draw(st.sampled_from([0.5, 1.0, -2.0]))
    return made, wanted, {"activation": activation, "stride": 2, "padding": 1, "alpha": alpha}


@pytest.mark.filterwarnings(NO_ENGINE)
@AMOUNTS
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_outputs_and_gradients_are_those_of_separate_ops(
    activation: str, amount: int, device: torch.device
) -> None:
    def check(call: tuple[Any, ...]) -> None:
        made, wanted, options = call
        tensors = make_tensors(device=device, **made)
        if tensors["other"] is not None:
            for place, value in enumerate((math.nan, math.inf, -math.inf)):
                tensors["other"][0, place] = value
        ours = fused(made["rank"])(**tensors, **options)
        theirs = separate(**tensors, **options)
        assert ours.dtype == theirs.dtype
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, **TOLERANCES[ours.dtype], equal_nan=True)
        gradients = []
        for function in (fused(made["rank"]), separate):
            wide = make_tensors(device=device, **{**made, "dtype": torch.float64})
            leaves = [
                tensor.requires_grad_()
                for tensor, is_wanted in zip(wide.values(), wanted, strict=True)
                if is_wanted and tensor is not None
            ]
            output = function(**wide, **options)
            gradients.append(torch.autograd.grad(output.square().sum(), leaves))
        torch.testing.assert_close(*gradients)

    for_all(calls(activation), check, 5 * amount, device, 2 * amount)


@pytest.mark.filterwarnings(NO_ENGINE)
@AMOUNTS
def test_images_of_one_pixel(
    amount: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of strides that fit both layouts, cuDNN's engines read and wrote elsewhere."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    pixels = [((1, 1), (1, 1), 0), ((1, 1), (3, 3), 1), ((4, 3), (4, 3), 0), ((1, 1), (1, 1), 1)]
    dtypes = [torch.float16, torch.bfloat16, torch.float32]
    cases = st.tuples(
        st.sampled_from(list(ACTIVATIONS)),
        st.sampled_from(pixels),
        st.sampled_from([(1, 8), (2, 6), (16, 16), (8, 1)]),
        st.sampled_from(list(LAYOUTS.values())),
        st.sampled_from(dtypes if device.type == "cuda" else dtypes[2:]),
        st.booleans(),
    )

    def check(case: tuple[Any, ...]) -> None:
        activation, (image, filters, padding), (given, made), layout, dtype, adds = case
        x, w = (
            torch.randn(shape, device=device, dtype=dtype).to(memory_format=layout)
            for shape in [(3, given, *image), (made, given, *filters)]
        )
        bias = torch.randn(made, device=device, dtype=dtype)
        expected = F.conv2d(x.double(), w.double(), bias.double(), padding=padding)
        other = torch.randn_like(expected, memory_format=layout).to(dtype) if adds else None
        ours = fused(2)(x, w, bias, padding=padding, other=other, activation=activation)
        theirs = ACTIVATIONS[activation](expected if other is None else expected + other)
        tolerance = 5e-2 if dtype == torch.bfloat16 else 1e-2
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)

    for_all(cases, check, 40 * amount, device, 8 * amount)


@pytest.mark.thorough
@pytest.mark.filterwarnings(NO_ENGINE)
@pytest.mark.parametrize("activation", ["identity", "leaky_relu", "gelu", "sigmoid", "tanh"])
def test_gradcheck(activation: Any, device: torch.device) -> None:
    options: dict[str, Any] = {"dtype": torch.float64, "device": device, "requires_grad": True}
    shapes = ((2, 4, 4, 3), (6, 2, 2, 2), (6,), (2, 6, 3, 2))
    tensors = [torch.randn(shape, **options) for shape in shapes]

    def fn(x: Any, w: Any, b: Any, z: Any) -> torch.Tensor:
        return fused(2)(x, w, b, groups=2, other=z, alpha=0.5, activation=activation)

    assert torch.autograd.gradcheck(fn, tensors, check_forward_ad=True, nondet_tol=1e-12)
    assert torch.autograd.gradgradcheck(fn, tensors, nondet_tol=1e-12)


def test_what_is_kept_for_the_gradient(device: torch.device) -> None:
    tensors = make_tensors(2, device, requires_grad=True)
    for activation in ("relu", "leaky_relu", "silu"):
        output, kept = kept_by(
            partial(fused(2), **tensors, stride=2, padding=1, activation=activation)
        )
        expected = tensors["input"], tensors["weight"], output
        assert [tensor.shape for tensor in kept] == [tensor.shape for tensor in expected]
        # Of what is activated where the output does not do, and else of the output.
        assert torch.equal(kept[2], output) == (activation != "silu")


def test_nodes_free_what_they_keep_and_notice_changes(device: torch.device) -> None:
    def output_of() -> torch.Tensor:
        return fused(2)(**make_tensors(2, device, requires_grad=True), stride=2, padding=1)

    output = output_of()
    held = torch.nn.Module()  # by the node alone, once its name is gone
    assert output.grad_fn is not None
    output.grad_fn.register_hook(lambda *_gradients, held=held: None)
    dropped = weakref.ref(held)
    del held, output
    assert dropped() is None
    output = output_of()
    output.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        output.sum().backward()
    output = output_of().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_other_shapes_are_those_of_separate_ops(device: torch.device) -> None:
    """One example, no examples, padding in words, and groups."""
    for rank in RANKS:
        tensors = make_tensors(rank, device)
        alone = {**tensors, "input": tensors["input"][0], "other": tensors["other"][0]}
        ours, theirs = (f(**alone, stride=2, padding=1) for f in (fused(rank), separate))
        torch.testing.assert_close(ours, theirs)
    x, w, b, z = make_tensors(2, device, requires_grad=True).values()
    output = fused(2)(x[:0], w, b, other=z[:0], stride=2, padding=1)
    assert output.shape == (0, 16, 5, 4)
    (gradient,) = torch.autograd.grad(output.sum(), w)
    assert torch.equal(gradient, torch.zeros_like(w))
    calls: list[tuple[torch.Tensor, dict[str, Any]]] = [
        (w, {"padding": "same", "dilation": (1, 2)}),
        (w, {"padding": "valid", "dilation": (1, 2)}),
        (w[:, :4].contiguous(), {"groups": 2}),
        (w[:, :1].contiguous(), {"groups": 8}),
    ]
    for weight, options in calls:
        ours, theirs = (function(x, weight, b, **options) for function in (fused(2), separate))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_autocast_casts_all_four(device: torch.device) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(device.type, dtype=dtype):
            ours = fused(2)(**make_tensors(2, device), stride=2, padding=1)
        assert ours.dtype == dtype
        assert torch.equal(ours, fused(2)(**make_tensors(2, device, dtype), stride=2, padding=1))


def test_vmap_is_that_of_separate_ops(device: torch.device) -> None:
    tensors = make_tensors(2, device)
    x, w, b, z = tensors.values()
    inputs, weights = torch.stack([x, 2 * x]), torch.stack([w, -w], dim=1)
    others = torch.stack([z, 2 * z], dim=1)

    def run(function: Any) -> list[torch.Tensor]:
        def call(x: Any, w: Any, b: Any, z: Any) -> Any:
            return function(
                x, w, b, other=z, stride=2, padding=1, alpha=0.5, activation="leaky_relu"
            )

        gradient = torch.func.grad(lambda x, w, b, z: call(x, w, b, z).sum())
        return [
            torch.vmap(lambda z: call(x, w, None, z), 1)(others),
            torch.vmap(call, (0, None, None, None))(inputs, w, b, z),
            torch.vmap(call, (0, 1, None, 1))(inputs, weights, b, others),
            torch.vmap(gradient, (0, None, None, None))(inputs, w, b, z),
            torch.vmap(lambda z: call(x[0], w, b, z))(others[0, :2]),
        ]

    torch.testing.assert_close(run(fused(2)), run(separate), rtol=1e-5, atol=1e-5)


def test_flops_are_the_convolutions(device: torch.device) -> None:
    """2 for each multiplication and addition."""
    register_formulas()
    tensors = make_tensors(2, device, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        fused(2)(**tensors, stride=2, padding=1).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * (2 * 16 * 5 * 4) * (8 * 3 * 3)


FUSED = "ConvFwd_ADD_ADD_RELU_FWD"
BAD: list[tuple[dict[str, Any], str]] = [
    ({"activation": "swish"}, "activation must be one of 'identity', 'relu', .*, got 'swish'"),
    ({"activation": None}, "activation must be a str, got None"),
    ({"alpha": math.inf}, "alpha and negative_slope must be finite, got inf"),
    ({"other": torch.ones(2, 16, 1, 1)}, r"\[2, 16, 5, 4\], got \[2, 16, 1, 1\]"),
    ({"other": torch.ones(2, 16, 5, 4).half()}, r"input's dtype \(Float\), got Half"),
    ({"bias": torch.ones(3)}, r"bias must have shape \(16\)"),
    ({"weight": torch.ones(16, 8, 3)}, r"4 dimensions, got shape \(16, 8, 3\)"),
    ({"groups": 3}, "must be a multiple of groups"),
    ({"policy": "fastest"}, "policy must be 'heuristic', 'benchmark'"),
    ({"policy": "ConvFwd_ADD_GELU_FWD_eng0"}, f"of ConvFwd_ADD_GELU_FWD, but .* {FUSED}"),
    ({"policy": "ConvFwd_eng0"}, f"an engine of ConvFwd, but this call computes {FUSED}"),
    ({"input": [1.0]}, "input must be a tensor, got list"),
    ({"other": 1.0}, "other must be a tensor or None, got float"),
    ({"alpha": "1"}, "alpha must be a real number, got '1'"),
    ({"alpha": torch.ones(2)}, "alpha must be a real number"),
    ({"negative_slope": None}, "negative_slope must be a real number, got None"),
]


def test_bad_input_is_one_clear_error(device: torch.device) -> None:
    for changes, message in BAD:
        on_device = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in changes.items()
        }
        with pytest.raises((RuntimeError, TypeError), match=message) as caught:
            ops.conv2d_epilogue(**make_tensors(2, device) | {"stride": 2, "padding": 1} | on_device)
        assert len(str(caught.value).splitlines()) == 1
        assert "conv2d_epilogue: " in str(caught.value)
    with pytest.raises(RuntimeError, match="on cpu without cuDNN's plans; leave policy out"):
        fused(2)(**make_tensors(2, "cpu"), stride=2, padding=1, policy="eng0")


PLAIN: list[dict[str, Any]] = [
    {"stride": 2, "padding": 1},
    {"stride": (2,), "padding": [1]},
    {"stride": 2, "padding": "valid", "other": None},
    {"padding": "same", "dilation": 1, "other": None},  # of a kernel of 2, which is uneven
    {"stride": 2, "padding": 1, "alpha": 2, "negative_slope": 0, "policy": "heuristic"},
]


@pytest.mark.parametrize("rank", RANKS)
def test_plain_arguments_take_the_direct_entry(
    rank: int, device: torch.device, monkeypatch: pytest.MonkeyPatch, spy: Any
) -> None:
    for plain in PLAIN:
        tensors = make_tensors(rank, device)
        if plain["padding"] == "same":
            tensors["weight"] = tensors["weight"][(..., *[slice(2)] * rank)]
        arguments = {**tensors, **plain, "activation": "leaky_relu"}
        with spy:
            expected = fused(rank)(**arguments)
        assert torch.ops.convtime.convolution_epilogue in spy.seen
        with monkeypatch.context() as patch, torch.device("meta"):  # of no concern here
            patch.setattr(epilogue, "_by_torch_ops", lambda *_: pytest.fail("by torch.ops"))
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


# --- What needs a GPU

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


@pytest.fixture
def typical() -> dict[str, Any]:
    """A call's arguments: a 3×3 of 16 bits in channels-last, with a bias and an addend."""
    tensors, numbers, _ = on_gpu("3×3", torch.float16, "nhwc")
    convtime.conv.clear_plan_cache()
    return tensors | numbers


# A problem, its dtype and layout, and whether it has a bias and an addend.
GPU_CALLS = st.tuples(
    st.sampled_from(list(PROBLEMS)),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    st.sampled_from(list(LAYOUTS)),
    st.booleans(),
    st.booleans(),
)


@pytest.mark.cuda
@pytest.mark.parametrize("allow_tf32", [False, True])
@AMOUNTS
def test_a_relu_is_pytorchs_fused_one_to_the_bit(
    amount: int, allow_tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allow_tf32)

    def check(call: tuple[Any, ...]) -> None:
        *problem, bias, other = call
        tensors, numbers, _ = on_gpu(*problem)
        x, w, _, z = tensors.values()
        b = tensors["bias"] = tensors["bias"] if bias else None
        sizes = [numbers["stride"]] * 2, [numbers["padding"]] * 2, [1, 1], 1
        try:
            if other:
                theirs = torch.cudnn_convolution_add_relu(x, w, z, 0.5, b, *sizes)
            else:
                tensors["other"] = None
                theirs = torch.cudnn_convolution_relu(x, w, b, *sizes)
        except RuntimeError as error:
            if "unable to find an engine" not in str(error):
                raise
            convtime.conv.clear_plan_cache()
            with pytest.warns(UserWarning, match="cuDNN has no engine for relu"):
                fused(2)(**tensors, **numbers, alpha=0.5)
            return
        ours = fused(2)(**tensors, **numbers, alpha=0.5)
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours, theirs)
        assert convtime.conv.plan_cache()[-1].tag.startswith(f"{FUSED}_eng")

    for_all(GPU_CALLS, check, 8 * amount)


@pytest.mark.cuda
@pytest.mark.filterwarnings("error")
@AMOUNTS
def test_sums_and_a_relu_are_always_fused(amount: int) -> None:
    def check(call: tuple[Any, ...]) -> None:
        *problem, is_relu, other = call
        tensors, numbers, _ = on_gpu(*problem)
        tensors["other"] = tensors["other"] if other else None
        numbers["activation"] = "relu" if is_relu else "identity"
        ours, theirs = (function(**tensors, **numbers) for function in (fused(2), separate))
        tolerance = 3e-2 if ours.dtype == torch.bfloat16 else 5e-3
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)

    for_all(GPU_CALLS, check, 8 * amount)


@pytest.mark.cuda
@pytest.mark.filterwarnings(NO_ENGINE)
@AMOUNTS
def test_what_follows_a_depthwise_convolution_is_rounded_once(amount: int) -> None:
    """Planes and channels of any number, with NaN and infinities, from any address on."""
    cases = st.tuples(
        st.sampled_from(list(TOLERANCES)),
        st.sampled_from(list(LAYOUTS.values())),
        st.sampled_from([1, 3, 6, 8, 16, 20]),
        st.sampled_from([(8, 8), (8, 7), (7, 7), (5, 9), (131, 17), (2, 2), (1, 3), (1, 1)]),
        st.sampled_from(list(ACTIVATIONS)),
        st.booleans(),
        st.sampled_from(["none", "aligned", "unaligned"]),
    )

    def check(case: tuple[Any, ...]) -> None:
        dtype, layout, channels, image, activation, has_bias, addend = case

        def randn(*size: int) -> torch.Tensor:
            return torch.randn(size, device="cuda").to(dtype)

        x = randn(2, channels, *image).contiguous(memory_format=layout)
        w, b, z = randn(channels, 1, 3, 3), randn(channels), randn(2, channels, *image)
        for place, value in enumerate((math.nan, math.inf, -math.inf, 100, -100)):
            z.view(-1)[place % z.numel()] = value
        if addend == "unaligned":
            z = torch.cat([z.new_zeros(1), z.flatten()])[1:].view(z.shape)
        bias, other = b if has_bias else None, None if addend == "none" else z
        numbers = {"padding": 1, "groups": channels}
        ours = fused(2)(x, w, bias, **numbers, other=other, alpha=0.5, activation=activation)
        convolved = F.conv2d(x, w, **numbers)
        exact = convolved.to(torch.promote_types(dtype, torch.float32))
        if other is not None:
            exact = exact + 0.5 * other.to(exact.dtype)
        if bias is not None:
            exact = exact + bias.to(exact.dtype).view(-1, 1, 1)
        assert ours.stride() == convolved.stride()
        expected = ACTIVATIONS[activation](exact).to(dtype)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(ours, expected, rtol=4 * eps, atol=8 * eps, equal_nan=True)

    for_all(cases, check, 10 if amount == 1 else 300)


@pytest.mark.cuda
@pytest.mark.thorough
@pytest.mark.filterwarnings(NO_ENGINE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_memory_that_was_not_written_is_not_read(activation: str, dtype: torch.dtype) -> None:
    for layout in LAYOUTS:
        tensors, numbers, size = on_gpu("3×3", dtype, layout)
        tensors["other"] = None
        for policy in ("heuristic", "heuristic", "benchmark", "benchmark"):
            # What outputs and workspaces are made of next.
            count = size.numel() * dtype.itemsize // 4
            blocks = [torch.full((count,), math.nan, device="cuda") for _ in range(4)]
            torch.cuda.synchronize()
            del blocks
            output = fused(2)(**tensors, **numbers, activation=activation, policy=policy)
            assert output.isfinite().all()


@pytest.mark.cuda
@pytest.mark.thorough
@pytest.mark.filterwarnings(NO_ENGINE)
@pytest.mark.parametrize("activation", ["identity", "relu", "gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_timed_ways_compute_the_same(activation: str, dtype: torch.dtype) -> None:
    """Which one is fastest depends on the GPU.

    One of them converts to channels-last and back, and pads the output's channels.
    """
    sizes = ((3, 17, 40), (8, 9, 25), (64, 14, 94), (33, 31, 40), (16, 40, 1), (1, 28, 64))
    cases = st.tuples(st.sampled_from(sizes), st.sampled_from([2, 3]), st.booleans())

    def check(case: tuple[tuple[int, int, int], int, bool]) -> None:
        (channels, size, outputs), rank, last = case
        layout = FORMATS[rank + 2] if last else torch.contiguous_format

        def randn(*shape: int) -> torch.Tensor:
            tensor = torch.randn(shape, device="cuda", dtype=dtype)
            return tensor.contiguous(memory_format=layout) if len(shape) == rank + 2 else tensor

        x, w = randn(2, channels, *(size,) * rank), randn(outputs, channels, *(3,) * rank)
        w = w / channels**0.5
        bias, other = randn(outputs), randn(2, outputs, *(size - 2,) * rank)
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

    for_all(cases, check, 24)


@pytest.mark.cuda
def test_benchmarked_plans_compute_the_same(
    typical: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    ours = fused(2)(**typical)
    torch.testing.assert_close(ours, separate(**typical), rtol=1e-2, atol=1e-2)
    choices = [choice for choice in convtime.conv.plan_cache() if choice.activation == "relu"]
    assert (choices[-1].policy, choices[-1].source) == ("benchmark", "benchmark")
    assert len(choices[-1].timed) > 1
    # Timed against a plain one, and what follows in a kernel of its own.
    assert convtime.conv.plan_cache()[-1].policy == "benchmark"
    assert any(choice.tag.startswith("ConvFwd_eng") for choice in convtime.conv.plan_cache())
    named = fused(2)(**typical, policy=choices[-1].tag)
    torch.testing.assert_close(named, ours, rtol=1e-2, atol=1e-2)


@pytest.mark.cuda
def test_epilogues_have_plans_of_their_own(typical: dict[str, Any]) -> None:
    options = [("relu", 1.0), ("relu", 2.0), ("identity", 1.0)]
    results = [
        fused(2)(**typical, alpha=alpha, activation=activation) for activation, alpha in options
    ]
    choices = convtime.conv.plan_cache()
    assert [(choice.activation, choice.alpha) for choice in choices] == options
    for choice in choices:
        assert choice.z == choice.y
        assert choice.b is not None
        assert choice.b.sizes == (1, 64, 1, 1)
    assert not any(torch.equal(results[i], results[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.cuda
@pytest.mark.filterwarnings("error")
def test_steps_of_their_own_are_said_once_for_each_problem() -> None:
    convtime.conv.clear_plan_cache()
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
    convtime.conv.clear_plan_cache()
    with warnings.catch_warnings(action="error"):
        fused(2)(**tensors, **numbers, activation=activation)
    assert [choice.activation for choice in convtime.conv.plan_cache()] == ["identity"]
    with pytest.raises(RuntimeError, match=f"conv2d_epilogue: policy names .* {why}, so"):
        fused(2)(**tensors, **numbers, activation=activation, policy="eng0")


@pytest.mark.cuda
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_more_elements_than_31_bits_count() -> None:
    x = torch.ones(1, 1, 2**16, 2**15 + 16, device="cuda", dtype=torch.float16)
    w = torch.ones(1, 1, 1, 1, device="cuda", dtype=torch.float16)
    for activation in ("relu", "sigmoid"):
        y = ops.conv2d_epilogue(x, w, w.flatten(), activation=activation)
        expected = float(ACTIVATIONS[activation](torch.tensor(2.0)))
        assert float((y - expected).abs().max()) < 2e-3


@pytest.mark.cuda
def test_streams_and_threads(typical: dict[str, Any]) -> None:
    expected = fused(2)(**typical)
    torch.cuda.synchronize()

    def run(_: int) -> torch.Tensor:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            result = fused(2)(**typical)
        stream.synchronize()
        return result

    with ThreadPoolExecutor(3) as pool:
        assert all(torch.equal(result, expected) for result in pool.map(run, range(6)))


@pytest.mark.cuda
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_captured_by_a_cuda_graph(activation: str, typical: dict[str, Any]) -> None:
    call = partial(fused(2), **typical, activation=activation)
    call()  # compiles what it needs
    torch.cuda.synchronize()
    message = "plans cannot be timed during CUDA graph capture"
    with pytest.raises(RuntimeError, match=message), torch.cuda.graph(torch.cuda.CUDAGraph()):
        call(policy="benchmark")
    if activation == "relu":
        convtime.conv.clear_plan_cache()  # as the next call in this thread does
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()
    typical["input"].normal_()
    graph.replay()
    assert torch.equal(output, call())


@pytest.mark.cuda
def test_deterministic_training_repeats_its_bits(
    typical: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    leaves = [typical[name].requires_grad_() for name in ("input", "weight", "bias", "other")]

    def run() -> list[torch.Tensor]:
        output = fused(2)(**typical)
        return [output.detach(), *torch.autograd.grad(output.sum(), leaves)]

    expected = run()
    for _ in range(100):
        assert all(map(torch.equal, run(), expected))
    assert all(choice.deterministic for choice in convtime.conv.plan_cache()[-3:])


@pytest.mark.cuda
def test_tensors_on_two_devices_are_refused() -> None:
    tensors, numbers, size = on_gpu("odd", torch.float32, "nchw")
    with pytest.raises(RuntimeError, match=r"other must be on the input's device \(cuda:0\)"):
        fused(2)(**{**tensors, "other": torch.ones(size)}, **numbers)
