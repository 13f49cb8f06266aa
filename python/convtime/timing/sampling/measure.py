"""Prepare candidates and devices for the sampler in C++; make Measurements of its samples."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import torch

from convtime.core.load import _C
from convtime.device.provenance import gpu_uuid, provenance
from convtime.device.resolve import resolve_device
from convtime.timing.activity import DeviceActivity
from convtime.timing.candidate import Candidate, clearing_gradients
from convtime.timing.measurement import CONDITIONS, Condition, HostReading, Measurement
from convtime.timing.options import Options
from convtime.timing.sampling import inputs, quick
from convtime.timing.sampling.calls import (
    PreparedCalls,
    flush_buffers,
    governed_pages,
    make_way_for_profilers,
    pinned,
    prepared_calls,
    without_persisting_lines,
)
from convtime.timing.sampling.reach import (
    SomeTensors,
    Walk,
    some_tensors,
    tensors_of,
    without_modes,
)

if TYPE_CHECKING:
    from convtime.device.clocks import ClockMonitor
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import monotonic
from typing import TYPE_CHECKING

from convtime.timing import group_timer
from convtime.timing.batch_record import BatchRecord

if TYPE_CHECKING:
    import torch.distributed as dist

Log = Callable[[BatchRecord], object]

_watcher: Callable[[Options], AbstractContextManager[Log]] | None = None


class TimeLimit:
    """Time limit of a timing, starting now.

    Args:
        seconds: duration; None for no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._end = monotonic() + self._seconds

    @classmethod
    def of(cls, timeout: float | None) -> TimeLimit:
        """Return the limit for a call's ``timeout``, which may be a number of any type."""
        return cls(None if timeout is None else float(timeout))

    @property
    def seconds_left(self) -> float:
        """Seconds until the limit; negative after it."""
        return self._end - monotonic()

    @property
    def is_finite(self) -> bool:
        """Whether there is a limit."""
        return math.isfinite(self._seconds)

    def check(self, cause: str = "") -> None:
        """Raise a TimeoutError that names the cause if the limit has passed."""
        if self.seconds_left <= 0:
            raise self._error(cause)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
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


def log_of(log: Log) -> Callable[[dict[str, Any]], object]:
    """Return the function that the core calls after each batch to log it."""
    numbers = itertools.count(1)
    return lambda fields: log(BatchRecord(number=next(numbers), **fields))


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


_CALLS_BEFORE_STEADY = 3
_MAX_STEADY_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0  # wait for others that time on the same GPU
_MOST_OBJECTS = 200_000  # searched for tensors, within a fraction of a second
_FEW_OBJECTS = 500  # of each candidate searched in any case, within a millisecond


@dataclasses.dataclass(frozen=True)
class Place:
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
    accord: object = None,
) -> list[Measurement]:
    """Time candidates interleaved, in rounds; sample i of each comes from the same round.

    ``limit`` is the time limit of an enclosing call. Default: the timeout of ``options`` from now.
    ``accord`` is an object with the functions of ``Accord`` in csrc/timing/supervision.h, through
    which the ranks of a process group agree on each decision of the sampler. Default: this process
    decides alone.
    """
    start = perf_counter()
    limit = limit or TimeLimit.of(options.timeout)
    reached = [some_tensors(candidate, _FEW_OBJECTS) for candidate in candidates]
    place = find_place(candidates, options.device, reached)
    _refuse_contradictions(candidates, options, place)
    candidates = [clearing_gradients(candidate) for candidate in candidates]
    pin = None if options.pin is None else int(options.pin)
    gpus, on_gpu = place.gpus, place.on_gpu
    refuse_capture(place, options.stream)
    # Before the timing loads the machine, and without using up its time.
    before = provenance(place.device, patience=limit.seconds_left / 2)
    with turn_on(place, options, limit) as turn:
        _await_gpus(place, limit)
        with without_modes(), torch.no_grad():
            remarks = inputs.remarks_on(
                candidates, [tensors.plain for tensors in reached], on_gpu=on_gpu
            )
        with (
            on(place.device, options.stream),
            controlled_clocks(place.device, options) as monitor,
            limit.told(),
            prepared_calls(candidates, options, place.device) as prepared,
            without_persisting_lines(options.cache, gpus) as set_aside,
            governed_pages(options.pages, on_gpu=on_gpu) as pages,
            pinned(pin),  # last: threads that start inside it inherit the pin
        ):
            stream = _current_stream(place.device) if on_gpu else None
            sampling = options
            if options.quick:
                gone = perf_counter() - start - turn["waited_seconds"]
                sampling = quick.hastened(options, gone, len(candidates), on_gpu=on_gpu)
            records = _sample(prepared, sampling, place, stream or 0, limit, accord)
            outcomes = [
                calls.outcome(record.pop("results_reason"))
                for calls, record in zip(prepared, records, strict=True)
            ]
            of_pages = pages()
    of_all: dict[str, Any] = {
        "pages": of_pages,
        "clocks": options.clocks,
        "conditions": () if monitor is None else monitor.readings,
        "conditions_reason": "" if monitor is None else monitor.reason,
        "pin": pin,
        "device": str(place.device),
        "device_reason": place.reason,
        **turn,
        "stream": stream,
        "warmup_requested": _plain(options.warmup),
        "stop": options.stop,
        "provenance": before,
    }
    for outcome in outcomes:
        outcome["cache_reason"] = "; ".join(filter(None, (outcome["cache_reason"], set_aside)))
    with without_modes(), torch.no_grad():
        sentences = [*map(inputs.sentences, remarks)]
    return [
        Measurement(
            name=candidate.name,
            inputs=of_inputs,
            **of_all,
            **_with_conditions(outcome | _fields(record, sampling), options),
        )
        for candidate, outcome, of_inputs, record in zip(
            candidates, outcomes, sentences, records, strict=True
        )
    ]


def _await_gpus(place: Place, limit: TimeLimit) -> None:
    """Wait for earlier work of the GPUs, until the limit; do nothing without a limit."""
    if (
        place.gpus
        and limit.is_finite
        and not _C.idle_within([gpu.index for gpu in place.gpus], max(0.0, limit.seconds_left))
    ):
        limit.check("the GPU was still busy with earlier work")


def find_place(
    candidates: Sequence[Candidate],
    requested: torch.device | str | int | None,
    reached: Sequence[SomeTensors] | None = None,
) -> Place:
    """Find the device of the work, the other GPUs that it uses, and the reason for the device.

    Args:
        candidates: the candidates to time.
        requested: the device that the caller asked for.
        reached: what is known of the tensors of each candidate; others are searched.
    """
    known = None if requested is None else resolve_device(requested)
    gpu_count = torch.cuda.device_count() if _C.cuda_available() else 0
    if known is not None and (known.type != "cuda" or gpu_count == 1):
        return Place(known, (), "asked for")
    found: dict[torch.device, None] = {}
    gpus: list[torch.device] = []
    tensors = itertools.chain.from_iterable(some.all for some in reached or ())
    walk = None
    if reached is None or (gpu_count and not all(some.complete for some in reached)):
        walk = Walk(_MOST_OBJECTS)
        further = (tensors_of(candidate, walk) for candidate in candidates)
        tensors = itertools.chain(tensors, itertools.chain.from_iterable(further))
    for tensor in tensors:
        found[tensor.device] = None
        gpus = [device for device in found if device.type == "cuda"][:gpu_count]
        if gpu_count and len(gpus) == gpu_count:
            break
    if known is not None:
        device, reason = known, "asked for"
    elif gpus:
        device, reason = gpus[0], "a tensor on it was found"
    elif found:
        device, reason = torch.device("cpu"), f"only tensors on {_kinds(found)} were found"
    elif gpu_count:
        device = resolve_device("cuda")
        reason = "assumed: no tensor was found, and there is a GPU"
    else:
        device, reason = torch.device("cpu"), "there is no GPU"
    others = tuple(gpu for gpu in gpus if gpu != device) if device.type == "cuda" else ()
    if walk is not None and walk.ended_early and gpu_count:
        reason += f"; of the objects that the calls refer to, {_MOST_OBJECTS:,} were searched"
    return Place(device, others, reason)


def _kinds(devices: Iterable[torch.device]) -> str:
    names = {"cpu": "the CPU", "meta": "meta (without data)"}
    return " and ".join(dict.fromkeys(names.get(device.type, device.type) for device in devices))


def check_arguments(candidates: Sequence[Candidate], options: Options, place: Place) -> None:
    """Check what :func:`measure` would otherwise refuse while it begins.

    Raises:
        ValueError: the options do not fit each other, the candidates or this machine.
    """
    options.check_ranges()
    _refuse_contradictions(candidates, options, place)
    with on(place.device, options.stream):
        pass


def _refuse_contradictions(candidates: Sequence[Candidate], options: Options, place: Place) -> None:
    if options.method == "graph" and any(each.acts_before_calls for each in candidates):
        raise ValueError(
            "method 'graph' captures calls back to back, and can run nothing between "
            "them: no setup, no grad_to_none, no forward pass for backward=True; use 'kernel'"
        )
    if options.cache == "rotate" and any(each.grad_to_none for each in candidates):
        raise ValueError(
            "grad_to_none must not name tensors with cache='rotate', which copies them; use "
            "backward=True, or cache='cold'"
        )
    if options.metric != "busy" and (not place.on_gpu or options.method not in ("auto", "kernel")):
        where = f"method {options.method!r}" if place.on_gpu else "this work is on the CPU"
        raise ValueError(
            f"metric {options.metric!r} needs a GPU's activity records, which only method "
            f"'kernel' has, got {where}; leave out metric, or use method='kernel' for work on a GPU"
        )
    if options.pages in ("fresh", "retained") and place.on_gpu:
        raise ValueError(
            f"pages={options.pages!r} is for work on the CPU, and this work is on {place.device}; "
            "leave out pages, or use 'as-is'"
        )
    if options.clocks == "lock" and not place.on_gpu:
        raise ValueError("clocks='lock' locks a GPU's clocks, and this work is on the CPU")


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


def _sample(
    prepared: Sequence[PreparedCalls],
    options: Options,
    place: Place,
    stream: int,
    limit: TimeLimit,
    accord: object,
) -> list[dict[str, Any]]:
    """Return a record for each candidate: the Measurement fields that the core provides."""
    if place.gpus:
        make_way_for_profilers()
    flush = flush_buffers(options.cache, place.gpus)
    described = [*map(PreparedCalls.described, prepared)]
    return _C.time_candidates(
        candidates=described,
        method=options.method,
        metric=options.metric,
        queue=options.queue,
        regime=options.regime,
        on_gpu=place.on_gpu,
        stream=stream,
        flush=[
            (
                buffer.data_ptr(),
                buffer.nbytes,
                buffer.get_device(),
                _current_stream(buffer.device),
                options.cache == "cold-clean",
            )
            for buffer in flush
        ],
        other_devices=[gpu.index for gpu in place.others],
        several_ranks=accord is None and several_ranks(),
        **_warmup(options),
        **options.stop_rule(),
        first_batch_seconds=len(prepared) * quick.FIRST_BATCH_SECONDS if options.quick else 0.0,
        seconds_left=limit.seconds_left,
        on_batch=None if options.log is None else log_of(options.log),
        accord=accord,
    )


def several_ranks() -> bool:
    """Whether this process is one of several ranks of torch.distributed."""
    distributed = torch.distributed
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def refuse_capture(place: Place, stream: torch.cuda.Stream | None) -> None:
    """Refuse work on GPUs while a CUDA graph captures a stream that it would use.

    Raises:
        ValueError: for such a stream; nothing was issued to it.
    """
    for gpu in place.gpus:
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
def turn_on(place: Place, options: Options, limit: TimeLimit) -> Iterator[dict[str, Any]]:
    """Wait for others that time on the GPUs; yield the fields of a Measurement about the wait.

    Raises:
        ValueError: as :func:`refuse_capture`.
    """
    refuse_capture(place, options.stream)
    gpus = _uuids(place)
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


def _uuids(place: Place) -> list[str]:
    return [gpu_uuid(gpu) for gpu in place.gpus]


def _fields(record: Mapping[str, Any], options: Options) -> dict[str, Any]:
    by_records = record["method"] == "kernel"
    host = tuple(HostReading(**reading) for reading in record["host"])
    return {
        **record,
        "metric": options.metric if by_records else "elapsed",
        "metric_reason": "" if by_records else f"method {record['method']!r} has no other",
        "activities": tuple(DeviceActivity(**activity) for activity in record["activities"]),
        "host": host,
        "counters_reason": record["counters_reason"] or _why_all_include_others(host),
        "steady": record["steady"] if options.warmup == "steady" else None,
    }


def _with_conditions(fields: dict[str, Any], options: Options) -> dict[str, Any]:
    """Join the conditions used with the requested ones and the reasons for differences."""
    if options.quick and options.regime == "auto" and not fields["regime_reason"]:
        fields["regime_reason"] = quick.REGIME_REASON
    for name in fields.keys() & {*CONDITIONS}:
        reason = fields.pop(f"{name}_reason")
        fields[name] = Condition(fields[name], getattr(options, name), reason)
    return fields


def _why_all_include_others(host: Sequence[HostReading]) -> str:
    if not host or any(reading.instructions is not None for reading in host):
        return ""
    return (
        "every reading of the counters includes calls of other candidates or of the warm-up; time "
        "the call alone, with more samples"
    )


def _current_stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


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


def measure_here_or_in_group(
    candidates: Sequence[Candidate],
    options: Options,
    group: dist.ProcessGroup | None,
    limit: TimeLimit | None = None,
) -> list[Measurement]:
    """Time candidates in this process, or with all ranks of a group if it is given or needed.

    Without a group, every rank finds out in the first call that it communicates.
    """
    if group is None:
        with contextlib.suppress(_C.CollectiveRefused):
            return measure(candidates, options, limit=limit)
    return group_timer.load().measure_in_group(candidates, options, group)


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
