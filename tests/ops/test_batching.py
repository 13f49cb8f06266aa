"""What torch.vmap and torch.func make of the convolutions, against PyTorch's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from convtime import ops
from tests.helpers.op_calls import OPS, Problem, representative

pytestmark = [
    pytest.mark.usefixtures("repeatable"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]

PROBLEMS = {op: representative(op) for op in OPS} | {
    "grouped": Problem("conv2d", (2, 4, 9, 8), (6, 2, 3, 3), 6, {"groups": 2, "dilation": 2}),
    "unbatched": Problem("conv2d", (4, 9, 8), (6, 4, 3, 3), 6, {}),
    "transposed, grouped": Problem(
        "conv_transpose2d", (2, 4, 5, 6), (4, 3, 3, 3), 6, {"groups": 2, "stride": 2}
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
    ours, theirs = (partial(each, **PROBLEMS[name].arguments) for each in PROBLEMS[name].functions)
    return ours, theirs


def make_tensors(
    name: str, device: torch.device, dims: Dims = (None, None, None)
) -> tuple[torch.Tensor, ...]:
    """Input, weight and bias, with a batch in these dimensions."""
    problem = PROBLEMS[name]
    assert problem.bias is not None
    generator = torch.Generator().manual_seed(0)
    tensors = []
    for shape, dim in zip((problem.x, problem.w, (problem.bias,)), dims, strict=True):
        full = shape if dim is None else (*shape[:dim], BATCH, *shape[dim:])
        tensors.append(torch.randn(full, generator=generator).to(device))
    return tuple(tensors)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.filterwarnings("error:There is a performance drop")
def test_vmap_is_pytorchs_to_the_bit(name: str, device: torch.device) -> None:
    def results(function: Function, dims: Dims) -> tuple[torch.Tensor, ...]:
        gradients = torch.func.grad(
            lambda *tensors: function(*tensors).square().sum(), argnums=(0, 1, 2)
        )
        of_one = torch.vmap(lambda *one: (function(*one), *gradients(*one)), in_dims=dims)
        batched: tuple[torch.Tensor, ...] = of_one(*make_tensors(name, device, dims))
        return batched

    for dims in BATCH_DIMS:
        assert all(map(torch.equal, *(results(each, dims) for each in functions(name)))), dims


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
    x, w, b = make_tensors("conv2d", device, (0, 0, None))
    ours, theirs = (
        torch.vmap(torch.vmap(function, in_dims=(0, None, None)), in_dims=(None, 0, None))(x, w, b)
        for function in functions("conv2d")
    )
    assert torch.equal(ours, theirs)
    x, w, b = make_tensors("conv2d", device)
    w.requires_grad_()
    found: list[torch.Tensor] = []
    for function in functions("conv2d"):
        output = function(x, w, b)
        generator = torch.Generator(device).manual_seed(1)
        grads = torch.randn(BATCH, *output.shape, device=device, generator=generator)
        found += torch.autograd.grad(output, w, grads, is_grads_batched=True)
    torch.testing.assert_close(*found)


def test_bad_input_under_vmap_is_one_clear_error() -> None:
    x, w = torch.ones(3, 2, 4, 8, 8), torch.ones(3, 6, 4, 3, 3)
    of_x, of_w = (0, None, None), (None, 0, None)
    calls: list[tuple[Dims, tuple[Any, ...], dict[str, Any], str]] = [
        (of_x, (x[:, 0, 0, 0], w[0]), {}, r"input must have shape \(N, C, H, W\) .* got \[8\]"),
        (of_x, (x, w[0, ..., 0]), {}, r"weight must have shape .* got \[6, 4, 3\]"),
        (of_x, (x, w[0]), {"groups": 0}, "groups must be at least 1, got 0"),
        (of_x, (x, w[0, :, :1]), {"groups": 4}, r"a multiple of groups \(4\), got 6"),
        (of_x, (x, w[0]), {"policy": "fastest"}, "got 'fastest'"),
        (of_w, (x[0], w, torch.ones(6).double()), {}, r"input's dtype \(Float\), got Double"),
    ]
    for dims, tensors, options, message in calls:
        call = torch.vmap(partial(ops.conv2d, **options), in_dims=dims[: len(tensors)])
        with pytest.raises(RuntimeError, match=f"conv2d: .*{message}"):
            call(*tensors)
    with pytest.raises(RuntimeError, match=r"grad_output must have the output's shape .* got"):
        torch.vmap(lambda x, y: ops.conv2d_weight(x, (6, 4, 3, 3), y))(x, torch.ones(3, 2, 6, 6))


@pytest.mark.parametrize("name", PROBLEMS)
def test_forward_mode_is_pytorchs_to_the_bit(name: str, device: torch.device) -> None:
    tensors = make_tensors(name, device)
    directions = [torch.randn_like(tensor) for tensor in tensors]

    def jvp(function: Function, places: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        def of_places(*primals: torch.Tensor) -> torch.Tensor:
            given = dict(enumerate(tensors)) | dict(zip(places, primals, strict=True))
            return function(*given.values())

        primals, tangents = (tuple(of[i] for i in places) for of in (tensors, directions))
        output, tangent, *_ = torch.func.jvp(of_places, primals, tangents)
        return output, tangent

    for count in (1, 2, 3):
        for places in itertools.combinations(range(3), count):
            results = [jvp(function, places) for function in functions(name)]
            assert all(map(torch.equal, *results)), places


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


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv3d", "grouped", "conv_transpose2d"])
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


def test_transforms_keep_the_policy(device: torch.device) -> None:
    x, w, b = make_tensors("conv2d", device, (0, None, None))

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return ops.conv2d(x, w, b, policy="heuristic").square().sum()

    with Recorder() as recorder:
        torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x)
        torch.func.jvp(lambda w: torch.func.grad(loss)(w, x[0]), (w,), (w,))
    assert {policy for _, policy in recorder.seen} == {"heuristic"}
