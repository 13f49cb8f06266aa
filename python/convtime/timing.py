"""Timing callables: lays out what is timed, and where, for the sampler in C++."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import torch

from convtime import host
from convtime._load import _C
from convtime.candidate import Candidate, backward_of, clearing_gradients, name_of, tensors_of
from convtime.ceilings import Ceilings, measure_ceilings
from convtime.measurement import DeviceActivity, Measurement
from convtime.provenance import provenance
from convtime.rotation import Rotation, rotate

if TYPE_CHECKING:
    from typing_extensions import TypedDict

    from convtime.clocks import ClockMonitor

    class OptionsDict(TypedDict, total=False):
        """The options that ``time_op`` and ``compare`` share."""

        method: str
        queue: str
        cache: str
        regime: str
        clocks: str
        pin: int | None
        device: torch.device | str | None
        stream: torch.cuda.Stream | None
        warmup: str | SupportsFloat
        tolerance: float
        min_samples: int
        max_samples: int
        budget: float


_CHOICES = {
    "cache": ("auto", "cold", "warm", "rotate"),
    "clocks": ("observe", "lock"),
}
#: Why a CPU's cache was not controlled, by what was asked for.
_CPU_CACHE = {
    "auto": "a flush takes milliseconds on a CPU; cache='cold' asks for it",
    "cold": "this machine does not say how much its CPUs' caches hold",
    "warm": "of a CPU's cache, only cache='cold' is controlled",
    "rotate": "of a CPU's cache, only cache='cold' is controlled",
}
_CALLS_BEFORE_STEADY = 3
_MAX_STEADY_SECONDS = 1.0
_ROTATION_OVER_L2 = 5


@dataclasses.dataclass(frozen=True)
class Options:
    """How to time; see :func:`time_op`."""

    method: str = "auto"
    queue: str = "gate"
    cache: str = "auto"
    regime: str = "as-is"
    clocks: str = "observe"
    pin: int | None = None
    device: torch.device | str | None = None
    stream: torch.cuda.Stream | None = None
    warmup: str | SupportsFloat = "steady"
    stop: str = "interval"
    tolerance: float = 0.005
    margin: float = 0.01
    min_samples: int = 10
    max_samples: int = 10_000
    budget: float = 1.0

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} must be one of {str(allowed)[1:-1]}, got {getattr(self, name)!r}"
                )
        if not (self.pin is None or _is_count(self.pin)):
            raise ValueError(f"pin must be the number of a CPU, 0 or more, got {self.pin!r}")
        for name in ("method", "queue", "regime", "stop"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a string, got {getattr(self, name)!r}")
        for name in ("min_samples", "max_samples"):
            if not _is_count(getattr(self, name)):
                raise ValueError(
                    f"{name} must be a whole number, 0 or more, got {getattr(self, name)!r}"
                )
        for name in ("budget", "tolerance", "margin"):
            if not _is_finite(getattr(self, name)):
                raise ValueError(f"{name} must be a number, got {getattr(self, name)!r}")
        steady = isinstance(self.warmup, str) and self.warmup == "steady"
        if not (steady or _is_count(self.warmup) or _is_duration(self.warmup)):
            raise ValueError(
                "warmup must be 'steady', a whole number of calls or a float of seconds, 0 or "
                f"more, got {self.warmup!r}"
            )
        if self.stream is not None and not isinstance(self.stream, torch.cuda.Stream):
            raise TypeError(f"stream must be a torch.cuda.Stream, got {self.stream!r}")


def _is_count(value: object) -> bool:
    try:
        return isinstance(value, SupportsIndex) and 0 <= value.__index__() <= sys.maxsize
    except TypeError:  # of tensors and arrays, some of which are numbers
        return False


def _is_finite(value: object) -> bool:
    try:
        return not isinstance(value, str | bytes) and abs(float(value)) < float("inf")  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def _is_duration(value: object) -> bool:
    return _is_finite(value) and float(value) >= 0  # type: ignore[arg-type]


def time_op(
    fn: Callable[..., object],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    setup: Callable[[], object] | None = None,
    grad_to_none: Iterable[torch.Tensor] | None = None,
    backward: bool = False,
    flops: float | None = None,
    nbytes: float | None = None,
    method: str = "auto",
    queue: str = "gate",
    cache: str = "auto",
    regime: str = "as-is",
    clocks: str = "observe",
    pin: int | None = None,
    device: torch.device | str | None = None,
    stream: torch.cuda.Stream | None = None,
    warmup: str | SupportsFloat = "steady",
    stop: str = "interval",
    tolerance: float = 0.005,
    min_samples: int = 10,
    max_samples: int = 10_000,
    budget: float = 1.0,
) -> Measurement:
    """Times ``fn(*args, **kwargs)``, called from C++ until its median is known well enough.

    Args:
        fn: what is timed. Its result is dropped after the timed region; it may return None.
        args: its positional arguments.
        kwargs: its keyword arguments.
        name: what the result is called; the function's own name unless given.
        setup: called without arguments before each call, outside of the timed region and before the
            cache is flushed; what it issues to the GPU is not timed either.
        grad_to_none: tensors whose ``grad`` is set to None before each call, outside of the timed
            region, so that a backward pass in ``fn`` writes gradients instead of adding to them.
        backward: times the backward pass of ``fn``'s result instead, with random gradients; the
            forward pass runs before each call, outside of the timed region. Gradients are set to
            None first, and are the last call's when it is over.
        flops: floating-point operations of a call, to be set against what this device reaches.
        nbytes: bytes that a call has to move, likewise.
        method: ``kernel`` (the device's own time for the kernels, copies and memsets that the call
            issues on any stream, from CUPTI's records), ``event`` (between two CUDA events on the
            current stream, less their own cost), ``graph`` (one of many calls captured in CUDA
            graphs, less the gap between them), ``sync`` (host clock between two idle states of the
            device), ``cpu`` (host clock around the call, on an idle device) or ``auto``: for work
            on a GPU kernel, or event where CUPTI cannot be used; else cpu.
        queue: ``gate`` keeps the GPU from starting until a batch of calls is issued, so that short
            ones are not timed as gaps between launches; ``sleep`` does so with a kernel that sleeps
            for a time estimated beforehand; ``none`` does not. A callable that waits for the GPU
            itself cannot be queued; the result then says so.
        cache: ``cold`` overwrites the cache before each call, outside of the timed region: a GPU's
            L2 cache, or all of the CPU's caches, which takes milliseconds; ``rotate`` gives each
            call other copies of its tensors, so many that they are cold when their turn comes
            again, on a GPU; ``warm`` leaves the cache as the call before left it; ``auto`` is cold
            on a GPU, and leaves a CPU's cache as it is.
        regime: ``burst`` lets the GPU idle between batches of calls, for as long as it takes to
            keep it at the highest clock that it gives these calls; ``sustained`` runs them back
            to back until neither times nor clocks drift any more, for 2.5 s at least and 8 s at
            most, and times some of them, without a pause before; ``as-is`` takes the GPU as it is.
            Where the state asked for is not reached, the result's ``regime`` is ``as-is``, and
            says why.
            Idling does not count into ``budget``, calls between the timed ones do. It lasts 10 s at
            most, after which sampling ends as by the budget.
        clocks: ``observe`` leaves the GPU's clocks alone; ``lock`` locks them while it times (see
            :func:`convtime.locked_clocks`).
        pin: the CPU that the calling thread is kept on meanwhile. Threads that are there already,
            such as torch's own, run where they did; threads that the calls start stay on that CPU.
        device: where the work runs. Unless given: the GPU of the first CUDA tensor found in
            arguments, closure or module parameters, the CPU where only CPU tensors are found, and
            the current GPU (where there is one) if no tensor is found.
        stream: what is made the current stream for the calls; the current one unless given.
        warmup: ``steady``: until neither times nor clocks drift any more, for 0.08 s at least and a
            second (or the budget, if that is less) at most, and what was steady is sampled
            already; a whole number: so many calls; a float: so many seconds. One call is always
            made.
        stop: when sampling ends, beside ``max_samples`` and ``budget``: ``interval`` (half the
            width of the median's 95 % interval is at most ``tolerance`` of it), ``noise`` (the
            standard deviation is at most ``tolerance`` of the mean, or changes no more),
            ``entropy`` (the samples' distribution changes no more), ``count`` (max_samples alone)
            or ``budget`` (the budget alone).
        tolerance: of ``interval`` and ``noise``.
        min_samples: samples taken at least, also beyond the budget.
        max_samples: samples taken at most.
        budget: seconds after which sampling ends; neither warm-up nor idling is counted.

    Returns:
        The samples in seconds, with method, conditions and provenance.

    Raises:
        TypeError: if ``fn`` is not callable.
        ValueError: for an option outside of its range, options that contradict each other, a GPU
            method or ``clocks="lock"`` for work on the CPU, or a CPU to ``pin`` to that the thread
            may not run on.
        PermissionError: for ``clocks="lock"`` where this user may not lock them; it says what to
            run.
        RuntimeError: for a failure of CUDA, where ``method="kernel"`` cannot be had, or where
            ``method="graph"`` cannot capture the call. Whatever ``fn`` raises passes through.
    """
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a mapping of names to values, got {kwargs!r}")
    candidate = Candidate(name or name_of(fn), fn, args, kwargs or {}, setup)
    options = Options(
        method=method,
        queue=queue,
        cache=cache,
        regime=regime,
        clocks=clocks,
        pin=pin,
        device=device,
        stream=stream,
        warmup=warmup,
        stop=stop,
        tolerance=tolerance,
        min_samples=min_samples,
        max_samples=max_samples,
        budget=budget,
    )
    if stop == "verdict":
        raise ValueError("stop='verdict' needs something to compare with; use convtime.compare")
    for what, value in (("flops", flops), ("nbytes", nbytes)):
        if value is not None and not (_is_finite(value) and value > 0):
            raise ValueError(f"{what} must be a positive number, got {value!r}")
    if grad_to_none is not None:
        if cache == "rotate":
            raise ValueError(
                "grad_to_none names tensors that cache='rotate' copies; use backward=True, or "
                "cache='cold'"
            )
        candidate = clearing_gradients(candidate, grad_to_none)
    if flops is None and nbytes is None:
        return measure([candidate], options, backward=backward)[0]
    reached = ceilings(_resolve_devices([candidate], device)[0])
    (result,) = measure([candidate], options, backward=backward)
    return dataclasses.replace(
        result,
        flops=None if flops is None else float(flops),
        nbytes=None if nbytes is None else float(nbytes),
        ceilings=reached,
    )


def ceilings(device: torch.device | str | None = None) -> Ceilings:
    """The rates that a device reaches in a large copy and a large matmul, measured once a process.

    Args:
        device: a CPU or a CUDA device; the current GPU unless given, or the CPU without one.

    Raises:
        ValueError: for another device.
    """
    if device is None:
        device = "cuda" if _C.cuda_available() else "cpu"
    return measure_ceilings(_check_device(device), time_op)


def measure(
    candidates: list[Candidate], options: Options, *, backward: bool = False
) -> list[Measurement]:
    """Times candidates interleaved, in rounds; sample i of each comes from the same round."""
    device, others, device_reason = _resolve_devices(candidates, options.device)
    on_gpu = device.type == "cuda"
    if options.method == "graph" and (backward or any(one.setup for one in candidates)):
        raise ValueError(
            "method 'graph' captures calls right behind each other, and can do nothing between "
            "them: no setup, no grad_to_none, no forward pass for backward=True; use 'kernel'"
        )
    if options.clocks == "lock" and not on_gpu:
        raise ValueError("clocks='lock' locks a GPU's clocks, and this work is on the CPU")
    rotations = _rotations(candidates, device, options)
    copies = [one.copies for one in rotations]
    if backward:
        copies = [tuple(map(backward_of, one)) for one in copies]
    cpu_flush = host.flush_buffer() if options.cache == "cold" and not on_gpu else None
    if cpu_flush is not None:
        copies = [tuple(host.flushing(each, cpu_flush) for each in one) for one in copies]
    pin = None if options.pin is None else int(options.pin)
    where = provenance(device)  # before the load of the timing itself
    with (
        _on(device, options.stream),
        _controlled_clocks(device, options) as monitor,
        host.pinned(pin),  # last: threads that are started inside of it are pinned, too
    ):
        stream = torch.cuda.current_stream(device).cuda_stream if on_gpu else 0
        cold = on_gpu and options.cache in ("auto", "cold")
        flush = [_flush_buffer(one) for one in (device, *others)] if cold else []
        records = _C.time_candidates(
            candidates=[
                [(one.fn, one.args, dict(one.kwargs), one.setup) for one in each] for each in copies
            ],
            method=options.method,
            queue=options.queue,
            regime=options.regime,
            on_gpu=on_gpu,
            stream=stream,
            flush=[
                (one.data_ptr(), one.nbytes, one.get_device(), _current_stream(one.device))
                for one in flush
            ],
            other_devices=[one.index for one in others],
            kernel_unavailable=_other_profiler(),
            **_warmup(options),
            stop=options.stop,
            min_samples=int(options.min_samples),
            max_samples=int(options.max_samples),
            budget=float(options.budget),
            tolerance=float(options.tolerance),
            margin=float(options.margin),
        )
    return [
        Measurement(
            name=candidate.name,
            method_requested=options.method,
            queue_requested=options.queue,
            **_cache_used(rotation, on_gpu, options.cache, flushed=cpu_flush is not None),
            cache_requested=options.cache,
            regime_requested=options.regime,
            clocks=options.clocks,
            conditions=() if monitor is None else monitor.readings,
            conditions_reason="" if monitor is None else monitor.reason,
            pin=pin,
            device=str(device),
            device_reason=device_reason,
            stream=stream if on_gpu else None,
            warmup_requested=_plain(options.warmup),
            stop=options.stop,
            flops=None,
            nbytes=None,
            ceilings=None,
            provenance=where,
            **_sampled(record, to_be_steady=options.warmup == "steady"),
        )
        for record, candidate, rotation in zip(records, candidates, rotations, strict=True)
    ]


def _sampled(record: _C.Timing, *, to_be_steady: bool) -> dict[str, Any]:
    """What the core says of a candidate, as fields of its measurement."""
    fields: dict[str, Any] = dict(record)
    fields["activities"] = tuple(DeviceActivity(**activity) for activity in record["activities"])
    fields["sm_clocks"] = fields.pop("sm_clocks_hz")
    fields["max_sm_clock"] = fields.pop("max_sm_clock_hz")
    fields["steady"] = record["steady"] if to_be_steady else None
    return fields


def _warmup(options: Options) -> dict[str, Any]:
    asked = _plain(options.warmup)
    if isinstance(asked, str):
        calls, seconds = _CALLS_BEFORE_STEADY, 0.0
    else:
        calls, seconds = (asked, 0.0) if isinstance(asked, int) else (1, asked)
    return {
        "warmup_calls": calls,
        "warmup_seconds": seconds,
        "warmup_steady": options.warmup == "steady",
        "max_steady_seconds": min(_MAX_STEADY_SECONDS, float(options.budget)),
    }


def _plain(warmup: str | SupportsFloat) -> str | int | float:
    if isinstance(warmup, str):
        return warmup
    return int(warmup) if isinstance(warmup, SupportsIndex) else float(warmup)


def _rotations(
    candidates: list[Candidate], device: torch.device, options: Options
) -> list[Rotation]:
    if options.cache != "rotate" or device.type != "cuda":
        return [Rotation((one,), 0, ()) for one in candidates]
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    return [rotate(one, device, _ROTATION_OVER_L2 * l2_bytes) for one in candidates]


def _cache_used(
    rotation: Rotation, on_gpu: bool, requested: str, *, flushed: bool
) -> dict[str, Any]:
    """``cache`` and ``cache_reason`` of a measurement; ``flushed`` says whether a CPU's was."""
    if flushed:
        return {"cache": "cold", "cache_reason": ""}
    if not on_gpu:
        return {"cache": "uncontrolled", "cache_reason": _CPU_CACHE[requested]}
    if rotation.left_warm:
        return {
            "cache": "partly warm" if rotation.bytes_per_call else "warm",
            "cache_reason": "not rotated: " + ", ".join(rotation.left_warm),
        }
    if requested == "auto":
        return {"cache": "cold", "cache_reason": "the work is on a GPU"}
    return {"cache": requested, "cache_reason": ""}


@contextlib.contextmanager
def _controlled_clocks(device: torch.device, options: Options) -> Iterator[ClockMonitor | None]:
    """Locks the GPU's clocks if asked for; reads them where they are to be in a certain state."""
    if device.type != "cuda" or (options.regime == "as-is" and options.clocks == "observe"):
        yield None
        return
    from convtime.clocks import ClockMonitor, locked_clocks  # NVML, which few calls need

    with contextlib.ExitStack() as stack:
        if options.clocks == "lock":
            stack.enter_context(locked_clocks(device=device))
        yield stack.enter_context(ClockMonitor(device))


@contextlib.contextmanager
def _on(device: torch.device, stream: torch.cuda.Stream | None) -> Iterator[None]:
    if stream is not None and stream.device != device:
        raise ValueError(
            f"stream must be one of {device}, where the work is, got one of {stream.device}"
        )
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device), torch.cuda.stream(stream):
        yield


def _flush_buffer(device: torch.device) -> torch.Tensor:
    return torch.empty(_C.flush_buffer_bytes(device.index), dtype=torch.uint8, device=device)


def _current_stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


def _other_profiler() -> str:
    """Why CUPTI is taken unless tools share it: kineto's buffers are the process's only ones."""
    if torch._C._autograd._profiler_enabled():
        return "a torch.profiler session is active in this process, and CUPTI serves one at a time"
    return ""


def _resolve_devices(
    candidates: list[Candidate], requested: torch.device | str | None
) -> tuple[torch.device, list[torch.device], str]:
    """The device that the work runs on, other GPUs that it uses, and how the former is known."""
    found = [tensor.device for candidate in candidates for tensor in tensors_of(candidate)]
    on_gpus = [device for device in dict.fromkeys(found) if device.type == "cuda"]
    if requested is not None:
        device, reason = _check_device(requested), "asked for"
    elif on_gpus:
        device, reason = on_gpus[0], "a tensor on it was found"
    elif found:
        device, reason = torch.device("cpu"), "only tensors on the CPU were found"
    elif _C.cuda_available():
        device = _check_device("cuda")
        reason = "assumed: no tensor was found, and there is a GPU"
    else:
        device, reason = torch.device("cpu"), "there is no GPU"
    others = [one for one in on_gpus if one != device] if device.type == "cuda" else []
    return device, others, reason


def _check_device(requested: torch.device | str) -> torch.device:
    """The device with its index. Raises ValueError for one that is not there."""
    try:
        device = torch.device(requested)
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be a CPU or a CUDA device, got {requested!r}") from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise ValueError(f"device must be a CPU or a CUDA device, got {str(device)!r}")
    count = torch.cuda.device_count()
    if count == 0:
        raise ValueError(f"device {str(device)!r} was asked for and there is no CUDA device")
    index = torch.cuda.current_device() if device.index is None else device.index
    if not 0 <= index < count:
        raise ValueError(f"device must be below cuda:{count} on this machine, got {requested!r}")
    return torch.device("cuda", index)
