"""Costs of a call other than time: energy, from the GPU's counter, and memory."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from convtime.core.checks import is_finite, require
from convtime.core.load import _C
from convtime.counting.counters import gpu_of_work
from convtime.counting.results import CountersUnavailable, Energy, PeakMemory
from convtime.device import nvml
from convtime.timing.candidate import (
    Candidate,
    LastPass,
    candidate_and_options,
    clear_gradients,
    timed_part,
    with_keywords,
)
from convtime.timing.options import EnergyOptions, MemoryOptions
from convtime.timing.sampling.calls import several_ranks
from convtime.timing.sampling.measure import TimeLimit, on, take_turn

if TYPE_CHECKING:
    from typing_extensions import Unpack


_WARM_UP_SECONDS = 0.5  # until clock and power settle
_BATCH_SECONDS = 0.005
_MOST_CALLS = 1000  # per batch: the GPU's queue has room for so many launches
_LONGEST_STEP = 1.0  # seconds between two steps of the counter, at most


@with_keywords(EnergyOptions)
def energy(
    fn: Callable[..., object] | Candidate,
    *args: Any,
    seconds: float = 2.0,
    **options: Unpack[EnergyOptions],
) -> Energy:
    """Measure the energy that the GPU uses for each call ``fn(*args, **kwargs)``, back to back.

    The energy is the difference between two steps of NVML's counter of the GPU's total energy. It
    is therefore the energy under sustained load with a warm cache. It includes everything else
    that the GPU draws power for, such as waiting where the host issues calls more slowly than the
    GPU computes them, and the work of other processes on the same GPU.

    The counter cannot be stopped between calls. With ``before`` or ``backward``, the energy of the
    work before each call is therefore measured separately and subtracted.

    Args:
        fn: callable to time. Its result is dropped after the timed region; it may return None.
        args: positional arguments of ``fn``.
        kwargs: keyword arguments of ``fn``.
        name: name of the result. Default: the name of the function.
        before: called without arguments before each call, outside the timed region and before the
            cache flush; its GPU work is not timed either.
        grad_to_none: tensors whose ``grad`` is set to None before each call, outside the timed
            region, so that a backward pass in ``fn`` writes gradients instead of adding to them.
        backward: whether to time the backward pass of ``fn``'s result instead, with random
            gradients. The forward pass runs before each call, outside the timed region. Gradients
            are set to None first; afterwards they are those of the last call.
        flops: floating-point operations of a call. They are compared with the rate that the device
            reaches, which is measured once, after the timing and beyond any ``timeout`` (see
            ``ceilings``).
        nbytes: bytes that a call must move, compared in the same way.
        seconds: minimum duration of the measurement, after half a second of warm-up; twice this
            with ``before`` or ``backward``.
        device: device of the work. Default: the GPU of the first CUDA tensor found in arguments,
            closure or module parameters; the CPU if only CPU tensors are found; the current GPU (if
            there is one) if no tensor is found.
        stream: stream that is current during the calls. Default: the current stream.
        exclusive: whether processes and threads of this user take turns on a GPU: each waits until
            the GPU is free, for at most a minute, and blocks the others while it times. The result
            says how long it waited, and why if it did not have the GPU to itself.

    Raises:
        CountersUnavailable: if the GPU or the driver does not count energy.
        ValueError: if ``seconds`` is not positive, or for another device.
    """
    candidate, chosen = candidate_and_options("energy", EnergyOptions, fn, args, options)
    require(
        is_finite(seconds) and seconds > 0, f"seconds must be a positive number, got {seconds!r}"
    )
    devices = gpu_of_work(candidate, chosen, "energy is counted by a GPU")
    with (
        take_turn(devices, chosen, TimeLimit(None)),
        on(devices.device, chosen.stream),
        _counter(devices.device) as joules,
    ):
        called = timed_part(candidate)
        if several_ranks():  # each rank would watch its own counter and need its own call count
            with _C.OfOneRank():
                _with_before(called)()
        whole = watch(_Batches(_with_before(called)), joules, seconds)
        apart = [watch(_Batches(each), joules, seconds) for each in (called.before,) if each]
    return Energy(
        name=candidate.name,
        joules=whole.joules / whole.calls - sum(each.joules / each.calls for each in apart),
        resolution=sum(each.resolution / each.calls for each in (whole, *apart)),
        watts=whole.joules / whole.seconds,
        seconds=whole.seconds,
        calls=whole.calls,
        device=str(devices.device),
    )


def _with_before(candidate: Candidate) -> Callable[[], object]:
    def call() -> object:
        if candidate.before is not None:
            candidate.before()
        return candidate.fn(*candidate.args, **candidate.kwargs)

    return call


@contextlib.contextmanager
def _counter(device: torch.device) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the GPU's energy since the driver was loaded, in joules."""
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
    """Issues calls to the GPU in batches; one batch waits while another runs."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._size = 1
        self._pending: tuple[torch.cuda.Event, int] | None = None

    def next(self) -> int:
        """Issue a batch, wait for the previous one, and return the number of calls in that one."""
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
    """Reading of an energy counter over many calls.

    Attributes:
        joules: energy between two steps of the counter.
        resolution: error bound of ``joules``.
        seconds: time between the two steps.
        calls: number of calls between the two steps.
    """

    joules: float
    resolution: float
    seconds: float
    calls: int


@dataclasses.dataclass(frozen=True)
class _Step:
    seconds: float
    joules: float
    calls: int
    calls_before: int  # at the previous reading


def watch(
    batches: Any,
    joules: Callable[[], float],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Watched:
    """Read a counter between batches of calls, from one of its steps to another.

    Args:
        batches: object whose ``next()`` returns how many calls have finished.
        joules: reads the counter.
        seconds: minimum time between the two steps.
        clock: returns the time in seconds.

    Raises:
        CountersUnavailable: if the counter does not change.
    """
    begin = clock()
    while clock() - begin < _WARM_UP_SECONDS:
        batches.next()
    steps: list[_Step] = []
    last, moved, calls = joules(), clock(), 0
    while len(steps) < 2 or steps[-1].seconds - steps[0].seconds < seconds:
        before = calls
        calls += batches.next()
        read, now = joules(), clock()
        if read != last:
            steps.append(_Step(now, read, calls, before))
            last, moved = read, now
        elif now - moved > _LONGEST_STEP:
            raise CountersUnavailable(
                "energy cannot be read: the GPU's counter did not change during "
                f"{now - moved:.1f} s of work"
            )
    first, final = steps[0], steps[-1]
    spent, counted = final.joules - first.joules, final.calls - first.calls
    largest_step = max(after.joules - before.joules for before, after in itertools.pairwise(steps))
    # A step may be at any time since the previous reading, and may include older work.
    uncertain = (first.calls - first.calls_before) + (final.calls - final.calls_before)
    return Watched(
        joules=spent,
        resolution=largest_step + spent * uncertain / counted,
        seconds=final.seconds - first.seconds,
        calls=counted,
    )


@with_keywords(MemoryOptions)
def peak_memory(
    fn: Callable[..., object] | Candidate, *args: Any, **options: Unpack[MemoryOptions]
) -> PeakMemory:
    """Measure the peak memory of ``fn(*args, **kwargs)``, as PyTorch's allocator counts it.

    One call is made first, so that persistent workspaces are already allocated. This resets
    PyTorch's ``torch.cuda.max_memory_allocated``. Memory of ``before``, and of the forward pass
    for ``backward``, counts as already allocated; the result of a backward pass is its gradients.

    Args:
        fn: callable to time. Its result is dropped after the timed region; it may return None.
        args: positional arguments of ``fn``.
        kwargs: keyword arguments of ``fn``.
        name: name of the result. Default: the name of the function.
        before: called without arguments before each call, outside the timed region and before the
            cache flush; its GPU work is not timed either.
        grad_to_none: tensors whose ``grad`` is set to None before each call, outside the timed
            region, so that a backward pass in ``fn`` writes gradients instead of adding to them.
        backward: whether to time the backward pass of ``fn``'s result instead, with random
            gradients. The forward pass runs before each call, outside the timed region. Gradients
            are set to None first; afterwards they are those of the last call.
        flops: floating-point operations of a call. They are compared with the rate that the device
            reaches, which is measured once, after the timing and beyond any ``timeout`` (see
            ``ceilings``).
        nbytes: bytes that a call must move, compared in the same way.
        device: device of the work. Default: the GPU of the first CUDA tensor found in arguments,
            closure or module parameters; the CPU if only CPU tensors are found; the current GPU (if
            there is one) if no tensor is found.
        stream: stream that is current during the calls. Default: the current stream.

    Raises:
        CountersUnavailable: for work on the CPU, whose memory PyTorch does not count.
        ValueError: for another device.
    """
    candidate, chosen = candidate_and_options("peak_memory", MemoryOptions, fn, args, options)
    gpu = gpu_of_work(candidate, chosen, "PyTorch counts only the memory of GPUs").device
    last = LastPass()
    called = timed_part(candidate, last)
    with on(gpu, chosen.stream):
        _with_before(called)()
        if called.before is not None:
            called.before()
        torch.cuda.synchronize(gpu)
        torch.cuda.reset_peak_memory_stats(gpu)
        before = torch.cuda.memory_allocated(gpu)
        result = called.fn(*called.args, **called.kwargs)
        torch.cuda.synchronize(gpu)
        peak, after = torch.cuda.max_memory_allocated(gpu), torch.cuda.memory_allocated(gpu)
        del result
        if candidate.backward:  # which also frees what the forward pass saved
            clear_gradients(last.leaves)
            before_result = torch.cuda.memory_allocated(gpu)
        else:
            before_result = before
    return PeakMemory(candidate.name, peak - before, after - before_result, str(gpu))
