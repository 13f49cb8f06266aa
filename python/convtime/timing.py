"""Timing callables: lays out what is timed, and where, for the sampler in C++."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, SupportsIndex

import torch
from torch.utils import _pytree as pytree

from convtime._load import _C
from convtime.measurement import DeviceActivity, Measurement
from convtime.provenance import provenance


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One operation that is to be timed: ``fn(*args, **kwargs)``."""

    name: str
    fn: Callable[..., object]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    setup: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a measurement's name must be a string, got {self.name!r}")
        if not callable(self.fn):
            raise TypeError(
                f"what is timed must be callable, got {type(self.fn).__name__} for {self.name!r}; "
                "pass the function and its arguments, not its result"
            )
        if self.setup is not None and not callable(self.setup):
            raise TypeError(f"setup must be callable, got {type(self.setup).__name__}")


@dataclasses.dataclass(frozen=True)
class Options:
    """How to time; see :func:`time_op`."""

    method: str
    queue: str
    cache: str
    device: torch.device | str | None
    warmup_calls: int
    warmup_seconds: float
    min_samples: int
    max_samples: int
    budget: float
    max_noise: float

    def __post_init__(self) -> None:
        if self.cache not in ("cold", "warm"):
            raise ValueError(f"cache must be one of 'cold', 'warm', got {self.cache!r}")
        for name in ("method", "queue"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a string, got {getattr(self, name)!r}")
        for name in ("warmup_calls", "min_samples", "max_samples"):
            value = getattr(self, name)
            if not isinstance(value, SupportsIndex) or not 0 <= value.__index__() <= sys.maxsize:
                raise ValueError(f"{name} must be a whole number, 0 or more, got {value!r}")
        for name in ("warmup_seconds", "budget", "max_noise"):
            value = getattr(self, name)
            try:
                finite = abs(float(value)) < float("inf")
            except (TypeError, ValueError, OverflowError):
                finite = False
            if not finite or isinstance(value, str):
                raise ValueError(f"{name} must be a number, got {value!r}")


def time_op(
    fn: Callable[..., object],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    setup: Callable[[], object] | None = None,
    method: str = "auto",
    queue: str = "gate",
    cache: str = "cold",
    device: torch.device | str | None = None,
    warmup_calls: int = 3,
    warmup_seconds: float = 0.02,
    min_samples: int = 10,
    max_samples: int = 10_000,
    budget: float = 1.0,
    max_noise: float = 0.005,
) -> Measurement:
    """Times ``fn(*args, **kwargs)``, called from C++ until its median is known well enough.

    Args:
        fn: what is timed. Its result is dropped after the timed region; it may return None.
        args: its positional arguments.
        kwargs: its keyword arguments.
        name: what the result is called; the function's own name unless given.
        setup: called without arguments before each call, outside of the timed region and before the
            cache is flushed; what it issues to the GPU is not timed either.
        method: ``kernel`` (the device's own time for the kernels, copies and memsets that the call
            issues on any stream, from CUPTI's records), ``event`` (between two CUDA events on the
            current stream, their own 2 to 3 µs included), ``sync`` (host clock between two idle
            states of the device), ``cpu`` (host clock around the call, on an idle device) or
            ``auto``: for work on a GPU kernel, or event where CUPTI cannot be used; else cpu.
        queue: ``gate`` keeps the GPU from starting until a batch of calls is issued, so that short
            ones are not timed as gaps between launches; ``sleep`` does so with a kernel that sleeps
            for a time estimated beforehand; ``none`` does not. A callable that waits for the GPU
            itself cannot be queued; the result then says so.
        cache: ``cold`` overwrites the GPU's L2 cache before each call, outside of the timed region;
            ``warm`` leaves it as the call before left it.
        device: where the work runs. Unless given: the GPU of the first CUDA tensor found in
            arguments, closure or module parameters, the CPU where only CPU tensors are found, and
            the current GPU (where there is one) if no tensor is found.
        warmup_calls: untimed calls first, at least; one is always made.
        warmup_seconds: duration of the untimed calls, at least, in seconds.
        min_samples: samples taken at least, also beyond the budget.
        max_samples: samples taken at most.
        budget: seconds after which sampling ends, warm-up not counted.
        max_noise: sampling ends when half the width of the median's 95 % interval is at most this
            share of the median.

    Returns:
        The samples in seconds, with method, conditions and provenance.

    Raises:
        TypeError: if ``fn`` is not callable.
        ValueError: for an option outside of its range, or a GPU method for work on the CPU.
        RuntimeError: for a failure of CUDA, or where ``method="kernel"`` cannot be had. Whatever
            ``fn`` raises passes through.
    """
    candidate = Candidate(name or name_of(fn), fn, args, kwargs or {}, setup)
    options = Options(
        method=method,
        queue=queue,
        cache=cache,
        device=device,
        warmup_calls=warmup_calls,
        warmup_seconds=warmup_seconds,
        min_samples=min_samples,
        max_samples=max_samples,
        budget=budget,
        max_noise=max_noise,
    )
    return measure([candidate], options)[0]


def measure(candidates: list[Candidate], options: Options) -> list[Measurement]:
    """Times candidates interleaved, in rounds; sample i of each comes from the same round."""
    device, device_reason = _resolve_device(candidates, options.device)
    on_gpu = device.type == "cuda"
    with torch.cuda.device(device) if on_gpu else contextlib.nullcontext():
        stream = torch.cuda.current_stream(device).cuda_stream if on_gpu else 0
        flush = _flush_buffer(device) if on_gpu and options.cache == "cold" else None
        timing = _C.time_candidates(
            candidates=[(one.fn, one.args, dict(one.kwargs), one.setup) for one in candidates],
            method=options.method,
            queue=options.queue,
            on_gpu=on_gpu,
            stream=stream,
            flush_data=0 if flush is None else flush.data_ptr(),
            flush_bytes=0 if flush is None else flush.nbytes,
            kernel_unavailable=_other_profiler(),
            warmup_calls=int(options.warmup_calls),
            warmup_seconds=float(options.warmup_seconds),
            min_samples=int(options.min_samples),
            max_samples=int(options.max_samples),
            budget=float(options.budget),
            max_noise=float(options.max_noise),
        )
    where = provenance(device)
    return [
        Measurement(
            name=candidate.name,
            seconds=tuple(seconds),
            discarded=tuple(discarded),
            overhead=timing["overhead_seconds"],
            raw_seconds=tuple(timing["raw_seconds"][index]) if timing["raw_seconds"] else (),
            spans=tuple(timing["spans"][index]) if timing["spans"] else (),
            activities=tuple(DeviceActivity(**one) for one in timing["activities"][index])
            if timing["activities"]
            else (),
            method=timing["method"],
            method_requested=options.method,
            method_reason=timing["method_reason"],
            queue=timing["queue"],
            queue_requested=options.queue,
            queue_reason=timing["queue_reason"],
            cache=options.cache if on_gpu else "uncontrolled",
            cache_requested=options.cache,
            cache_reason="" if on_gpu else "it is the GPU's cache that is controlled",
            device=str(device),
            device_reason=device_reason,
            stream=stream if on_gpu else None,
            warmup_calls=timing["warmup_calls"],
            warmup_seconds=timing["warmup_seconds"],
            sampling_seconds=timing["sampling_seconds"],
            stop_reason=timing["stop_reason"],
            provenance=where,
        )
        for index, (candidate, seconds, discarded) in enumerate(
            zip(candidates, timing["seconds"], timing["discarded"], strict=True)
        )
    ]


def _flush_buffer(device: torch.device) -> torch.Tensor:
    return torch.empty(_C.flush_buffer_bytes(), dtype=torch.uint8, device=device)


def _other_profiler() -> str:
    """Why CUPTI is taken: its buffers belong to one client a process, and that may be kineto."""
    if torch._C._autograd._profiler_enabled():
        return "a torch.profiler session is active in this process, and CUPTI serves one at a time"
    return ""


def name_of(fn: Callable[..., object]) -> str:
    """A callable's own name, or its type's where it has none (modules, partials)."""
    if isinstance(fn, functools.partial):
        return name_of(fn.func)
    return getattr(fn, "__name__", type(fn).__name__)


def _resolve_device(
    candidates: list[Candidate], requested: torch.device | str | None
) -> tuple[torch.device, str]:
    """The device that the work runs on, and how that is known."""
    if requested is None:
        device, reason = _find_device(candidates)
    else:
        reason = "asked for"
        try:
            device = torch.device(requested)
        except (RuntimeError, TypeError):
            raise ValueError(f"device must be a CPU or a CUDA device, got {requested!r}") from None
    if device.type == "cpu":
        return device, reason
    if device.type != "cuda":
        raise ValueError(f"device must be a CPU or a CUDA device, got {str(device)!r}")
    count = torch.cuda.device_count()
    if count == 0:
        raise ValueError(f"device {str(device)!r} was asked for and there is no CUDA device")
    index = torch.cuda.current_device() if device.index is None else device.index
    if not 0 <= index < count:
        raise ValueError(f"device must be below cuda:{count} on this machine, got {requested!r}")
    return torch.device("cuda", index), reason


def _find_device(candidates: list[Candidate]) -> tuple[torch.device, str]:
    devices = [tensor.device for candidate in candidates for tensor in _tensors_of(candidate)]
    on_gpu = [device for device in devices if device.type == "cuda"]
    if on_gpu:
        return on_gpu[0], "a tensor on it was found"
    if devices:
        return torch.device("cpu"), "only tensors on the CPU were found"
    if _C.cuda_available():
        return torch.device("cuda"), "assumed: no tensor was found, and there is a GPU"
    return torch.device("cpu"), "there is no GPU"


def _tensors_of(candidate: Candidate) -> Iterator[torch.Tensor]:
    yield from _tensors_in((candidate.fn, candidate.args, dict(candidate.kwargs)))
    fn = candidate.fn
    while isinstance(fn, functools.partial):
        yield from _tensors_in((fn.func, fn.args, fn.keywords))
        fn = fn.func
    owner = getattr(fn, "__self__", fn)  # of a bound method, or a callable object
    yield from _tensors_in((owner, dict(getattr(owner, "__dict__", {}))))
    if inspect.isfunction(fn):
        try:
            variables = inspect.getclosurevars(fn)
        except ValueError:  # a variable of the closure has no value yet
            return
        yield from _tensors_in((dict(variables.nonlocals), dict(variables.globals)))


def _tensors_in(tree: object) -> Iterator[torch.Tensor]:
    leaves: Iterable[object] = pytree.tree_leaves(tree)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif isinstance(leaf, torch.nn.Module):
            yield from leaf.parameters()
            yield from leaf.buffers()
