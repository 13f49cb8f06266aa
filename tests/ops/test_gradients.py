"""The gradients of convolutions as functions, against autograd and torch.nn.grad."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import grad as torch_grad

from convtime import ops
from tests.helpers.op_calls import OPS, Problem, make_tensor, problems
from tests.helpers.op_examples import AMOUNTS, for_all


@pytest.mark.usefixtures("repeatable")
@pytest.mark.filterwarnings("ignore:.*padding='same' with even kernel:UserWarning")
@AMOUNTS
@pytest.mark.parametrize("op", OPS)
def test_each_gradient_alone_is_pytorchs(op: str, amount: int, device: torch.device) -> None:
    def check(problem: Problem) -> None:
        arguments, dtype = problem.arguments, problem.dtypes[0]
        if device.type == "cpu" and dtype == torch.bfloat16:
            return  # torch 2.11 writes out of bounds in some of these gradients
        x, w, b = (
            tensor if tensor is None else tensor.detach().requires_grad_()
            for tensor in problem.tensors(device)
        )
        assert x is not None
        assert w is not None
        if x.dim() < w.dim():  # what these functions do not take
            return
        leaves = [x, w, *([] if b is None else [b])]
        output = problem.functions[1](x, w, b, **arguments)
        grad = make_tensor(output.shape, dtype, problem.layouts[2], device)
        expected = torch.autograd.grad(output, leaves, grad)
        actual = (
            getattr(ops, f"{op}_input")(x.shape, w, grad, **arguments),
            getattr(ops, f"{op}_weight")(x, w.shape, grad, **arguments),
            getattr(ops, f"conv{op[-2]}d_bias")(grad),
        )
        of_float32 = 1e-2 if device.type == "cuda" else 1e-3  # of which TF32 may be used
        tolerance = {2: 3e-2, 4: of_float32, 8: 1e-10}[dtype.itemsize]
        for ours, theirs in zip(actual, expected, strict=False):
            assert ours.shape == theirs.shape
            # Other kernels may run.
            scale = float(theirs.abs().max()) if theirs.numel() else 1.0
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * scale)
        # torch.nn.grad takes no padding by name and has no transposed convolutions.
        if hasattr(torch_grad, f"{op}_input") and not isinstance(arguments.get("padding"), str):
            theirs = getattr(torch_grad, f"{op}_input")(x.shape, w, grad, **arguments)
            assert torch.equal(actual[0], theirs)
            theirs = getattr(torch_grad, f"{op}_weight")(x, w.shape, grad, **arguments)
            assert torch.equal(actual[1], theirs)

    for_all(problems(op), check, 25 * amount, device, 4 * amount)
    if "transpose" not in op:  # zeros at the ends of some dimensions alone
        size, kernel = (9, 8, 7)[: int(op[-2])], (4, 3, 2)[-int(op[-2]) :]
        same = {"padding": "same", "dilation": 3}
        check(Problem(op, (2, 4, *size), (6, 4, *kernel), 6, same))


X, W, GRAD = torch.ones(2, 4, 8, 8), torch.ones(6, 4, 3, 3), torch.ones(2, 6, 6, 6)
T, OF_T = W[:4], torch.ones(2, 4, 10, 10)  # of transposed convolutions

# The function, its tensors and sizes, and options.
BAD: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("conv2d_input", (X.shape, W, GRAD[:, :, 1:]), {}, r"\[2, 6, 6, 6\], got \[2, 6, 5, 6\]"),
    ("conv2d_input", (X.shape[1:], W, GRAD), {}, r"four numbers, got \(4, 8, 8\)"),
    ("conv2d_weight", (X, (6, 4), GRAD), {}, r"weight_size must be four .* got \(6, 4\)"),
    ("conv2d_weight", (X, W.shape, GRAD), {"padding": "full"}, "or 'valid', got 'full'"),
    ("conv2d_weight", (X, W.shape, GRAD.half()), {}, "must have the input's dtype"),
    ("conv2d_weight", (X, W.shape, GRAD), {"policy": "ConvBwdData_eng0"}, "s ConvBwdFilter"),
    ("conv2d_bias", (GRAD[0],), {}, r"shape \(N, K, P, Q\), got \[6, 6, 6\]"),
    ("conv2d_bias", (None,), {}, "grad_output must be a tensor, got NoneType"),
    ("conv_transpose2d_input", (X.shape, T, OF_T), {"policy": "ConvBwdData_eng0"}, "s ConvFwd"),
]


def test_bad_gradients_are_one_clear_error(device: torch.device) -> None:
    for name, args, options, message in BAD:
        on_device = [arg.to(device) if isinstance(arg, torch.Tensor) else arg for arg in args]
        with pytest.raises((RuntimeError, TypeError), match=message):
            getattr(ops, name)(*on_device, **options)
