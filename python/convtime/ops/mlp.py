"""Multi-layer perceptrons as one op, whose backward pass recomputes the forward pass."""

from __future__ import annotations

import torch

from convtime.core.load import _C as _C  # registers the ops
from convtime.ops.arguments import check_tensors


def mlp(
    input: torch.Tensor, weights: torch.Tensor, outputs: int, activation: str = "relu"
) -> torch.Tensor:
    """Apply linear layers, with an activation between them, to rows.

    On a GPU, nets of width 16, 32, 64 or 128 in 16 bits and without biases run in one kernel. It
    keeps the weights and the intermediate results on chip. Other nets use cuBLASLt for the
    products; float32 products use TF32 if PyTorch's do. Sums are in 32 bits, and intermediate
    results are rounded to the dtype. The backward pass recomputes the layers instead of keeping
    results. Gradients are deterministic.

    Forward-mode derivatives, and derivatives of gradients, use PyTorch's own matrix products. Under
    autocast, input and weights are cast as by torch.nn.functional.linear.

    Args:
        input: shape (rows, columns), at least one row; float16, bfloat16 or float32, on a CPU also
            float64.
        weights: shape (layers, width, width), contiguous, with the input's dtype; on a GPU, the
            width must be 16, 32 or a multiple of 64. Each matrix has one row per output of its
            layer. The first matrix uses as many columns as the input has; the last uses ``outputs``
            rows. If a hidden layer is narrower than the width, the rest must be zero. With biases,
            shape (layers, width + 1, width): the last row is the layer's bias.
        outputs: columns of the result.
        activation: ``"relu"`` or ``"tanh"``.

    Returns:
        Shape (rows, outputs).

    Raises:
        RuntimeError: shapes, dtypes or numbers are invalid or inconsistent.
    """
    check_tensors("mlp", input=input, weights=weights)
    output: torch.Tensor = torch.ops.convtime.mlp(input, weights, outputs, activation)
    return output
