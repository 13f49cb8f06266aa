"""A pass of a convolution for cuDNN's engines, and the error of its results."""

from __future__ import annotations

import torch

from convtime.conv.call import FPROP, WGRAD, ConvCall, ConvTensors
from convtime.core.load import _C


def prepare_pass(call: ConvCall, name: str, tensors: ConvTensors) -> _C.EnginePass:
    """Return the pass for cuDNN, which has at least two spatial dimensions."""
    one, problem = call.problem.rank == 1, call.problem.with_height()
    assert not isinstance(problem.padding, str)

    def widened(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return tensor.unsqueeze(2) if one and tensor is not None else tensor

    return _C.EnginePass(
        input=widened(tensors.x.contiguous() if one else tensors.x),  # as the ops do
        weight=widened(tensors.w),
        grad_output=None if name == FPROP else widened(tensors.grad_output),
        of_weight=name == WGRAD,
        stride=problem.stride,
        padding=problem.padding,
        dilation=problem.dilation,
        output_padding=problem.output_padding,
        groups=problem.groups,
        transposed=problem.transposed,
    )


def exact_result(call: ConvCall, name: str, tensors: ConvTensors) -> torch.Tensor | None:
    """Return PyTorch's result in float64; None if there is not enough memory."""
    try:
        grad_output = None if tensors.grad_output is None else tensors.grad_output.double()
        wide = ConvTensors(tensors.x.double(), tensors.w.double(), None, grad_output)
        return call.pytorch_call(name, wide)()
    except torch.OutOfMemoryError:
        return None


def error_of(result: torch.Tensor, exact: torch.Tensor | None) -> float | None:
    """Return the root mean square of the error, relative to the exact result; None if unknown."""
    if exact is None or exact.numel() == 0:
        return None
    wide = result.double().reshape(exact.shape)
    return float((wide - exact).norm() / exact.norm().clamp_min(torch.finfo(torch.double).tiny))
