"""convtime's calls of a pass beside PyTorch's, and whether they compute the same bits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

import torch

from convtime import ops
from convtime.conv.call import FPROP, ConvCall, ConvTensors, backward_pass, same_bits

# Of a call: one, or as many as it gives.
Results = torch.Tensor | tuple[torch.Tensor, ...]
_REPEATS = 100


def convtime_call(
    call: ConvCall, pass_name: str, tensors: ConvTensors, policy: str | None = None
) -> Callable[[], torch.Tensor]:
    """The call of a pass by convtime, without arguments: ConvCall.pytorch_call's counterpart.

    A policy that names an engine is the forward pass's alone.
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
    """Whether convtime's results have the bits of PyTorch's first, and whether PyTorch repeats it.

    Where the two differ, PyTorch is called many times more: a kernel that adds up in no fixed
    order may well give the same bits twice, and give the same ones for as long as it finds the
    cache as it left it.
    """
    identical = _same(first, ours)
    calls = 1 if identical else _REPEATS
    return identical, all(_same(first, _repeated(theirs, call)) for call in range(calls))


def _repeated(theirs: Callable[[], Results], call: int) -> Results:
    """A further call of PyTorch's, every other one with a cold cache."""
    if call % 2 and torch.cuda.is_available():
        torch.ops.convtime.flush_l2()
    return theirs()


def _same(a: Results, b: Results) -> bool:
    return all(map(same_bits, as_tuple(a), as_tuple(b)))


def as_tuple(results: Results) -> tuple[torch.Tensor, ...]:
    """The results of a call, however many there are."""
    return results if isinstance(results, tuple) else (results,)
