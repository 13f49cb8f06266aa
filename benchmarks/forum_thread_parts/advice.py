"""What the thread advises, each piece of it measured: without and with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import results
import torch
from common.operations import mapped
from torch.nn import functional as F

import convtime
from forum_thread_parts.net import LAYERS, Size, Training

_BUDGET = 1.0  # seconds for each comparison
_SIDE = 4096

Advice = Callable[[torch.device, Size], results.Row]


def no_allocation(device: torch.device, size: Size) -> results.Row:
    """Memory that is asked of the driver in each call, against memory that PyTorch has kept."""
    call = Training(device, size).isolated(LAYERS[0])

    def allocating() -> torch.Tensor:
        torch.cuda.empty_cache()
        return call()

    return _compared(allocating, call, method="sync")


def no_allocation_kernels(device: torch.device, size: Size) -> results.Row:
    """The same by the kernels' own time."""
    call = Training(device, size).isolated(LAYERS[0])

    def allocating() -> torch.Tensor:
        torch.cuda.empty_cache()
        return call()

    return _compared(allocating, call, method="kernel", queue="none")


def kept_in_cache(device: torch.device, size: Size) -> results.Row:
    """A convolution whose data the cache lacks, against one that finds its own."""
    call = Training(device, size).isolated(LAYERS[-1])
    shared: dict[str, Any] = {"method": "kernel", "budget": _BUDGET, "device": device}
    cold, warm = (convtime.time_op(call, cache=cache, **shared) for cache in ("cold", "warm"))
    return {
        "method": "kernel",
        "without": cold.median,
        "with": warm.median,
        "ratio": [warm.median / cold.median, None, None],
        "verdict": "",
    }


def coalesced(device: torch.device, _size: Size) -> results.Row:
    """A copy that reads columns, against one that reads rows."""
    source = torch.randn(_SIDE, _SIDE, device=device)
    target = torch.empty_like(source)
    return _compared(
        lambda: target.copy_(source.t()), lambda: target.copy_(source), method="kernel"
    )


def pinned(device: torch.device, _size: Size) -> results.Row:
    """A copy from pageable memory, against one from pinned memory."""
    pageable = torch.randn(_SIDE, _SIDE)
    locked = pageable.pin_memory()
    target = torch.empty(_SIDE, _SIDE, device=device)
    return _compared(
        lambda: target.copy_(pageable, non_blocking=True),
        lambda: target.copy_(locked, non_blocking=True),
        method="sync",
    )


def mapped_memory(device: torch.device, _size: Size) -> results.Row:
    """A copy from pinned memory with a kernel after it, against a kernel that reads it mapped."""
    locked = torch.randn(_SIDE, _SIDE).pin_memory()
    target = torch.empty(_SIDE, _SIDE, device=device)
    seen = mapped(locked, device)

    def copied() -> torch.Tensor:
        target.copy_(locked, non_blocking=True)
        return torch.relu(target)

    return _compared(copied, lambda: torch.relu(seen), method="sync")


def overlapped(device: torch.device, size: Size) -> results.Row:
    """A step after the copy of its batch, against one beside the copy of the next."""
    training = Training(device, size)
    batch = torch.randn(size.batch, 3, size.side, size.side).pin_memory()
    target = torch.empty_like(batch, device=device)
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def one_after_the_other() -> None:
        target.copy_(batch, non_blocking=True)
        training.step()

    def at_once() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            target.copy_(batch, non_blocking=True)
        training.step()
        torch.cuda.current_stream().wait_stream(side)

    return _compared(one_after_the_other, at_once, method="sync")


def channels_last(device: torch.device, size: Size) -> results.Row:
    """The convolution on channels first, against channels last: data as its kernel reads them."""
    call = Training(device, size).isolated(LAYERS[0])
    x, weight = (tensor.contiguous() for tensor in (call.x, call.weight))
    return _compared(lambda: F.conv2d(x, weight, padding=call.padding), call, method="kernel")


ADVICE: dict[str, Advice] = {
    "no allocation in the loop": no_allocation,
    "no allocation in the loop, kernels alone": no_allocation_kernels,
    "data kept in cache": kept_in_cache,
    "coalesced access": coalesced,
    "data in the kernel's own layout": channels_last,
    "pinned memory": pinned,
    "mapped memory": mapped_memory,
    "transfer overlapped with compute": overlapped,
}


def measure(device: torch.device, size: Size, name: str) -> results.Row:
    """A piece of advice, or why it cannot be measured here."""
    try:
        return {"advice": name, **ADVICE[name](device, size)}
    except (RuntimeError, TypeError) as error:
        return {"advice": name, "reason": f"{type(error).__name__}: {error}".splitlines()[0]}


def _compared(
    without: Callable[[], object], following: Callable[[], object], **options: Any
) -> results.Row:
    """Both where their tensors are: copies of them would be memory that is asked for, too."""
    compared = convtime.compare(
        {"without": without, "with": following},
        check=None,
        interference=False,
        stop="interval",
        cache="warm",
        placement="as-is",
        budget=_BUDGET,
        **options,
    )
    ratio = compared.ratio("with")
    ends = [end if abs(end) < float("inf") else None for end in (ratio.low, ratio.high)]
    measured = compared.measurements
    return {
        "method": measured["with"].method.used,
        "without": measured["without"].median,
        "with": measured["with"].median,
        "ratio": [ratio.value, *ends],
        "verdict": compared.verdict("with"),
    }
