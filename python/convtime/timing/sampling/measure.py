"""Prepare candidates and devices for the sampler in C++; make Measurements of its samples."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

import torch

from convtime.core.checks import require
from convtime.core.load import _C
from convtime.device.provenance import gpu_uuid, provenance
from convtime.device.resolve import resolve_device
from convtime.timing import group_timer
from convtime.timing.activity import DeviceActivity
from convtime.timing.candidate import Candidate, clearing_gradients
from convtime.timing.measurement import CONDITIONS, Condition, HostReading, Measurement
from convtime.timing.options import BatchRecord, Options
from convtime.timing.sampling import inputs
from convtime.timing.sampling.calls import (
    current_stream,
    governed_pages,
    pinned,
    plain_warmup,
    prepared_calls,
    sample,
    without_persisting_lines,
)
from convtime.timing.sampling.object_graph import (
    Walk,
    some_tensors,
    tensors_of,
)

if TYPE_CHECKING:
    import torch.distributed as dist

    from convtime.device.clocks import ClockMonitor

Log = Callable[[BatchRecord], object]

_watcher: Callable[[Options], AbstractContextManager[Log]] | None = None


class TimeLimit:
    """Time limit of a timing, starting now.

    Args:
        timeout: seconds, a number of any type; None for no limit.
    """

    def __init__(self, timeout: float | None) -> None:
        self._seconds = math.inf if timeout is None else float(timeout)
        self._end = monotonic() + self._seconds

    @property
    def seconds_left(self) -> float:
        """Seconds until the limit, infinite without one; negative after it."""
        return self._end - monotonic()

    def check(self, cause: str = "") -> None:
        """Raise a TimeoutError that names the cause if the limit has passed."""
        if self.seconds_left <= 0:
            raise self._error(cause)

    @contextlib.contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Translate the core's error for a limit that passed before the first sample."""
        try:
            yield
        except _C.DeadlineError as error:
            raise self._error(str(error).partition(": ")[2]) from None

    def _error(self, cause: str) -> TimeoutError:
        why = f" ({cause})" if cause else ""
        return TimeoutError(
            f"timeout={self._seconds:g} s passed before there was a sample{why}; allow more time"
        )


def watch_with(watcher: Callable[[Options], AbstractContextManager[Log]] | None) -> None:
    """Set the function that makes a log for each timing without one; None to unset it."""
    global _watcher
    _watcher = watcher


@contextlib.contextmanager
def watched(options: Options) -> Iterator[Options]:
    """Return a timing's options, with the watcher's log if they have none."""
    if _watcher is None or options.log is not None:
        yield options
        return
    with _watcher(options) as log:
        yield dataclasses.replace(options, log=log)


_PATIENCE_SECONDS = 60.0  # wait for others that time on the same GPU
_MOST_OBJECTS = 200_000  # searched for tensors, within a fraction of a second
_FEW_OBJECTS = 500  # of each candidate searched in any case, within a millisecond

_QUICK_SECONDS = 0.01  # per candidate, for everything in a quick timing
# Of these, for what follows the preparation and is not sampling: starting the tracer, first calls,
# and reading the conditions afterwards.
_OTHER_SECONDS = 0.0042
_LEAST_SECONDS = 0.001
_REQUIRED_SAMPLES = 5


@dataclasses.dataclass(frozen=True)
class WorkDevices:
    """Devices of the work.

    Attributes:
        device: the CPU or a GPU.
        others: other GPUs that the work uses.
        reason: how the device was found.
    """

    device: torch.device
    others: tuple[torch.device, ...]
    reason: str

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    @property
    def gpus(self) -> tuple[torch.device, ...]:
        """All GPUs that the work uses."""
        return (self.device, *self.others) if self.on_gpu else ()


def measure(
    candidates: Sequence[Candidate],
    options: Options,
    *,
    limit: TimeLimit | None = None,
    supervisor: object = None,
) -> list[Measurement]:
    """Time candidates interleaved, in rounds; sample i of each comes from the same round.

    ``limit`` is the time limit of an enclosing call. Default: the timeout of ``options`` from now.
    ``supervisor`` is an object with the functions of ``BatchAgreement`` in
    csrc/timing/supervision.h, which makes each decision of the sampler for all ranks of a process
    group. Default: this process decides alone.
    """
    start = perf_counter()
    limit = limit or TimeLimit(options.timeout)
    tensors_found = [some_tensors(candidate, _FEW_OBJECTS) for candidate in candidates]
    devices = find_devices(candidates, options.device, tensors_found)
    _refuse_contradictions(candidates, options, devices)
    candidates = [clearing_gradients(candidate) for candidate in candidates]
    pin = None if options.pin is None else int(options.pin)
    gpus, on_gpu = devices.gpus, devices.on_gpu
    refuse_capture(devices, options.stream)
    # Before the timing loads the machine, and without using up its time.
    before = provenance(devices.device, patience=limit.seconds_left / 2)
    with take_turn(devices, options, limit) as turn:
        _await_gpus(devices, limit)
        remarks = inputs.remarks_on(
            candidates, [tensors for tensors, _ in tensors_found], on_gpu=on_gpu
        )
        with (
            on(devices.device, options.stream),
            controlled_clocks(devices.device, options) as monitor,
            limit.named_in_errors(),
            prepared_calls(candidates, options, devices.device) as prepared,
            without_persisting_lines(options.cache, gpus) as set_aside,
            governed_pages(options.pages, on_gpu=on_gpu) as pages,
            pinned(pin),  # last: threads that start inside it inherit the pin
        ):
            stream = current_stream(devices.device) if on_gpu else None
            sampling = options
            if options.quick:
                elapsed = perf_counter() - start - turn["waited_seconds"]
                sampling = quick_sampling(options, elapsed, len(candidates), on_gpu=on_gpu)
            warmup_requested = plain_warmup(options)
            records = sample(prepared, sampling, gpus, stream or 0, limit.seconds_left, supervisor)
            of_pages = pages()
    for record in records:
        record["cache_reason"] = "; ".join(filter(None, (record["cache_reason"], set_aside)))
    return [
        Measurement(
            name=candidate.name,
            inputs=of_inputs,
            pages=of_pages,
            clocks=options.clocks,
            conditions=() if monitor is None else monitor.readings,
            conditions_reason="" if monitor is None else monitor.reason,
            pin=pin,
            device=str(devices.device),
            device_reason=devices.reason,
            **turn,
            stream=stream,
            warmup_requested=warmup_requested,
            stop=options.stop,
            provenance=before,
            **_fields(record, options, sampling),
        )
        for candidate, of_inputs, record in zip(
            candidates, inputs.sentences(remarks), records, strict=True
        )
    ]


def quick_sampling(options: Options, elapsed: float, candidates: int, *, on_gpu: bool) -> Options:
    """Return the options with which the sampling of a quick timing ends in time.

    Args:
        options: the requested options.
        elapsed: seconds that the timing has taken so far.
        candidates: number of candidates.
        on_gpu: whether the work is on a GPU.
    """
    left = candidates * (_QUICK_SECONDS - _OTHER_SECONDS) - elapsed
    return dataclasses.replace(
        options,
        regime="as-is" if on_gpu else options.regime,
        warmup=1 if isinstance(options.warmup, str) else options.warmup,
        min_samples=(
            _REQUIRED_SAMPLES if options.min_samples == Options.min_samples else options.min_samples
        ),
        budget=min(options.budget, max(left, _LEAST_SECONDS)),
    )


def _await_gpus(devices: WorkDevices, limit: TimeLimit) -> None:
    """Wait for earlier work of the GPUs, until the limit; do nothing without a limit."""
    left, gpus = limit.seconds_left, [gpu.index for gpu in devices.gpus]
    if gpus and math.isfinite(left) and not _C.idle_within(gpus, max(0.0, left)):
        limit.check("the GPU was still busy with earlier work")


def find_devices(
    candidates: Sequence[Candidate],
    requested: torch.device | str | int | None,
    tensors_found: Sequence[tuple[list[torch.Tensor], bool]] | None = None,
) -> WorkDevices:
    """Find the device of the work, the other GPUs that it uses, and the reason for the device.

    Args:
        candidates: the candidates to time.
        requested: the device that the caller asked for.
        tensors_found: the known tensors of each candidate, and whether these are all; further ones
            are searched.
    """
    known = None if requested is None else resolve_device(requested)
    gpu_count = torch.cuda.device_count() if _C.cuda_available() else 0
    if known is not None and (known.type != "cuda" or gpu_count == 1):
        return WorkDevices(known, (), "asked for")
    of_tensors: dict[torch.device, None] = {}
    gpus: list[torch.device] = []
    tensors = itertools.chain.from_iterable(some for some, _ in tensors_found or ())
    walk = None
    if tensors_found is None or (gpu_count and not all(is_all for _, is_all in tensors_found)):
        walk = Walk(_MOST_OBJECTS)
        further = (tensors_of(candidate, walk) for candidate in candidates)
        tensors = itertools.chain(tensors, itertools.chain.from_iterable(further))
    for tensor in tensors:
        of_tensors[tensor.device] = None
        gpus = [device for device in of_tensors if device.type == "cuda"][:gpu_count]
        if gpu_count and len(gpus) == gpu_count:
            break
    if known is not None:
        device, reason = known, "asked for"
    elif gpus:
        device, reason = gpus[0], "a tensor on it was found"
    elif of_tensors:
        device, reason = torch.device("cpu"), f"only tensors on {_kinds(of_tensors)} were found"
    elif gpu_count:
        device = resolve_device("cuda")
        reason = "assumed: no tensor was found, and there is a GPU"
    else:
        device, reason = torch.device("cpu"), "there is no GPU"
    others = tuple(gpu for gpu in gpus if gpu != device) if device.type == "cuda" else ()
    if walk is not None and walk.ended_early and gpu_count:
        reason += f"; of the objects that the calls refer to, {_MOST_OBJECTS:,} were searched"
    return WorkDevices(device, others, reason)


def _kinds(devices: Iterable[torch.device]) -> str:
    names = {"cpu": "the CPU", "meta": "meta (without data)"}
    return " and ".join(dict.fromkeys(names.get(device.type, device.type) for device in devices))


def check_arguments(
    candidates: Sequence[Candidate], options: Options, devices: WorkDevices
) -> None:
    """Check what :func:`measure` would otherwise refuse while it begins.

    Raises:
        ValueError: the options do not fit each other, the candidates or this machine.
    """
    options.check_ranges()
    _refuse_contradictions(candidates, options, devices)
    with on(devices.device, options.stream):
        pass


def _refuse_contradictions(
    candidates: Sequence[Candidate], options: Options, devices: WorkDevices
) -> None:
    on_gpu = devices.on_gpu
    has_records = on_gpu and options.method in ("auto", "kernel")
    where = f"method {options.method!r}" if on_gpu else "this work is on the CPU"
    require(
        options.method != "graph" or not any(each.acts_before_calls for each in candidates),
        "method 'graph' captures calls back to back, and can run nothing between "
        "them: no setup, no grad_to_none, no forward pass for backward=True; use 'kernel'",
    )
    require(
        options.cache != "rotate" or not any(each.grad_to_none for each in candidates),
        "grad_to_none must not name tensors with cache='rotate', which copies them; use "
        "backward=True, or cache='cold'",
    )
    require(
        options.metric == "busy" or has_records,
        f"metric {options.metric!r} needs a GPU's activity records, which only method "
        f"'kernel' has, got {where}; leave out metric, or use method='kernel' for work on a GPU",
    )
    require(
        options.pages in ("auto", "as-is") or not on_gpu,
        f"pages={options.pages!r} is for work on the CPU, and this work is on {devices.device}; "
        "leave out pages, or use 'as-is'",
    )
    require(
        options.clocks != "lock" or on_gpu,
        "clocks='lock' locks a GPU's clocks, and this work is on the CPU",
    )


@contextlib.contextmanager
def on(device: torch.device, stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Make a device and one of its streams current.

    Raises:
        ValueError: for a stream of another device.
    """
    if stream is not None and stream.device != device:
        raise ValueError(
            f"stream must be on {device}, the device of the work, got a stream on {stream.device}"
        )
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device), torch.cuda.stream(stream):
        yield


@contextlib.contextmanager
def controlled_clocks(device: torch.device, options: Options) -> Iterator[ClockMonitor | None]:
    """Lock the GPU's clocks if requested; monitor them if they must be in a certain state.

    Not for ``auto``: its calls are mostly short, and this would take longer than they do.
    """
    in_regime = options.regime in ("burst", "sustained")
    if device.type != "cuda" or not (in_regime or options.clocks == "lock"):
        yield None
        return
    # Imported here: NVML and files, which few calls need.
    from convtime.device.clock_lock import locked_clocks
    from convtime.device.clocks import ClockMonitor

    with contextlib.ExitStack() as stack:
        if options.clocks == "lock":
            stack.enter_context(locked_clocks(device=device))
        yield stack.enter_context(ClockMonitor(device))


def refuse_capture(devices: WorkDevices, stream: torch.cuda.Stream | None) -> None:
    """Refuse work on GPUs while a CUDA graph captures a stream that it would use.

    Raises:
        ValueError: for such a stream; nothing was issued to it.
    """
    for gpu in devices.gpus:
        with torch.cuda.device(gpu):
            capturing = torch.cuda.is_current_stream_capturing()
        if not capturing and stream is not None and stream.device == gpu:
            with torch.cuda.stream(stream):
                capturing = torch.cuda.is_current_stream_capturing()
        if capturing:
            raise ValueError(
                f"a stream of {gpu} is being captured in a CUDA graph, and timing waits for the "
                "GPU, which invalidates a capture; time before or after the capture, or time the "
                "graph's replays"
            )


@contextlib.contextmanager
def take_turn(devices: WorkDevices, options: Options, limit: TimeLimit) -> Iterator[dict[str, Any]]:
    """Wait for others that time on the GPUs; yield the fields of a Measurement about the wait.

    Raises:
        ValueError: as :func:`refuse_capture`.
    """
    refuse_capture(devices, options.stream)
    gpus = _uuids(devices)
    if not (gpus and options.exclusive):
        reason = "the work is on the CPU" if options.exclusive else ""
        yield {"exclusive": Condition(False, options.exclusive, reason), "waited_seconds": 0.0}
        return
    # Imported here: locks and files, which work on the CPU does not need.
    from convtime.device.gpu_turn import turn

    with turn(gpus, min(_PATIENCE_SECONDS, limit.seconds_left)) as came:
        limit.check(came.disturbed_by)
        alone = Condition(not came.disturbed_by, options.exclusive, came.disturbed_by)
        yield {"exclusive": alone, "waited_seconds": came.waited_seconds}


def _uuids(devices: WorkDevices) -> list[str]:
    return [gpu_uuid(gpu) for gpu in devices.gpus]


def _fields(record: dict[str, Any], options: Options, sampling: Options) -> dict[str, Any]:
    """Return the fields of a Measurement that differ between candidates.

    Args:
        record: a candidate's record by the core, and how its calls were made.
        options: the requested options.
        sampling: the options with which it was sampled.
    """
    by_records = record["method"] == "kernel"
    host = tuple(HostReading(**reading) for reading in record["host"])
    counters_reason = record["counters_reason"]
    if host and not counters_reason and all(reading.instructions is None for reading in host):
        counters_reason = (
            "every reading of the counters includes calls of other candidates or of the warm-up; "
            "time the call alone, with more samples"
        )
    fields = {
        **record,
        "metric": options.metric if by_records else "elapsed",
        "metric_reason": "" if by_records else f"method {record['method']!r} has no other",
        "activities": tuple(DeviceActivity(**activity) for activity in record["activities"]),
        "host": host,
        "counters_reason": counters_reason,
        "steady": record["steady"] if sampling.warmup == "steady" else None,
    }
    if options.quick and options.regime == "auto" and not fields["regime_reason"]:
        fields["regime_reason"] = "quick timing does not let the GPU idle"
    for name in fields.keys() & {*CONDITIONS}:
        reason = fields.pop(f"{name}_reason")
        fields[name] = Condition(fields[name], getattr(options, name), reason)
    return fields


def measure_here_or_in_group(
    candidates: Sequence[Candidate],
    options: Options,
    group: dist.ProcessGroup | None,
    limit: TimeLimit | None = None,
) -> list[Measurement]:
    """Time candidates in this process, or with all ranks of a group if it is given or needed.

    Without a group, every rank finds out in the first call that it communicates.
    """
    with watched(options) as logged:
        if group is None:
            with contextlib.suppress(_C.CollectiveRefused):
                return measure(candidates, logged, limit=limit)
        return group_timer.load().measure_in_group(candidates, logged, group)


@contextlib.contextmanager
def reporting_errors(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Tell the other ranks of a group if this rank does not begin to measure, because of an error.

    Does nothing without a group.
    """
    try:
        yield
    except Exception as error:
        if group is not None:
            group_timer.load().report_error(group, error)
        raise
