"""The DTensor rules of the ops: compute on batch shards, and gather all other shardings."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch

from convtime.core.kinds import KINDS

_Rule = tuple[list[Any], list[Any]]  # placements of results, and required placements of arguments


def register_rules() -> None:
    """Register the ops with DTensor if it is loaded; otherwise no argument can be a DTensor.

    This is not done at import, because importing DTensor would multiply the import time.
    """
    if "torch.distributed.tensor" in sys.modules:
        _register_rules()


# Dynamo calls this function without tracing it, as for torch.compiler.assume_constant_result.
# Calling that would import dynamo, which takes a second and installs exit handlers.
register_rules._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _register_rules() -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def forward(
        input: Any, weight: Any, bias: Any = None, *numbers: Any, policy: str | None = None
    ) -> list[_Rule]:
        del policy
        others = [Replicate(), None if bias is None else Replicate(), *_nowhere(numbers)]
        rules: list[_Rule] = [([Replicate()], [Replicate(), *others])]
        if input.ndim == weight.ndim:
            rules.append(([Shard(0)], [Shard(0), *others]))
        return rules

    def epilogue(
        input: Any,
        weight: Any,
        bias: Any,
        other: Any,
        *numbers: Any,
        policy: str | None = None,
    ) -> list[_Rule]:
        del policy

        def place(where: Any) -> _Rule:
            whole = [Replicate(), None if bias is None else Replicate()]
            return [where], [where, *whole, None if other is None else where, *_nowhere(numbers)]

        batched = input.ndim == weight.ndim
        return [place(Replicate()), *([place(Shard(0))] if batched else [])]

    def backward(
        grad_output: Any, input: Any, weight: Any, *numbers: Any, policy: str | None = None
    ) -> list[_Rule]:
        del grad_output, input, weight, policy
        output_mask = numbers[-1]

        def wanted(*places: Any) -> list[Any]:
            return [
                place if asked else None for place, asked in zip(places, output_mask, strict=True)
            ]

        none = _nowhere(numbers)
        return [
            (wanted(*(Replicate(),) * 3), [*(Replicate(),) * 3, *none]),
            (wanted(Shard(0), Partial(), Partial()), [Shard(0), Shard(0), Replicate(), *none]),
        ]

    for kind in KINDS:
        register_sharding(getattr(torch.ops.convtime, kind.function).default)(forward)
    register_sharding(torch.ops.convtime.convolution_epilogue.default)(epilogue)
    register_sharding(torch.ops.convtime.convolution_backward.default)(backward)


def _nowhere(numbers: Sequence[Any]) -> list[None]:
    return [None] * len(numbers)
