"""What torch.vmap and torch.func make of the convolutions, against PyTorch's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from convtime import ops
from tests.helpers.op_calls import Problem

PROBLEMS = {
    "1-d": Problem("conv1d", (2, 4, 9), (6, 4, 3), 6, {"stride": 2, "padding": 1}),
    "2-d": Problem("conv2d", (2, 4, 9, 8), (6, 4, 3, 3), 6, {"stride": (2, 1), "padding": 1}),
    "grouped": Problem("conv2d", (2, 4, 9, 8), (6, 2, 3, 3), 6, {"groups": 2, "dilation": 2}),
    "unbatched": Problem("conv2d", (4, 9, 8), (6, 4, 3, 3), 6, {}),
    "3-d": Problem("conv3d", (2, 4, 5, 5, 5), (4, 4, 3, 3, 3), 4, {}),
    "transposed 1-d": Problem("conv_transpose1d", (2, 4, 5), (4, 3, 3), 3, {"stride": 2}),
    "transposed": Problem(
        "conv_transpose2d", (2, 4, 5, 6), (4, 3, 3, 3), 3, {"stride": 2, "output_padding": 1}
    ),
    "transposed, grouped": Problem(
        "conv_transpose2d", (2, 4, 5, 6), (4, 3, 3, 3), 6, {"groups": 2, "stride": 2}
    ),
    "transposed 3-d": Problem(
        "conv_transpose3d", (2, 4, 3, 3, 3), (4, 2, 2, 2, 2), 4, {"groups": 2}
    ),
}
BATCH = 3
Function = Callable[..., torch.Tensor]
Dims = tuple[int | None, ...]
BATCH_DIMS: list[Dims] = [
    dims for dims in itertools.product((0, None), (1, None), (0, None)) if dims != (None,) * 3
]


def functions(name: str) -> tuple[Function, Function]:
    """convtime's and PyTorch's, of input, weight and bias."""
    problem = PROBLEMS[name]
    ours, theirs = problem.functions
    return (
        lambda *tensors: ours(*tensors, **problem.arguments),
        lambda *tensors: theirs(*tensors, **problem.arguments),
    )


def make_tensors(
    name: str,
    device: torch.device,
    dims: Dims = (None, None, None),
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, ...]:
    """Input, weight and bias, with a batch in these dimensions."""
    problem = PROBLEMS[name]
    assert problem.bias is not None
    generator = torch.Generator().manual_seed(0)
    tensors = []
    for shape, dim in zip((problem.x, problem.w, (problem.bias,)), dims, strict=True):
        full = shape if dim is None else (*shape[:dim], BATCH, *shape[dim:])
        tensors.append(torch.randn(full, generator=generator).to(device, dtype))
    return tuple(tensors)


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    """Leaves out cuDNN's engines whose sums come out differently from run to run."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.filterwarnings("error:There is a performance drop")
def test_vmap_is_pytorchs_to_the_bit(name: str, device: torch.device) -> None:
    def results(function: Function, dims: Dims) -> tuple[torch.Tensor, ...]:
        def of_one(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found = torch.func.grad(
                lambda *tensors: function(*tensors).square().sum(), argnums=(0, 1, 2)
            )(*tensors)
            return function(*tensors), *found

        batched: tuple[torch.Tensor, ...] = torch.vmap(of_one, in_dims=dims)(
            *make_tensors(name, device, dims)
        )
        return batched

    for dims in BATCH_DIMS:
        ours, theirs = (results(function, dims) for function in functions(name))
        for actual, expected in zip(ours, theirs, strict=True):
            assert torch.equal(actual, expected), dims


@pytest.mark.parametrize("name", PROBLEMS)
def test_vmap_of_an_empty_batch_is_empty(name: str, device: torch.device) -> None:
    """Also where PyTorch's own fails: batches of weights."""
    ours, theirs = functions(name)
    for dims in BATCH_DIMS:
        full = make_tensors(name, device, dims)
        tensors = tuple(
            (tensor if dim is None else tensor.narrow(dim, 0, 0)).requires_grad_()
            for tensor, dim in zip(full, dims, strict=True)
        )
        output = torch.vmap(ours, in_dims=dims)(*tensors)
        assert output.shape == (0, *torch.vmap(theirs, in_dims=dims)(*full).shape[1:])
        gradients = torch.autograd.grad(output.sum(), tensors)
        for tensor, gradient in zip(tensors, gradients, strict=True):
            assert torch.equal(gradient, torch.zeros_like(tensor)), dims


def test_vmaps_nest_and_batch_gradients(device: torch.device) -> None:
    x, w, b = make_tensors("2-d", device, (0, 0, None))
    ours, theirs = (
        torch.vmap(torch.vmap(function, in_dims=(0, None, None)), in_dims=(None, 0, None))(x, w, b)
        for function in functions("2-d")
    )
    assert torch.equal(ours, theirs)
    x, w, b = make_tensors("2-d", device)
    w.requires_grad_()
    found: list[torch.Tensor] = []
    for function in functions("2-d"):
        output = function(x, w, b)
        generator = torch.Generator(device).manual_seed(1)
        grads = torch.randn(BATCH, *output.shape, device=device, generator=generator)
        found += torch.autograd.grad(output, w, grads, is_grads_batched=True)
    torch.testing.assert_close(*found)


def test_bad_input_under_vmap_is_one_clear_error() -> None:
    calls: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = [
        ((3, 8), (6, 4, 3, 3), {}, r"input must have shape \(N, C, H, W\) .* got \[8\]"),
        ((3, 2, 4, 8, 8), (6, 4, 3), {}, r"weight must have shape .* got \[6, 4, 3\]"),
        ((3, 2, 4, 8, 8), (6, 4, 3, 3), {"groups": 0}, "groups must be at least 1, got 0"),
        ((3, 2, 4, 8, 8), (6, 1, 3, 3), {"groups": 4}, r"a multiple of groups \(4\), got 6"),
        ((3, 2, 4, 8, 8), (6, 4, 3, 3), {"policy": "fastest"}, "got 'fastest'"),
    ]
    for x, w, options, message in calls:
        call = torch.vmap(lambda x, w=w, options=options: ops.conv2d(x, torch.ones(w), **options))
        with pytest.raises(RuntimeError, match=f"conv2d: .*{message}"):
            call(torch.ones(x))
    images, weights = torch.ones(2, 4, 8, 8), torch.ones(3, 6, 4, 3, 3)
    for bias, message in (
        (torch.ones(1), r"bias must have shape \(6\).* got \[1\]"),
        (torch.ones(6).double(), r"bias must have the input's dtype \(Float\), got Double"),
    ):
        with pytest.raises(RuntimeError, match=f"conv2d: {message}"):
            torch.vmap(lambda w, bias=bias: ops.conv2d(images, w, bias))(weights)
    batch, grads = torch.ones(3, 2, 4, 8, 8), torch.ones(3, 2, 6, 6)
    with pytest.raises(RuntimeError, match=r"grad_output must have the output's shape .* got"):
        torch.vmap(lambda x, y: ops.conv2d_weight(x, (6, 4, 3, 3), y))(batch, grads)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_forward_mode_is_pytorchs_to_the_bit(name: str, device: torch.device) -> None:
    tensors = make_tensors(name, device)
    directions = [torch.randn_like(tensor) for tensor in tensors]

    def jvp(function: Function, places: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        def of_places(*primals: torch.Tensor) -> torch.Tensor:
            arguments = list(tensors)
            for place, primal in zip(places, primals, strict=True):
                arguments[place] = primal
            return function(*arguments)

        primals, tangents = (tuple(of[i] for i in places) for of in (tensors, directions))
        output, tangent, *_ = torch.func.jvp(of_places, primals, tangents)
        return output, tangent

    for which in itertools.product((False, True), repeat=3):
        if places := [place for place, chosen in enumerate(which) if chosen]:
            ours, theirs = (jvp(function, places) for function in functions(name))
            for actual, expected in zip(ours, theirs, strict=True):
                assert torch.equal(actual, expected), places


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("error:There is a performance drop")
def test_a_hessian_is_pytorchs(name: str, device: torch.device) -> None:
    x, w, b = make_tensors(name, device, dtype=torch.float64)

    def hessian(function: Function) -> Any:
        def loss(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return function(x, w, b).pow(3).sum()

        return torch.func.hessian(loss, argnums=(1, 2))(x, w, b)

    torch.testing.assert_close(*map(hessian, functions(name)))


@pytest.mark.thorough
@pytest.mark.parametrize("op", ["conv2d", "conv_transpose2d"])
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_forward_mode_agrees_with_differences(op: str, device: torch.device) -> None:
    options: dict[str, Any] = {"dtype": torch.float64, "device": device, "requires_grad": True}
    tensors = tuple(torch.randn(shape, **options) for shape in ((2, 2, 4, 3), (2, 1, 2, 2), (2,)))

    def fn(*tensors: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = getattr(ops, op)(*tensors, stride=2, padding=1, groups=2)
        return output

    options = {"nondet_tol": 1e-12, "check_batched_grad": True}
    assert torch.autograd.gradcheck(fn, tensors, check_forward_ad=True, **options)
    assert torch.autograd.gradgradcheck(
        fn, tensors, check_fwd_over_rev=True, check_rev_over_rev=True, nondet_tol=1e-12
    )


class Recorder(TorchDispatchMode):
    """Names of the convolutions that run, with the policy of those that are convtime's."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str | None]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if "conv" in func.name():
            self.seen.append((func.name(), (kwargs or {}).get("policy")))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["2-d", "grouped", "transposed", "3-d", "1-d"])
def test_every_order_of_gradients_keeps_the_policy(name: str, device: torch.device) -> None:
    leaves = [tensor.requires_grad_() for tensor in make_tensors(name, device)]
    # With output padding, PyTorch keeps one of the second order's convolutions off cuDNN, where
    # there are no policies.
    arguments = PROBLEMS[name].arguments
    numbers = {key: value for key, value in arguments.items() if key != "output_padding"}
    output = PROBLEMS[name].functions[0](*leaves, **numbers, policy="heuristic")
    for _ in range(3):
        with Recorder() as recorder:
            gradients = torch.autograd.grad(output.pow(3).sum(), leaves, create_graph=True)
        assert recorder.seen
        assert {policy for _, policy in recorder.seen} == {"heuristic"}
        assert all(op.startswith("convtime::") for op, _ in recorder.seen)
        output = torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_transforms_keep_the_policy(device: torch.device) -> None:
    x, w, b = make_tensors("2-d", device, (0, None, None))

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return ops.conv2d(x, w, b, policy="heuristic").square().sum()

    with Recorder() as recorder:
        torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x)
        torch.func.jvp(lambda w: torch.func.grad(loss)(w, x[0]), (w,), (w,))
    assert {policy for _, policy in recorder.seen} == {"heuristic"}


@pytest.mark.parametrize("transposed", [False, True])
def test_an_engine_of_one_gradient_is_not_asked_of_the_other(transposed: bool) -> None:
    x, w, y = torch.ones(3, 2, 4, 8, 8), torch.ones(6, 4, 3, 3), torch.ones(3, 2, 6, 6, 6)
    if transposed:  # the gradient of a convolution
        x, y = y, x

    def gradients(x: torch.Tensor, y: torch.Tensor, policy: str) -> tuple[torch.Tensor, ...]:
        numbers = (1, 1), (0, 0), (1, 1), transposed, (0, 0), 1, (True, True, False)
        found: tuple[torch.Tensor, ...] = torch.ops.convtime.convolution_backward(
            y, x, w, *numbers, policy=policy
        )
        return found[:2]

    of_input, other = ("ConvFwd", "ConvBwdData") if transposed else ("ConvBwdData", "ConvFwd")
    # Without cuDNN an engine is refused, once its turn has come.
    for engine, turns in (("ConvBwdFilter_eng5", 2), (f"{of_input}_eng5", 1)):
        with Recorder() as recorder, pytest.raises(RuntimeError, match="names cuDNN's engine 5"):
            torch.vmap(lambda x, y, engine=engine: gradients(x, y, engine))(x, y)
        assert [policy for _, policy in recorder.seen] == [None, engine][-turns:]
    with pytest.raises(RuntimeError, match=f"names an engine of {other}, but this call computes"):
        torch.vmap(lambda x, y: gradients(x, y, f"{other}_eng5"))(x, y)
