"""Calls that compute several results: all gradients in one call, and the way through autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conv_match_parts.rows import AUTOGRAD, GRADIENTS
from convtime import ops
from convtime.conv.call import ConvCall, ConvTensors

Run = Callable[[], tuple[torch.Tensor, ...]]


def combined_calls(call: ConvCall, tensors: ConvTensors) -> dict[str, tuple[Run, Run]]:
    """PyTorch's and convtime's call, by the combined pass's name."""
    kind = call.problem.kind.function
    return {
        GRADIENTS: (_gradients_by_pytorch(call, tensors), _gradients_by_convtime(call, tensors)),
        AUTOGRAD: (
            _through_autograd(getattr(torch, kind), call, tensors),
            _through_autograd(getattr(ops, kind), call, tensors),
        ),
    }


def _gradients_by_pytorch(call: ConvCall, tensors: ConvTensors) -> Run:
    problem = call.problem
    sizes = [problem.out_channels] if problem.bias else None
    arguments = (
        tensors.grad_output, tensors.x, tensors.w, sizes, *call.backward_arguments,
        [True, True, problem.bias],
    )  # fmt: skip
    backward = torch.ops.aten.convolution_backward
    return lambda: _defined(backward(*arguments))


def _gradients_by_convtime(call: ConvCall, tensors: ConvTensors) -> Run:
    arguments = (
        tensors.grad_output, tensors.x, tensors.w, *call.backward_arguments,
        [True, True, call.problem.bias],
    )  # fmt: skip
    backward = torch.ops.convtime.convolution_backward
    return lambda: _defined(backward(*arguments))


def _defined(gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(gradient for gradient in gradients if gradient is not None)


def _through_autograd(
    function: Callable[..., torch.Tensor], call: ConvCall, tensors: ConvTensors
) -> Run:
    """The output, and the gradients of all that goes in."""
    operands = [tensors.x, tensors.w, *([] if tensors.bias is None else [tensors.bias])]
    leaves = [tensor.detach().requires_grad_() for tensor in operands]
    x, w, *bias = leaves
    arguments: tuple[Any, ...] = (x, w, bias[0] if bias else None, *call.arguments)

    def run() -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            output = function(*arguments)
        gradients = torch.autograd.grad(output, leaves, tensors.grad_output)
        return output.detach(), *gradients

    return run
