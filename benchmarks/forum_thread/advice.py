"""What the thread advises, each piece of it measured: without and with it."""

import functools
from collections.abc import Callable
from typing import Any

import results
import torch
from common.operations import mapped
from common.options import PLAIN
from common.running import first_line
from torch.nn import functional as F

import convtime
from forum_thread.net import BATCH, LAYERS, SIDE, Training

_BUDGET = 1.0  # seconds for each comparison
_SIDE = 4096

Advice = Callable[[torch.device], results.Row]


def no_allocation(device: torch.device, **options: Any) -> results.Row:
    """Memory that is asked of the driver in each call, against memory that PyTorch has kept."""
    call = Training(device).isolated(LAYERS[0])

    def allocating() -> torch.Tensor:
        torch.cuda.empty_cache()
        return call()

    return _compared(allocating, call, **options)


def kept_in_cache(device: torch.device) -> results.Row:
    """A convolution whose data the cache lacks, against one that finds its own."""
    call = Training(device).isolated(LAYERS[-1])
    time_op = functools.partial(
        convtime.time_op, call, method="kernel", budget=_BUDGET, device=device
    )
    cold, warm = time_op(cache="cold").median, time_op(cache="warm").median
    return {
        "method": "kernel",
        "without": cold,
        "with": warm,
        "ratio": [warm / cold, None, None],
        "verdict": "",
    }


def coalesced(device: torch.device) -> results.Row:
    source = torch.randn(_SIDE, _SIDE, device=device)
    target = torch.empty_like(source)
    return _compared(
        lambda: target.copy_(source.t()), lambda: target.copy_(source), method="kernel"
    )


def pinned(device: torch.device) -> results.Row:
    pageable = torch.randn(_SIDE, _SIDE)
    copy = functools.partial(torch.empty_like(pageable, device=device).copy_, non_blocking=True)
    locked = pageable.pin_memory()
    return _compared(lambda: copy(pageable), lambda: copy(locked), method="sync")


def mapped_memory(device: torch.device) -> results.Row:
    """A copy from pinned memory with a kernel after it, against a kernel that reads it mapped."""
    locked = torch.randn(_SIDE, _SIDE).pin_memory()
    target = torch.empty(_SIDE, _SIDE, device=device)
    seen = mapped(locked, device)

    def copied() -> torch.Tensor:
        target.copy_(locked, non_blocking=True)
        return torch.relu(target)

    return _compared(copied, lambda: torch.relu(seen), method="sync")


def overlapped(device: torch.device) -> results.Row:
    """A step after the copy of its batch, against one beside the copy of the next."""
    training = Training(device)
    batch = torch.randn(BATCH, 3, SIDE, SIDE).pin_memory()
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


def channels_last(device: torch.device) -> results.Row:
    """The convolution on channels first, against channels last: data as its kernel reads them."""
    call = Training(device).isolated(LAYERS[0])
    x, weight = (tensor.contiguous() for tensor in (call.x, call.weight))
    return _compared(lambda: F.conv2d(x, weight, padding=call.padding), call, method="kernel")


ADVICE: dict[str, Advice] = {
    "no allocation in the loop": functools.partial(no_allocation, method="sync"),
    "no allocation in the loop, kernels alone": functools.partial(
        no_allocation, method="kernel", queue="none"
    ),
    "data kept in cache": kept_in_cache,
    "coalesced access": coalesced,
    "data in the kernel's own layout": channels_last,
    "pinned memory": pinned,
    "mapped memory": mapped_memory,
    "transfer overlapped with compute": overlapped,
}


def measure(device: torch.device, name: str) -> results.Row:
    try:
        return {"advice": name, **ADVICE[name](device)}
    except (RuntimeError, TypeError) as error:
        return {"advice": name, "reason": first_line(error)}


def _compared(
    without: Callable[[], object], following: Callable[[], object], **options: Any
) -> results.Row:
    """Both where their tensors are: copies of them would be memory that is asked for, too."""
    options |= {**PLAIN, "stop": "interval", "cache": "warm", "placement": "as-is"}
    calls = {"without": without, "with": following}
    compared = convtime.compare(calls, budget=_BUDGET, **options)
    measured, ratio = compared.measurements, compared.ratio("with")
    ends = [end if abs(end) < float("inf") else None for end in (ratio.low, ratio.high)]
    return {
        "method": measured["with"].method.used,
        "without": measured["without"].median,
        "with": measured["with"].median,
        "ratio": [ratio.value, *ends],
        "verdict": compared.verdict("with"),
    }
