"""Prepare the calls of each candidate, so that cache and placement are as requested; make them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import torch
import torch.autograd.profiler

from convtime.core.load import _C
from convtime.device.cpu import cache_bytes, check_pin
from convtime.timing.candidate import Candidate, LastPass, backward_of
from convtime.timing.measurement import Condition
from convtime.timing.options import BatchRecord, Cache, Options, Pages, Placement
from convtime.timing.sampling.copying import Original
from convtime.timing.sampling.object_graph import without_modes
from convtime.timing.sampling.placement import (
    MOST_OBJECTS,
    CannotPlaceError,
    Check,
    Copies,
    blocks_outside,
    count_places,
    effort_of,
    place,
    room_for_copies,
    rotate,
    visits,
)

_PAGES_OF_AUTO = "so that times do not depend on earlier allocations of the process"
_FLUSH_OVER_CACHES = 2  # bytes written, relative to the size of the caches
_CALLS_BEFORE_STEADY = 3
_MAX_STEADY_SECONDS = 1.0
# Of a quick timing: as many untimed calls of each candidate as take this long are timed in the
# first batch, which for short calls is the only one.
_FIRST_BATCH_SECONDS = 0.008


def flushing(candidate: Candidate, buffer: torch.Tensor) -> Candidate:
    """Return the candidate with a setup that also writes the buffer, after its own setup."""

    def setup() -> None:
        if candidate.before is not None:
            candidate.before()
        with without_modes():
            buffer.add_(1)  # in all of torch's threads, so that each flushes its core's caches

    return candidate.but(before=setup)


@contextlib.contextmanager
def pinned(cpu: int | None) -> Iterator[None]:
    """Pin the calling thread to one CPU; do nothing for None.

    Raises:
        ValueError: as check_pin.
    """
    if cpu is None:
        yield
        return
    check_pin(cpu)
    allowed = os.sched_getaffinity(0)
    # Threads inherit the pin of the thread that starts them, so start torch's threads first.
    with without_modes():
        torch.zeros(1 << 20, dtype=torch.float32, device="cpu").add_(1)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextlib.contextmanager
def governed_pages(asked: Pages, *, on_gpu: bool) -> Iterator[Callable[[], Condition[str]]]:
    """Make PyTorch allocate CPU memory in the requested pages, in all threads.

    Yields a function that returns the condition; call it after sampling. The previous
    allocator is restored however the block ends. Memory that is still in use is freed later by its
    own deleter; all other memory is freed here.
    """
    if on_gpu or asked == "as-is":
        reason = "the work is on a GPU" if asked == "auto" else ""
        yield lambda: Condition("as-is", asked, reason)
        return
    wanted = "retained" if asked == "auto" else asked
    with _C.CpuPages(wanted) as governed:

        def outcome() -> Condition[str]:
            if reason := governed.reason():
                return Condition("as-is", asked, reason)
            return Condition(wanted, asked, _PAGES_OF_AUTO if asked == "auto" else "")

        yield outcome


#: Why a CPU's cache was not controlled, by the requested cache.
CPU_REASONS = {
    "auto": "a flush takes milliseconds on a CPU; cache='cold' requests it",
    "cold": "this machine does not report the size of its CPUs' caches",
    "cold-clean": "on a CPU, only cache='cold' is controlled",
    "warm": "on a CPU, only cache='cold' is controlled",
    "rotate": "on a CPU, only cache='cold' is controlled",
}
_ROTATION_OVER_L2 = 5
_FLUSHED = ("auto", "cold", "cold-clean")  # on a GPU


def working_set_bytes(device: torch.device) -> int:
    """Bytes that calls on other copies move through a GPU's cache before a copy is reused."""
    return _ROTATION_OVER_L2 * int(torch.cuda.get_device_properties(device).L2_cache_size)


def flush_buffers(cache: Cache, gpus: Sequence[torch.device]) -> list[torch.Tensor]:
    """Return buffers to access before each call to make the L2 caches cold, one per GPU."""
    if cache not in _FLUSHED or not gpus:
        return []
    with without_modes():
        return [
            torch.empty(
                _C.flush_buffer_bytes(gpu.index, clean=cache == "cold-clean"),
                dtype=torch.uint8,
                device=gpu,
            )
            for gpu in gpus
        ]


def flush_arguments(
    buffers: Iterable[torch.Tensor], cache: Cache
) -> list[tuple[int, int, int, int, bool]]:
    """The flush of these buffers as an argument of the core, on the current streams."""
    return [
        (
            buffer.data_ptr(),
            buffer.nbytes,
            buffer.get_device(),
            current_stream(buffer.device),
            cache == "cold-clean",
        )
        for buffer in buffers
    ]


@contextlib.contextmanager
def without_persisting_lines(cache: Cache, gpus: Iterable[torch.device]) -> Iterator[str]:
    """Let a flush reach the whole L2 caches, including the part set aside for persisting accesses.

    Yields why a flush may not reach all of it, empty if it does. Afterwards restores the size of
    the part set aside.
    """
    with contextlib.ExitStack() as stack:
        reasons = [
            stack.enter_context(_C.WithoutPersistingL2(gpu.index))
            for gpu in gpus
            if cache in _FLUSHED
        ]
        yield "; ".join(filter(None, reasons))


def make_way_for_profilers() -> None:
    """Make profilers that start through torch end convtime's recording first, on any thread.

    A profiler sets itself up in ``torch.autograd.profiler._prepare_profiler``. After that, kineto
    reports that it is active, and convtime starts no recording. Until then, CUPTI would deliver the
    profiler's records to convtime, and convtime's to the profiler. So that function is wrapped once
    per process; it otherwise behaves as before.
    """
    torch_profiler: Any = torch.autograd.profiler
    prepare = torch_profiler._prepare_profiler
    if getattr(prepare, "makes_way", False):
        return

    @functools.wraps(prepare)
    def prepare_alone(*args: Any, **kwargs: Any) -> Any:
        with _C.MakeWay():
            return prepare(*args, **kwargs)

    prepare_alone.makes_way = True  # type: ignore[attr-defined]
    torch_profiler._prepare_profiler = prepare_alone


_UNPLACED_RESULTS = "PyTorch's allocator places the results: {}"
# A graph holds this many calls, each after a flush: more placements would not be used.
_PLACES_OF_COLD_GRAPH = 4


@dataclasses.dataclass
class PreparedCalls:
    """A candidate in the form in which it is called.

    Attributes:
        candidates: the copies that are called in turn, or the candidate itself.
        copies: the copies; None if there are none.
        original: the candidate itself, called if a check finds that the copies cannot be used; None
            without a check.
        cache: state of the cache at each call; see :class:`convtime.Measurement`.
        cache_reason: why the state of the cache is not the requested one.
        placement: placement of the tensors; see :class:`convtime.Measurement`.
        placement_remarks: why the placement is not the requested one, and which parts are not
            placed.
        visits: indices into the copies, in the order of the calls.
        warm: whether an untimed call on the same copy precedes each call.
        check: called after the first call; returns whether the copies can still be used.
        result_blocks: returns address and size of each block of a call's result, if the results of
            each copy are to have a separate placement, too.
        max_result_bytes: maximum memory for these placements.
        last_pass: tensors of the last backward pass, if backward passes are timed.
        origins: the original of each copied tensor, by the id of the copy.
    """

    candidates: list[Candidate]
    cache: str
    cache_reason: str = ""
    copies: Copies | None = None
    original: Candidate | None = None
    placement: Placement = "as-is"
    placement_remarks: list[str] = dataclasses.field(default_factory=list)
    visits: Sequence[int] = ()
    warm: bool = False
    check: Check | None = None
    result_blocks: Callable[[object], list[tuple[int, int]]] | None = None
    max_result_bytes: int = 0
    last_pass: LastPass | None = None
    origins: Mapping[int, torch.Tensor] = dataclasses.field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """The arguments of the core that describe the calls."""
        return {
            "copies": [_call(copy) for copy in self.candidates],
            "original": None if self.original is None else _call(self.original),
            "visits": list(self.visits),
            "warm": self.warm,
            "verify": self.check,
            "result_blocks": self.result_blocks,
            "max_result_bytes": self.max_result_bytes,
        }

    def outcome(self, results_reason: str) -> dict[str, Any]:
        """The fields of a Measurement that describe the calls.

        Args:
            results_reason: why the allocator places the calls' results; empty if it does not.
        """
        placement, remarks = self.placement, list(self.placement_remarks)
        if self.check is not None and self.check.reason:
            placement, remarks = "as-is", [self.check.reason]
        elif results_reason:
            remarks.append(_UNPLACED_RESULTS.format(results_reason))
        return {
            "cache": self.cache,
            "cache_reason": self.cache_reason,
            "placement": placement,
            "placement_reason": "; ".join(remarks),
            "placements": max(1, len(self.candidates)),
        }

    def call_on(self, copies: Copies) -> None:
        """Call copies instead of the candidate itself."""
        self.copies, self.candidates = copies, copies.candidates

    def finish(self) -> None:
        """Leave gradients as calls without copies would, and free the copies."""
        if self.last_pass is not None:
            for leaf in self.last_pass.leaves:
                origin = self.origins.get(id(leaf), leaf)
                if origin.is_leaf:
                    origin.grad = leaf.grad
        self.last_pass = self.check = None
        self.candidates.clear()
        if self.copies is not None:
            self.copies.release()

    def _become(self, make: Callable[[Candidate], Candidate]) -> None:
        self.candidates[:] = map(make, self.candidates)
        if self.original is not None:
            self.original = make(self.original)


def _call(candidate: Candidate) -> tuple[Any, ...]:
    return candidate.fn, candidate.args, dict(candidate.kwargs), candidate.before


@contextlib.contextmanager
def prepared_calls(
    candidates: Sequence[Candidate], options: Options, device: torch.device
) -> Iterator[list[PreparedCalls]]:
    """Prepare the calls of candidates, so that cache and placement are as requested.

    After the block, the memory of the copies belongs to PyTorch again.

    Args:
        candidates: candidates to time.
        options: the requested options. The flush of a GPU's cache is not part of the calls: see
            :func:`convtime.timing.sampling.calls.flush_buffers`.
        device: device of the work.
    """
    every: list[PreparedCalls] = []
    try:
        if device.type == "cuda":
            if options.stream is not None:  # the caller's stream may still write to the originals
                torch.cuda.synchronize(device)
            room_bytes = 0
            if options.placement != "as-is":
                room_bytes = room_for_copies(device, effort_of(options)) // len(candidates)
            every.extend(
                _on_gpu(candidate, options, device, room_bytes) for candidate in candidates
            )
        else:
            every.extend(_on_cpu(candidate, options) for candidate in candidates)
        for candidate, calls in zip(candidates, every, strict=True):
            if candidate.backward:
                _time_backward(calls)
        if device.type != "cuda" and options.cache == "cold":
            # Last, because the forward pass before a backward pass fills the caches again.
            _flush_between(every)
        yield every
    finally:
        for calls in every:
            calls.finish()


def _time_backward(calls: PreparedCalls) -> None:
    calls.last_pass = LastPass()
    calls._become(functools.partial(backward_of, last=calls.last_pass))
    if calls.check is not None:
        calls.check.adds_gradients = True


def _on_cpu(candidate: Candidate, options: Options) -> PreparedCalls:
    calls = PreparedCalls([candidate], "uncontrolled", CPU_REASONS[options.cache])
    if options.placement != "as-is":
        calls.placement_remarks.append("where a CPU's tensors lie is not controlled")
    return calls


def _flush_between(every: Iterable[PreparedCalls]) -> None:
    """Flush the CPU's caches before each call; do nothing if their size is unknown."""
    size = cache_bytes(os.sched_getaffinity(0))
    if size is None:
        return
    with without_modes():
        buffer = torch.zeros(_FLUSH_OVER_CACHES * size, dtype=torch.uint8, device="cpu")
    for calls in every:
        calls._become(lambda candidate: flushing(candidate, buffer))
        calls.cache, calls.cache_reason = "cold", ""


def _on_gpu(
    candidate: Candidate, options: Options, device: torch.device, room_bytes: int
) -> PreparedCalls:
    calls = PreparedCalls([candidate], options.cache)
    if options.cache == "auto":
        calls.cache, calls.cache_reason = "cold", "the work is on a GPU"
    rotates = options.cache == "rotate"
    wanted: Placement = "random" if options.placement == "auto" else options.placement
    if wanted != "as-is" and (obstacle := _method_obstacle(options)):
        calls.placement_remarks.append(obstacle)
        wanted = "as-is"
    if wanted == "as-is" and not rotates:
        return calls
    original = Original(candidate, device, sys.maxsize if rotates else MOST_OBJECTS)
    calls.origins = original.origins
    places = 1
    if wanted != "as-is":
        try:
            places = _place(calls, original, wanted, options, room_bytes)
            calls.placement = wanted
        except CannotPlaceError as error:
            calls.placement_remarks[:] = [str(error)]
    if rotates:
        copies, left_warm = rotate(
            original, working_set_bytes(device), placement=calls.placement, places=places
        )
        calls.call_on(copies)
        if left_warm:
            calls.cache = "partly warm" if original.nbytes else "warm"
            calls.cache_reason = "not rotated: " + ", ".join(left_warm)
    if calls.placement != "as-is":
        _place_results(calls, candidate, options, device, room_bytes)
    return calls


def _method_obstacle(options: Options) -> str:
    """Return why the timing method prevents placement; empty if it does not."""
    if options.method == "graph" and options.cache == "warm":
        return (
            "a warm cache needs an untimed call on the same copy before each call, and method "
            "'graph' captures calls back to back"
        )
    if options.method == "cpu" and options.placement == "auto":
        return "the host time of a call does not depend on it"
    return ""


def _place(
    calls: PreparedCalls,
    original: Original,
    wanted: Placement,
    options: Options,
    room_bytes: int,
) -> int:
    """Copy the candidate to several placements, unless it rotates; return their number."""
    remarks, is_auto = calls.placement_remarks, options.placement == "auto"
    places, why_few = count_places(
        original,
        wanted,
        room_bytes,
        effort_of(options),
        backward=original.candidate.backward,
    )
    if options.cache == "rotate":
        if is_auto:
            remarks.append("cache='rotate' copies its tensors")
        return places
    if is_auto:
        remarks.append("its tensors can be copied, and calls leave them as they are")
    in_graph = options.method == "graph"
    if in_graph:
        places, why_few = _PLACES_OF_COLD_GRAPH, "a graph holds so many calls"
    if why_few:
        remarks.append(f"only {places} places: {why_few}")
    copies = place(original, wanted, places)
    calls.call_on(copies)
    calls.visits = range(places) if in_graph else visits(places)
    calls.warm = calls.cache == "warm"
    calls.check = Check(original, copies)
    calls.original = original.candidate
    return places


def _place_results(
    calls: PreparedCalls,
    candidate: Candidate,
    options: Options,
    device: torch.device,
    room_bytes: int,
) -> None:
    why_not = ""
    if candidate.backward:
        why_not = "they are gradients"
    elif options.method == "graph":
        why_not = "a graph has a private memory pool"
    elif calls.placement == "aligned":
        why_not = "it aligns to 512 bytes"
    if why_not:
        calls.placement_remarks.append(_UNPLACED_RESULTS.format(why_not))
        return
    assert calls.copies is not None
    calls.result_blocks = functools.partial(blocks_outside, calls.copies, device)
    calls.max_result_bytes = room_bytes


def sample(
    prepared: Sequence[PreparedCalls],
    options: Options,
    gpus: Sequence[torch.device],
    stream: int,
    seconds_left: float,
    supervisor: object,
) -> list[dict[str, Any]]:
    """Make the calls; return the fields of a Measurement that differ between candidates.

    Args:
        prepared: the calls of each candidate.
        options: the options of the sampler.
        gpus: GPUs that the work uses, first the one that is timed; empty for work on the CPU.
        stream: the current stream; 0 for work on the CPU.
        seconds_left: seconds until the timeout.
        supervisor: see :func:`convtime.timing.sampling.measure.measure`.
    """
    if gpus:
        make_way_for_profilers()
    flush = flush_buffers(options.cache, gpus)
    log, numbers = options.log, itertools.count(1)
    records = _C.time_candidates(
        candidates=[calls.described() for calls in prepared],
        method=options.method,
        metric=options.metric,
        queue=options.queue,
        regime=options.regime,
        on_gpu=bool(gpus),
        stream=stream,
        flush=flush_arguments(flush, options.cache),
        other_devices=[gpu.index for gpu in gpus[1:]],
        several_ranks=supervisor is None and several_ranks(),
        **_warmup(options),
        **options.stop_rule(),
        first_batch_seconds=len(prepared) * _FIRST_BATCH_SECONDS if options.quick else 0.0,
        seconds_left=seconds_left,
        on_batch=(
            None if log is None else lambda fields: log(BatchRecord(number=next(numbers), **fields))
        ),
        agreement=supervisor,
    )
    return [
        calls.outcome(record.pop("results_reason")) | record
        for calls, record in zip(prepared, records, strict=True)
    ]


def current_stream(device: torch.device) -> int:
    """Return the handle of a GPU's current stream."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def several_ranks() -> bool:
    """Whether this process is one of several ranks of torch.distributed."""
    distributed = torch.distributed
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def _warmup(options: Options) -> dict[str, Any]:
    """The warm-up as arguments of the core."""
    warmup = plain_warmup(options)
    calls, seconds = (1, warmup) if isinstance(warmup, float) else (warmup, 0.0)
    return {
        "warmup_calls": _CALLS_BEFORE_STEADY if calls == "steady" else calls,
        "warmup_seconds": seconds,
        "warmup_steady": warmup == "steady",
        "max_steady_seconds": min(_MAX_STEADY_SECONDS, float(options.budget)),
    }


def plain_warmup(options: Options) -> str | int | float:
    """Return the requested warm-up as a builtin type."""
    warmup = options.warmup
    if isinstance(warmup, str):
        return warmup
    return int(warmup) if isinstance(warmup, SupportsIndex) else float(warmup)
