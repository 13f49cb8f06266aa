"""The DTensor rules of the ops: compute on batch shards, and gather all other shardings."""

from __future__ import annotations

import functools
import sys
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
        input: Any, weight: Any, bias: Any = None, *others: Any, **_options: Any
    ) -> list[_Rule]:
        def at(placement: Any) -> _Rule:
            # Of the other arguments, only an addend is a tensor; it is sharded like the output.
            after = [placement if hasattr(other, "ndim") else None for other in others]
            of_bias = None if bias is None else Replicate()
            return [placement], [placement, Replicate(), of_bias, *after]

        is_batched = input.ndim == weight.ndim
        return [at(Replicate()), at(Shard(0))] if is_batched else [at(Replicate())]

    def backward(
        _grad_output: Any, _input: Any, _weight: Any, *numbers: Any, **_options: Any
    ) -> list[_Rule]:
        def at(placement: Any, of_weight: Any) -> _Rule:
            outputs = [
                output if is_wanted else None
                for output, is_wanted in zip(
                    (placement, of_weight, of_weight), numbers[-1], strict=True
                )
            ]
            return outputs, [placement, placement, Replicate(), *[None] * len(numbers)]

        return [at(Replicate(), Replicate()), at(Shard(0), Partial())]

    for name in (*(kind.function for kind in KINDS), "convolution_epilogue"):
        register_sharding(getattr(torch.ops.convtime, name).default)(forward)
    register_sharding(torch.ops.convtime.convolution_backward.default)(backward)
