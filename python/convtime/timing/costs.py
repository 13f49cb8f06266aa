"""What a call costs beside time: energy, as the GPU counts it, and memory."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from convtime.core.load import _C
from convtime.device import nvml
from convtime.results.costs import Energy, PeakMemory
from convtime.results.counters import CountersUnavailable
from convtime.timing.candidate import Candidate, LastPass, backward_of, clear_gradients
from convtime.timing.counters.reading import gpu_place
from convtime.timing.options import Options
from convtime.timing.sampling import on, several_ranks, turn_on
from convtime.timing.supervision import TimeLimit

_WARM_UP_SECONDS = 0.5  # in which clock and power settle
_BATCH_SECONDS = 0.005
_MOST_CALLS = 1000  # of a batch: the GPU's queue has room for so many launches
_LONGEST_STEP = 1.0  # seconds that the counter may stand still


def energy(
    fn: Callable[..., object],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    setup: Callable[[], object] | None = None,
    backward: bool = False,
    seconds: float = 2.0,
    device: torch.device | str | int | None = None,
    exclusive: bool = True,
) -> Energy:
    """Energy of the GPU for each of the calls ``fn(*args, **kwargs)``, made one after the other.

    Read from NVML's counter of the GPU's total energy, between two of its steps. So it is that of
    sustained load on a warm cache, with all that the GPU draws for other reasons, and other
    processes' work on the same GPU.

    The counter cannot be stopped between calls. With ``setup`` or ``backward``, the energy of
    whatever comes before each call is therefore measured separately and subtracted.

    Args:
        fn: what is called.
        args: its positional arguments.
        kwargs: its keyword arguments.
        name: what the result is called; the function's own name unless given.
        setup: called without arguments before each call; its energy is not part of the result.
        backward: measures the backward pass of ``fn``'s result instead.
        seconds: how long it is watched at least, after half a second of warm-up; twice where
            something comes before each call.
        device: where the work runs, as ``time_op``'s.
        exclusive: as ``time_op``'s.

    Raises:
        CountersUnavailable: where the GPU, or the driver, does not count its energy.
        ValueError: for seconds that are not positive, and another device.
    """
    candidate = Candidate(fn, *args, kwargs=kwargs, name=name, setup=setup, backward=backward)
    if not (isinstance(seconds, int | float) and 0 < seconds < math.inf):
        raise ValueError(f"seconds must be a positive number, got {seconds!r}")
    options = Options(device=device, exclusive=exclusive)
    place = gpu_place(candidate, options, "energy is counted by a GPU")
    with (
        turn_on(place, options, TimeLimit.of(None)),
        on(place.device, None),
        _counter(place.device) as joules,
    ):
        called = backward_of(candidate) if backward else candidate
        before = called.setup
        if several_ranks():  # each would watch its own counter, for as many calls as that takes
            with _C.OfOneRank():
                _with_setup(called)()
        whole = watch(_Batches(_with_setup(called)), joules, seconds)
        apart = None if before is None else watch(_Batches(before), joules, seconds)
    return Energy(
        name=candidate.name,
        joules=whole.joules_per_call - (apart.joules_per_call if apart else 0),
        resolution=whole.resolution_per_call + (apart.resolution_per_call if apart else 0),
        watts=whole.joules / whole.seconds,
        seconds=whole.seconds,
        calls=whole.calls,
        device=str(place.device),
    )


def _with_setup(candidate: Candidate) -> Callable[[], object]:
    def call() -> object:
        if candidate.setup is not None:
            candidate.setup()
        return candidate.fn(*candidate.args, **candidate.kwargs)

    return call


@contextlib.contextmanager
def _counter(device: torch.device) -> Iterator[Callable[[], float]]:
    """The GPU's energy since the driver was loaded, in joules, as a function."""
    with contextlib.ExitStack() as stack:
        try:
            gpu = stack.enter_context(nvml.session(device))
        except nvml.NvmlUnavailableError as error:
            raise CountersUnavailable(f"energy cannot be read: {error}") from error
        if gpu.ask("TotalEnergyConsumption") is None:
            raise CountersUnavailable(
                f"energy cannot be read: {device} or its driver does not count it, as GPUs before "
                "Volta and shares of a GPU do not"
            )
        yield lambda: 1e-3 * float(gpu.ask("TotalEnergyConsumption"))


class _Batches:
    """Issues calls to the GPU, in batches of which one waits while another runs."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._size = 1
        self._pending: tuple[torch.cuda.Event, int] | None = None

    def next(self) -> int:
        """Issues a batch, and waits for the one before it; returns how many calls that had."""
        begin = time.perf_counter()
        for _ in range(self._size):
            self._call()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        before, self._pending = self._pending, (event, self._size)
        done = 0
        if before is not None:
            before[0].synchronize()
            done = before[1]
        if time.perf_counter() - begin < _BATCH_SECONDS / 2:
            self._size = min(2 * self._size, _MOST_CALLS)
        return done


@dataclasses.dataclass(frozen=True)
class Watched:
    """What a counter of energy showed over many calls.

    Attributes:
        joules: between two of its steps.
        resolution: how much more or less the calls between them may have taken.
        seconds: between the two steps.
        calls: between the two steps.
    """

    joules: float
    resolution: float
    seconds: float
    calls: int

    @property
    def joules_per_call(self) -> float:
        return self.joules / self.calls

    @property
    def resolution_per_call(self) -> float:
        return self.resolution / self.calls


@dataclasses.dataclass(frozen=True)
class _Step:
    seconds: float
    joules: float
    calls: int
    calls_before: int  # at the reading before it


def watch(
    batches: Any,
    joules: Callable[[], float],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Watched:
    """Reads a counter between batches of calls, from one of its steps to another.

    Args:
        batches: what has ``next()``, which gives how many calls are done.
        joules: reads the counter.
        seconds: between the two steps at least.
        clock: the time in seconds.

    Raises:
        CountersUnavailable: where the counter stands still.
    """
    begin = clock()
    while clock() - begin < _WARM_UP_SECONDS:
        batches.next()
    first: _Step | None = None
    largest = 0.0  # step of the counter
    last, moved = joules(), clock()
    calls = 0
    while True:
        before = calls
        calls += batches.next()
        read, now = joules(), clock()
        if read == last:
            if now - moved > _LONGEST_STEP:
                raise CountersUnavailable(
                    "energy cannot be read: the GPU's counter stood still for "
                    f"{now - moved:.1f} s of work"
                )
            continue
        step = _Step(now, read, calls, before)
        largest, last, moved = max(largest, read - last), read, now
        if first is None:
            first, largest = step, 0.0
        elif step.seconds - first.seconds >= seconds:
            return _between(first, step, largest)


def _between(first: _Step, last: _Step, largest_step: float) -> Watched:
    calls = last.calls - first.calls
    joules = last.joules - first.joules
    # Each step came at some time since the reading before it, and may be of work that is older.
    uncertain_calls = (first.calls - first.calls_before) + (last.calls - last.calls_before)
    return Watched(
        joules=joules,
        resolution=largest_step + joules * uncertain_calls / calls,
        seconds=last.seconds - first.seconds,
        calls=calls,
    )


def peak_memory(
    fn: Callable[..., object],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    setup: Callable[[], object] | None = None,
    backward: bool = False,
    device: torch.device | str | int | None = None,
) -> PeakMemory:
    """Memory that ``fn(*args, **kwargs)`` takes at most, as PyTorch's allocator counts it.

    It calls once before, so that workspaces that stay are there already. PyTorch's own
    ``torch.cuda.max_memory_allocated`` starts anew.

    Args:
        fn: what is called.
        args: its positional arguments.
        kwargs: its keyword arguments.
        name: what the result is called; the function's own name unless given.
        setup: called without arguments before each call; its memory counts as taken before.
        backward: measures the backward pass of ``fn``'s result instead, whose own result is the
            gradients. The forward pass's memory counts as taken before. Gradients are then None.
        device: where the work runs, as ``time_op``'s.

    Raises:
        CountersUnavailable: for work on the CPU, whose memory PyTorch does not count.
        ValueError: for another device.
    """
    candidate = Candidate(fn, *args, kwargs=kwargs, name=name, setup=setup, backward=backward)
    options = Options(device=device)
    gpu = gpu_place(candidate, options, "PyTorch counts the memory of GPUs alone").device
    last = LastPass()
    called = backward_of(candidate, last) if backward else candidate
    with on(gpu, None):
        _with_setup(called)()
        if called.setup is not None:
            called.setup()
        torch.cuda.synchronize(gpu)
        torch.cuda.reset_peak_memory_stats(gpu)
        before = torch.cuda.memory_allocated(gpu)
        result = called.fn(*called.args, **called.kwargs)
        torch.cuda.synchronize(gpu)
        peak, after = torch.cuda.max_memory_allocated(gpu), torch.cuda.memory_allocated(gpu)
        del result
        if backward:  # which also frees what the forward pass saved
            clear_gradients(last.leaves)
            before_result = torch.cuda.memory_allocated(gpu)
        else:
            before_result = before
    return PeakMemory(candidate.name, peak - before, after - before_result, str(gpu))
