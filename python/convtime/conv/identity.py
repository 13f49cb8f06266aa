"""Build convtime's call of a pass, and compare its result bitwise with PyTorch's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

import torch

from convtime import ops
from convtime.conv.call import FPROP, ConvCall, ConvTensors, backward_pass, same_bits

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
    wanted = backward_pass(pass_name)
    arguments = (
        tensors.grad_output, tensors.x, tensors.w, *call.backward_arguments,
        [place == wanted for place in range(3)],
    )  # fmt: skip
    policy = policy if policy in ("heuristic", "benchmark") else None
    backward = torch.ops.convtime.convolution_backward
    return lambda: cast("torch.Tensor", backward(*arguments, policy=policy)[wanted])


def compare_bits(theirs: Callable[[], Results], first: Results, ours: Results) -> tuple[bool, bool]:
    """Compare convtime's results bitwise with PyTorch's first, and check that PyTorch repeats it.

    If the two differ, PyTorch is called many more times. A kernel that sums in no fixed order can
    give the same bits twice, and keep giving them while the cache state stays the same.
    """
    identical = _same(first, ours)
    calls = 1 if identical else _REPEATS
    return identical, all(_same(first, _repeated(theirs, call)) for call in range(calls))


def _repeated(theirs: Callable[[], Results], call: int) -> Results:
    """Call PyTorch again, with a cold cache in every second call."""
    if call % 2 and torch.cuda.is_available():
        torch.ops.convtime.flush_l2()
    return theirs()


def _same(a: Results, b: Results) -> bool:
    return all(map(same_bits, as_tuple(a), as_tuple(b)))


def as_tuple(results: Results) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)
