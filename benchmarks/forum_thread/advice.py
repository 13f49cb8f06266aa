"""What the thread advises, each piece of it measured: without and with it."""

import functools
from collections.abc import Callable
from typing import Any

import results
import torch
from common.cuda import mapped
from common.running import PLAIN, Call, first_line
from torch.nn import functional as F

import convtime
from forum_thread.net import BATCH, LAYERS, SIDE, Training

_BUDGET = 1.0  # seconds for each comparison
_SIDE = 4096

Calls = tuple[Call, Call]  # without and with


def no_allocation(device: torch.device) -> Calls:
    """Memory that is asked of the driver in each call, against memory that PyTorch has kept."""
    call = Training(device).isolated(LAYERS[0])

    def allocating() -> torch.Tensor:
        torch.cuda.empty_cache()
        return call()

    return allocating, call


def coalesced(device: torch.device) -> Calls:
    source = torch.randn(_SIDE, _SIDE, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source.t()), lambda: target.copy_(source)


def channels_last(device: torch.device) -> Calls:
    """The convolution on channels first, against channels last: data as its kernel reads them."""
    call = Training(device).isolated(LAYERS[0])
    x, weight = (tensor.contiguous() for tensor in (call.x, call.weight))
    return lambda: F.conv2d(x, weight, padding=call.padding), call


def pinned(device: torch.device) -> Calls:
    pageable = torch.randn(_SIDE, _SIDE)
    copy = functools.partial(torch.empty_like(pageable, device=device).copy_, non_blocking=True)
    locked = pageable.pin_memory()
    return lambda: copy(pageable), lambda: copy(locked)


def mapped_memory(device: torch.device) -> Calls:
    """A copy from pinned memory with a kernel after it, against a kernel that reads it mapped."""
    locked = torch.randn(_SIDE, _SIDE).pin_memory()
    target = torch.empty(_SIDE, _SIDE, device=device)
    seen = mapped(locked, device)

    def copied() -> torch.Tensor:
        target.copy_(locked, non_blocking=True)
        return torch.relu(target)

    return copied, lambda: torch.relu(seen)


def overlapped(device: torch.device) -> Calls:
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

    return one_after_the_other, at_once


IN_CACHE = "data kept in cache"
_COMPARED: dict[str, tuple[Callable[[torch.device], Calls], dict[str, Any]]] = {
    "no allocation in the loop": (no_allocation, {"method": "sync"}),
    "no allocation in the loop, kernels alone": (
        no_allocation,
        {"method": "kernel", "queue": "none"},
    ),
    "coalesced access": (coalesced, {"method": "kernel"}),
    "data in the kernel's own layout": (channels_last, {"method": "kernel"}),
    "pinned memory": (pinned, {"method": "sync"}),
    "mapped memory": (mapped_memory, {"method": "sync"}),
    "transfer overlapped with compute": (overlapped, {"method": "sync"}),
}
ADVICE = (*_COMPARED, IN_CACHE)


def measure(device: torch.device, name: str) -> results.Row:
    try:
        found = _kept_in_cache(device) if name == IN_CACHE else _compared(device, name)
    except (RuntimeError, TypeError) as error:
        found = {"reason": first_line(error)}
    return {"advice": name, **found}


def _kept_in_cache(device: torch.device) -> results.Row:
    """A convolution whose data the cache lacks, against one that finds its own."""
    call = Training(device).isolated(LAYERS[-1])
    options: dict[str, Any] = {"method": "kernel", "budget": _BUDGET, "device": device}
    cold, warm = (
        convtime.time_op(call, cache=cache, **options).median for cache in ("cold", "warm")
    )
    ratio = [warm / cold, None, None]
    return {"method": "kernel", "without": cold, "with": warm, "ratio": ratio, "verdict": ""}


def _compared(device: torch.device, name: str) -> results.Row:
    """Both where their tensors are: copies of them would be memory that is asked for, too."""
    make, own = _COMPARED[name]
    options = {**PLAIN, **own, "stop": "interval", "cache": "warm", "placement": "as-is"}
    calls = dict(zip(("without", "with"), make(device), strict=True))
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
