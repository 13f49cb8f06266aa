"""Time one operation, and measure the rates of the device that its own are compared with."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from convtime.core.checks import require
from convtime.core.errors import first_line
from convtime.device.resolve import resolve_device
from convtime.timing.candidate import Candidate, candidate_and_options, with_keywords
from convtime.timing.measurement import Ceilings, Measurement
from convtime.timing.options import Options, TimeOptions
from convtime.timing.sampling.measure import (
    measure,
    measure_here_or_in_group,
    reporting_errors,
)
from convtime.timing.sampling.object_graph import without_modes

if TYPE_CHECKING:
    import torch.distributed as dist
    from typing_extensions import Unpack

_CEILING_BUDGET = 0.2  # seconds for each of the copy and the matmul


@with_keywords(TimeOptions)
def time_op(
    fn: Callable[..., object] | Candidate,
    *args: Any,
    group: dist.ProcessGroup | None = None,
    **options: Unpack[TimeOptions],
) -> Measurement:
    """Time ``fn(*args, **kwargs)`` with calls from C++ until its median is precise enough.

    ``fn`` is a callable, or a :class:`convtime.Candidate`, which has its arguments.

    A call that communicates with other ranks of torch.distributed is timed by all ranks together:
    each of them makes the same call of this function. See docs/guides/many-gpus.md.

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
        group: process group whose ranks time the call together. Default: the group of the
            operations in the call, if it communicates.
        method: ``kernel`` (device time of the kernels, copies and memsets that the call issues on
            any stream, from CUPTI records), ``event`` (time between two CUDA events on the current
            stream, minus the overhead of the events), ``graph`` (time of one of many calls captured
            in CUDA graphs, minus the gap between them), ``sync`` (host time between two idle states
            of the device), ``cpu`` (host time of the call, on an idle device) or ``auto``: for work
            on a GPU kernel, or event if CUPTI is unavailable (sync if the work uses several GPUs);
            for work on the CPU cpu.
        metric: which time of a call's kernels, copies and memsets is the result and is compared:
            ``busy`` (time during which at least one of them ran), ``span`` (from the first start to
            the last end, including gaps) or ``sum`` (sum of their durations, more than busy if they
            overlap). Only for the method ``kernel``; other methods measure the elapsed time.
        queue: ``gate`` blocks the GPU until a batch of calls is issued, so that short calls are not
            timed as gaps between launches; ``sleep`` does the same with a kernel that sleeps for an
            estimated time; ``none`` does not block the GPU. A callable that synchronizes with the
            GPU cannot be queued; the result then says so.
        cache: ``cold`` overwrites the cache before each call, outside the timed region: the L2
            cache of a GPU, or all caches of the CPU, which takes milliseconds. The call then also
            causes the write-back of that data, as after a kernel that writes; ``cold-clean`` reads
            other data into a GPU's L2 cache instead, so that nothing needs to be written back, as
            after a kernel that reads; ``rotate`` (GPU only) gives each call different copies of its
            tensors, enough copies that each is evicted before it is reused; ``warm`` leaves the
            cache in the state after the previous call; ``auto`` is cold on a GPU, and leaves a
            CPU's cache alone.
        placement: ``random`` gives each call different copies of its tensors, at random multiples
            of 512 bytes, so that the times do not represent a single choice of addresses, which
            alone changes them by percents; ``aligned`` does so at multiples of 2 MiB; ``as-is``
            uses the tensors passed by the caller; ``auto`` is random for work on a GPU if all of
            its tensors can be copied and no call after the first modifies them. If the request
            cannot be met, the result says why.
        pages: memory pages of the tensors that calls allocate, for work on the CPU. ``fresh``:
            pages that were never touched, which the operating system maps and zeroes during the
            call, as in a first call; ``retained``: pages of earlier results, which are already
            mapped, as in a program that reuses its memory; ``as-is``: pages from the C library's
            allocator, which depend on earlier allocations of the process; ``auto``: retained on the
            CPU, as-is on a GPU.
        regime: ``burst`` lets the GPU idle between batches of calls, long enough to keep it at the
            highest clock that it reaches with these calls; ``sustained`` runs calls back to back
            until times and clocks stop drifting, for 2.5 s to 8 s, and times some of them without a
            pause; ``as-is`` uses the GPU in its current state; ``auto`` starts like as-is and
            changes to ``burst`` if the calls lower the clock. If the GPU does not reach the
            requested state, the result's ``regime`` is ``as-is``, and the result says why.
            ``budget`` does not count idle time, but counts the calls between the timed ones. After
            10 s of idle time in total, sampling stops as if the budget were used up.
        clocks: ``observe`` does not change the GPU's clocks; ``lock`` locks them during the timing
            (see :func:`convtime.locked_clocks`).
        pin: number of the CPU that the calling thread is pinned to during the timing. Existing
            threads, such as torch's, are not moved; threads that the calls start inherit the pin.
        device: device of the work. Default: the GPU of the first CUDA tensor found in arguments,
            closure or module parameters; the CPU if only CPU tensors are found; the current GPU (if
            there is one) if no tensor is found.
        stream: stream that is current during the calls. Default: the current stream.
        warmup: ``steady``: until times and clocks stop drifting, for 0.01 s to 1 s (or to the
            budget, if that is less), and the steady calls already count as samples; on a GPU with
            ``regime='as-is'`` at least 0.08 s, because its clock may take that long to fall; an
            int: number of calls; a float: seconds. At least one call is always made, and sixteen
            more if a call on the CPU is too short for the host's clock.
        stop: when sampling stops, in addition to ``max_samples`` and ``budget``: ``interval`` (half
            the width of the median's 95 % interval is at most ``tolerance`` times the median),
            ``noise`` (the standard deviation is at most ``tolerance`` times the mean, or no longer
            changes), ``entropy`` (the distribution of the samples no longer changes), ``verdict``
            (``compare`` only: the verdict on each candidate against the first is settled),
            ``count`` (only max_samples) or ``budget`` (only the budget, and max_samples if given).
        tolerance: relative tolerance of ``interval`` and ``noise``.
        min_samples: minimum number of samples, even beyond the budget. Five or fewer give no 95 %
            interval.
        max_samples: maximum number of samples, for every ``stop``. Default: 10,000, or unlimited
            with ``stop='budget'``.
        budget: seconds after which sampling stops, not counting warm-up and idle time.
        quick: whether the whole call takes about 10 ms per candidate: one untimed call in place of
            a steady warm-up, fewer placements, no idling (``regime='auto'`` becomes ``as-is``), and
            sampling until the 10 ms are over, if no other limit ends it before. A longer call is
            timed five times, unless ``min_samples`` is given; five give no 95 % interval. For a
            choice among many candidates, such as an autotuner's.
        timeout: seconds after which the whole call ends, including waiting and warm-up: with the
            samples taken so far (the result's ``stop_reason`` is ``timeout``), or with a
            TimeoutError if there are none. It ends every wait for the GPU, which may continue its
            work; it does not interrupt a call that does not return. None: no limit.
        exclusive: whether processes and threads of this user take turns on a GPU: each waits until
            the GPU is free, for at most a minute, and blocks the others while it times. The result
            says how long it waited, and why if it did not have the GPU to itself.
        log: called after each batch with a :class:`convtime.BatchRecord`: ``print``, a logger's
            ``info`` or a list's ``append``. An exception that it raises ends the timing.

    Returns:
        The samples in seconds, with method, conditions and provenance.

    Raises:
        TypeError: if ``fn`` is not callable, or for an unknown option.
        ValueError: if an option is outside its range, options contradict each other, a GPU method
            or ``clocks="lock"`` is used for work on the CPU, or the thread may not run on the CPU
            in ``pin``.
        TimeoutError: if ``timeout`` passes before the first sample.
        PermissionError: if ``clocks="lock"`` is used and this user may not lock clocks; the message
            says which command to run.
        RuntimeError: if CUDA fails, ``method="kernel"`` is unavailable, or ``method="graph"``
            cannot capture the call. Exceptions of ``fn`` pass through. In a group, another rank
            raised an exception, ended, hung or fell behind.
    """
    with reporting_errors(group):
        candidate, chosen = candidate_and_options("time_op", TimeOptions, fn, args, options)
        require(
            chosen.stop != "verdict",
            "stop='verdict' needs something to compare with; use convtime.compare",
        )
    (measured,) = measure_here_or_in_group([candidate], chosen, group)
    return with_rates(candidate, measured, chosen)


def ceilings(device: torch.device | str | int | None = None, *, exclusive: bool = True) -> Ceilings:
    """Measure the rates that a device reaches in a large copy and a large matmul.

    They are measured once per device; on a CPU, once per number of threads, set of CPUs and
    precision of float32 matmuls. The caller's modes (autocast, inference mode, a default device)
    have no effect.

    Args:
        device: a CPU or a CUDA device. Default: the current GPU, or the CPU without a GPU.
        exclusive: as in ``time_op``.

    Raises:
        ValueError: for another device.
    """
    where = resolve_device(device)
    return _measured(where, () if where.type == "cuda" else _cpu_conditions(), exclusive)


def with_rates(candidate: Candidate, measured: Measurement, options: Options) -> Measurement:
    """Add the device's ceilings to a measurement if the candidate's FLOPs or bytes are given.

    This comes after the timing, because a large copy and a large matmul heat the device.
    """
    if candidate.flops is None and candidate.nbytes is None:
        return measured
    reached, why_not = None, ""
    try:
        reached = ceilings(measured.device, exclusive=options.exclusive)
    except RuntimeError as error:  # for example, if the GPU's memory is full: keep the measurement
        why_not = f"they could not be measured on {measured.device} ({first_line(error)})"
    return dataclasses.replace(
        measured,
        flops=candidate.flops,
        nbytes=candidate.nbytes,
        ceilings=reached,
        ceilings_reason=why_not,
    )


def _cpu_conditions() -> tuple[object, ...]:
    """Return the settings that affect the rates of a CPU and that a program may change."""
    onednn: Any = torch.backends.mkldnn
    cpus = frozenset(os.sched_getaffinity(0))
    return torch.get_num_threads(), cpus, onednn.matmul.fp32_precision


@functools.cache  # for each device and its conditions, and how they were measured
def _measured(device: torch.device, _conditions: tuple[object, ...], exclusive: bool) -> Ceilings:
    on_gpu = device.type == "cuda"
    # Far larger than any cache, and large enough to fill all multiprocessors or cores.
    copied_bytes, size = (1 << 30, 8192) if on_gpu else (1 << 27, 1024)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    with without_modes():
        source = torch.empty(copied_bytes, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        copy = Candidate(target.copy_, source, name="copy")
        copy_seconds = _median(copy, device, exclusive)
        del copy, source, target
        random = torch.Generator(device).manual_seed(0)  # leaves the caller's generator alone
        matrix = torch.randn(size, size, dtype=torch.float32, device=device, generator=random)
        matrix = matrix.to(dtype)
        matmul = Candidate(torch.mm, matrix, matrix, name="matmul")
        matmul_seconds = _median(matmul, device, exclusive)
    return Ceilings(
        bytes_per_second=2 * copied_bytes / copy_seconds,
        flops_per_second=2 * size**3 / matmul_seconds,
        matmul_dtype=str(dtype).removeprefix("torch."),
    )


def _median(candidate: Candidate, device: torch.device, exclusive: bool) -> float:
    options = Options(regime="as-is", budget=_CEILING_BUDGET, device=device, exclusive=exclusive)
    return measure([candidate], options)[0].median
