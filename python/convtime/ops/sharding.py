"""How DTensor computes the ops: on shards of the batch; what is sharded otherwise is gathered."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch

from convtime.core.kinds import KINDS

_Rule = tuple[list[Any], list[Any]]  # where results are, and where arguments have to be


def register_rules() -> None:
    """Tells DTensor of the ops, where it is loaded, and so may be what is computed on.

    Not done at import, which importing DTensor would make several times as long.
    """
    if "torch.distributed.tensor" in sys.modules:
        _register_rules()


# Called, and not traced: as torch.compiler.assume_constant_result has it, less the import of
# dynamo, which takes a second and has exit handlers of its own.
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
