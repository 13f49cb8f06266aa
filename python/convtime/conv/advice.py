"""Measure changes that could speed up a convolution: other layouts, dtypes and sizes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import NamedTuple

import torch
from torch.nn import functional as F

from convtime.conv.call import (
    FPROP,
    ConvCall,
    ConvTensors,
    Flags,
    dtype_name,
    is_channels_last,
    memory_format,
)
from convtime.timing.compare import compare
from convtime.view.wording import format_seconds

#: Channel counts that are multiples of this suit Tensor Cores.
_CHANNELS = 8
_HALF = torch.float16
_AS_IS = "as it is"
_WARMUP_SECONDS = 0.02


@dataclasses.dataclass(frozen=True)
class Advice:
    """One suggestion.

    Attributes:
        text: the suggestion, in the imperative.
        seconds: time of a call that follows it; None if it was not tried.
        instead_of: time of a call without it, measured next to the other; None if not tried.
        note: other effects, such as a changed result; empty for none.
    """

    text: str
    seconds: float | None = None
    instead_of: float | None = None
    note: str = ""

    @property
    def saved(self) -> float | None:
        """Seconds that it saves per call; negative if the call takes longer."""
        if self.seconds is None or self.instead_of is None:
            return None
        return self.instead_of - self.seconds

    def __str__(self) -> str:
        text = f"{self.text}; {self.note}" if self.note else self.text
        if self.saved is None or self.instead_of is None:
            return text
        verb = "saves" if self.saved >= 0 else "costs"
        return (
            f"{text} ({verb} {format_seconds(abs(self.saved))} of "
            f"{format_seconds(self.instead_of)} here)"
        )


class _Variant(NamedTuple):
    """An alternative: the advice to print, its tensors, its side effects and its flags."""

    text: str
    tensors: ConvTensors
    note: str = ""
    flags: Flags | None = None


def measured_advice(
    call: ConvCall, pass_name: str, tensors: ConvTensors, budget: float
) -> tuple[Advice, ...]:
    """Time a pass in PyTorch, unchanged and with each alternative; largest saving first.

    The calls are interleaved.

    Args:
        call: the convolution.
        pass_name: one of its passes.
        tensors: the tensors that the pass reads.
        budget: seconds for all measurements together.
    """
    calls = {_AS_IS: call.pytorch_call(pass_name, tensors)}
    variants = []
    for variant in _variants(call, pass_name, tensors):
        called = call.pytorch_call(pass_name, variant.tensors)
        if variant.flags is not None:
            called = variant.flags.applied()(called)
        with contextlib.suppress(RuntimeError):  # unsupported, or out of memory
            called()
            variants.append(variant)
            calls[variant.text] = called
    if not variants:
        return ()
    # No other placement is needed: each variant already has separate tensors.
    compared = compare(
        calls,
        device=tensors.x.device,
        budget=budget,
        stop="budget",
        warmup=_WARMUP_SECONDS,
        placement="as-is",
        regime="as-is",
        check=None,
        interference=False,
    )
    here = compared.measurements[_AS_IS].median
    advice = (
        Advice(each.text, compared.measurements[each.text].median, here, each.note)
        for each in variants
    )
    return tuple(sorted(advice, key=lambda each: -(each.saved or 0.0)))


def _variants(call: ConvCall, pass_name: str, tensors: ConvTensors) -> Iterator[_Variant]:
    rank, dtype = call.problem.rank, tensors.x.dtype
    nhwc, is_nhwc = memory_format("nhwc", 2 + rank), is_channels_last(tensors.x)
    in_nhwc = _each(tensors, lambda each: each.contiguous(memory_format=nhwc))
    if rank > 1 and not is_nhwc:
        yield _Variant("keep input and weight in channels_last", in_nhwc)
    if is_nhwc:
        yield _Variant(
            "keep input and weight contiguous (NCHW)", _each(tensors, torch.Tensor.contiguous)
        )
    if tensors.bias is not None and pass_name == FPROP:
        yield _Variant(
            "leave out the bias",
            dataclasses.replace(tensors, bias=None),
            "where a batch norm follows, the result stays the same",
        )
    on_gpu = tensors.x.device.type == "cuda"
    if dtype == torch.float32:
        half = _HALF if on_gpu else torch.bfloat16
        name, to_half = dtype_name(half), methodcaller("to", half)
        rounded = f"numbers are rounded to {name}, as under torch.autocast"
        if rank > 1:
            yield _Variant(f"compute in {name} and channels_last", _each(in_nhwc, to_half), rounded)
        yield _Variant(f"compute in {name}", _each(tensors, to_half), rounded)
        if on_gpu and not call.flags.allow_tf32:
            yield _Variant(
                "allow TF32 (torch.backends.cudnn.conv.fp32_precision = 'tf32')",
                tensors,
                "products are rounded to 10 bits",
                dataclasses.replace(call.flags, allow_tf32=True),
            )
    padded = _padded(call, tensors)
    if on_gpu and padded is not None:
        yield _Variant(f"pad the channels to multiples of {_CHANNELS}", padded)


def _each(tensors: ConvTensors, change: Callable[[torch.Tensor], torch.Tensor]) -> ConvTensors:
    weight, bias, grad_output = change(tensors.w.detach()), tensors.bias, tensors.grad_output
    return ConvTensors(
        change(tensors.x.detach()),
        weight,
        None if bias is None else bias.detach().to(weight.dtype),
        None if grad_output is None else change(grad_output.detach()),
    )


def _padded(call: ConvCall, tensors: ConvTensors) -> ConvTensors | None:
    """Append channels of zeros; None if no padding is needed or possible."""
    problem = call.problem
    if problem.groups != 1 or problem.transposed:
        return None
    more_in, more_out = (-each % _CHANNELS for each in (problem.in_channels, problem.out_channels))
    if not (more_in or more_out):
        return None
    bias, grad_output = tensors.bias, tensors.grad_output
    return ConvTensors(
        _with_channels(tensors.x, 1, more_in),
        _with_channels(_with_channels(tensors.w, 1, more_in), 0, more_out),
        None if bias is None else _with_channels(bias, 0, more_out),
        None if grad_output is None else _with_channels(grad_output, 1, more_out),
    )


def _with_channels(tensor: torch.Tensor, dimension: int, more: int) -> torch.Tensor:
    behind = [0, 0] * (tensor.dim() - dimension - 1)
    nhwc = tensor.dim() > 3 and not tensor.is_contiguous()
    padded = F.pad(tensor.detach(), [*behind, 0, more])
    return padded.contiguous(memory_format=memory_format("nhwc", tensor.dim())) if nhwc else padded
