"""Register the convolutions with torch.utils.flop_counter."""

from __future__ import annotations

import functools

import torch

from convtime.core.kinds import KINDS


@functools.cache
def register_formulas() -> None:
    """Make torch.utils.flop_counter count the ops as it counts PyTorch's.

    This is not done at import, because torch's module imports Triton and would double the import
    time.
    """
    from torch.utils import flop_counter

    def forward(
        input: list[int],
        weight: list[int],
        *_arguments: object,
        transposed: bool,
        out_shape: list[int],
        **_options: object,
    ) -> int:
        if len(input) < len(weight):  # the formula takes the first size as the batch size
            input, out_shape = [1, *input], [1, *out_shape]
        flops: int = flop_counter.conv_flop_count(input, weight, out_shape, transposed)
        return flops

    # As for PyTorch's op, an epilogue's sums and activations are not counted.
    forwards = {kind.function: kind.transposed for kind in KINDS} | {"convolution_epilogue": False}
    for name, transposed in forwards.items():
        register = flop_counter.register_flop_formula(getattr(torch.ops.convtime, name))
        register(functools.partial(forward, transposed=transposed))

    def backward(
        grad_output: object,
        input: object,
        weight: object,
        *arguments: object,
        out_val: object,
        **_options: object,
    ) -> int:
        # PyTorch's op also takes the bias sizes, after the weight.
        flops: int = flop_counter.conv_backward_flop(
            grad_output, input, weight, None, *arguments, out_val=out_val
        )
        return flops

    register = flop_counter.register_flop_formula(
        torch.ops.convtime.convolution_backward, get_raw=True
    )
    register(backward)
