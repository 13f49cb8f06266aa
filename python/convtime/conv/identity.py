"""Build convtime's call of a pass, and compare its result bitwise with PyTorch's."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from convtime import ops
from convtime.conv.call import FPROP, ConvCall, ConvTensors, gradient_call, same_bits

# The results of a call: one tensor or several.
Results = torch.Tensor | tuple[torch.Tensor, ...]
_REPEATS = 100


def convtime_call(
    call: ConvCall, pass_name: str, tensors: ConvTensors, policy: str | None = None
) -> Callable[[], torch.Tensor]:
    """Return convtime's call of a pass without arguments, the counterpart of ConvCall.pytorch_call.

    A policy that names an engine applies only to the forward pass.
    """
    if pass_name == FPROP:
        function = getattr(ops, call.problem.kind.function)
        return functools.partial(
            function, tensors.x, tensors.w, tensors.bias, *call.arguments, policy=policy
        )
    return gradient_call(
        pass_name,
        torch.ops.convtime.convolution_backward,
        *(tensors.grad_output, tensors.x, tensors.w),
        *call.backward_arguments,
        policy=policy if policy in ("heuristic", "benchmark") else None,
    )


def compare_bits(theirs: Callable[[], Results], first: Results, ours: Results) -> tuple[bool, bool]:
    """Compare convtime's results bitwise with PyTorch's first, and check that PyTorch repeats it.

    If the two differ, PyTorch is called many more times. A kernel that sums in no fixed order can
    give the same bits twice, and keep giving them while the cache state stays the same.
    """
    identical = _same(first, ours)
    for call in range(1 if identical else _REPEATS):
        if call % 2 and torch.cuda.is_available():
            torch.ops.convtime.flush_l2()
        if not _same(first, theirs()):
            return identical, False
    return identical, True


def _same(a: Results, b: Results) -> bool:
    return all(map(same_bits, as_tuple(a), as_tuple(b)))


def as_tuple(results: Results) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)
