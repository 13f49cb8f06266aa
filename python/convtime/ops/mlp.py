"""Multi-layer perceptrons as one op, whose backward pass computes the forward pass again."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from convtime.core.load import _C as _C  # registers the ops
from convtime.ops.arguments import check_tensors


def mlp(
    input: torch.Tensor, weights: torch.Tensor, outputs: int, activation: str = "relu"
) -> torch.Tensor:
    """Takes rows through linear layers, with an activation between them.

    On a GPU that is one kernel for nets of width 64 or 128, in 16 bits and without biases, with the
    weights and what lies between the layers on chip; others' products are cuBLASLt's, those of
    float32 in TF32 where PyTorch's own are. Sums are in 32 bits, and what lies between the layers
    is rounded to the dtype. Nothing is kept for the gradients, which are deterministic: the layers
    are computed again. Gradients have no gradients.

    Args:
        input: shape (rows, columns), at least one row; float16, bfloat16 or float32, on a CPU also
            float64.
        weights: shape (layers, width, width), contiguous, of the input's dtype; on a GPU, of a
            width that is a multiple of 64. Each matrix has a layer's outputs as rows. Of the first,
            as many columns count as the input has; of the last, ``outputs`` rows; where a layer
            between is narrower, the rest has to be zero. With biases, shape
            (layers, width + 1, width): the last row is the layer's.
        outputs: columns of the result.
        activation: ``"relu"`` or ``"tanh"``.

    Returns:
        Shape (rows, outputs).

    Raises:
        RuntimeError: for shapes, dtypes or numbers that do not fit together.
    """
    check_tensors("mlp", input=input, weights=weights)
    output: torch.Tensor = torch.ops.convtime.mlp(input, weights, outputs, activation)
    return output


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    input, weights, _, activation = inputs
    ctx.save_for_backward(input, weights)
    ctx.activation = activation


@once_differentiable
def _backward(
    ctx: Any, grad_output: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
    input, weights = ctx.saved_tensors
    of_input, of_weights = torch.ops.convtime.mlp_backward(
        grad_output, input, weights, ctx.activation
    )
    return of_input, of_weights, None, None


torch.library.register_autograd("convtime::mlp", _backward, setup_context=_keep)
