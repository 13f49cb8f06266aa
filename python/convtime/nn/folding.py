"""Fold a batch norm with fixed statistics into the convolution before it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from convtime.core.errors import InputError


class Folding(NamedTuple):
    """What is folded in advance.

    Attributes:
        positions: index of each tensor among a graph's inputs, in the order of :func:`fold_norm`;
            None for a tensor that does not exist.
        eps: the batch norm's.
    """

    positions: tuple[int | None, ...]
    eps: float


def fold_norm(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    scale: torch.Tensor | None,
    shift: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight and bias of the convolution with its batch norm.

    They are computed in float32 or wider, and rounded once to the weight's dtype.
    """
    dtype = torch.promote_types(weight.dtype, torch.float32)
    factor = torch.rsqrt(variance.to(dtype) + eps)
    if scale is not None:
        factor = factor * scale
    offset = -mean if bias is None else bias - mean
    offset = offset * factor
    if shift is not None:
        offset = offset + shift
    factor = factor.reshape(-1, *[1] * (weight.dim() - 1))
    return (weight * factor).to(weight.dtype), offset.to(weight.dtype)


class FoldedTensors:
    """Folded tensors by what they were folded from; graphs of equal layers share their code.

    Args:
        is_constant: whether a tensor keeps its values.
    """

    def __init__(self, is_constant: Callable[[object], bool]) -> None:
        self._is_constant = is_constant
        self._lock = threading.Lock()
        self._known: dict[tuple[int, ...], tuple[Sequence[object], list[torch.Tensor]]] = {}

    def of(self, foldings: Sequence[Folding]) -> Callable[[Sequence[object]], list[torch.Tensor]]:
        """Return the function of a graph's inputs that returns weight and bias of each folding.

        It raises an InputError if the current stream is being captured and they are not known yet.
        """
        positions = [
            position for each in foldings for position in each.positions if position is not None
        ]

        def of_inputs(inputs: Sequence[object]) -> list[torch.Tensor]:
            sources = [inputs[position] for position in positions]
            key = tuple(map(id, sources))
            known = self._known.get(key)
            return self._new(foldings, inputs, sources, key) if known is None else known[1]

        return of_inputs

    def _new(
        self,
        foldings: Sequence[Folding],
        inputs: Sequence[object],
        sources: Sequence[object],
        key: tuple[int, ...],
    ) -> list[torch.Tensor]:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise InputError(
                "a fused model must be called once with such inputs before a CUDA graph captures a "
                "call, got a first call during the capture; call it before"
            )
        with self._lock:
            if key in self._known:  # another thread has made them meanwhile
                return self._known[key][1]
            made = _make(foldings, inputs)
            if all(map(self._is_constant, sources)):
                self._known[key] = (sources, made)  # with the sources, so that no id is reused
        return made


def _make(foldings: Sequence[Folding], inputs: Sequence[object]) -> list[torch.Tensor]:
    made: list[torch.Tensor] = []
    # Normal tensors, which later calls may use with gradients.
    with torch.inference_mode(False), torch.no_grad():
        for each in foldings:
            given: list[Any] = [
                None if position is None else inputs[position] for position in each.positions
            ]
            made += fold_norm(*given, each.eps)  # type: ignore[call-arg]
    for device in {tensor.device for tensor in made if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()  # for calls on other streams
    return made
