"""List all engines of cuDNN for a convolution, and time those that run."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from convtime.conv.binding import bound_call, prepare
from convtime.conv.call import CUDNN_BACKENDS, ConvCall, ConvTensors, same_bits
from convtime.conv.engine_pass import error_of, exact_result, prepare_pass
from convtime.conv.engine_table import EngineResult, EngineTable, PassEngines
from convtime.conv.explaining import with_grad_output
from convtime.conv.plan_oracle import PlanOracle
from convtime.core import codec
from convtime.core.errors import first_line
from convtime.core.load import _C
from convtime.device.provenance import provenance
from convtime.timing.candidate import Candidate, with_keywords
from convtime.timing.measurement import Measurement
from convtime.timing.options import EngineOptions, options_of
from convtime.timing.time_op import time_op
from convtime.view.progress import tracked

if TYPE_CHECKING:
    from typing_extensions import Unpack


_RUNS = 3  # whose bits are compared


@with_keywords(EngineOptions)
def engines(
    fn: Callable[..., object] | Candidate,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    backward: bool | None = None,
    progress: bool | None = None,
    **options: Unpack[EngineOptions],
) -> EngineTable:
    """List every engine that cuDNN has for a convolution, and time those that run.

    Engines come from cuDNN's lists ("instant", by which PyTorch selects, "a", "b" and "fallback"),
    and from the indices of all engines. Those that PyTorch excludes, because of errata, TF32 or
    determinism, are not run. Each is timed alone, as by ``time_op(..., quick=True)``: about 10 ms.
    :func:`convtime.race` finds the fastest of a few. Plans are built for this call alone:
    :func:`convtime.conv.plan_cache` does not change. A child process finds the plan that PyTorch
    selects; it takes some seconds to start.

    Args:
        fn: A convolution, as for :func:`convtime.conv.explain`, on a GPU.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        backward: Whether to list the engines of the gradient passes too: dgrad and wgrad. None
            (default): those that input and weight request with requires_grad.
        progress: Whether to show a progress bar on standard error. Default: on a terminal only.
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
        margin: relative difference from the baseline's time that counts as equal.
        min_samples: minimum number of samples, even beyond the budget. Five or fewer give no 95 %
            interval.
        max_samples: maximum number of samples, for every ``stop``. Default: 10,000, or unlimited
            with ``stop='budget'``.
        budget: seconds after which sampling stops, not counting warm-up and idle time.
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
        For each pass, the engines with time, workspace, error and settings, and PyTorch's choice.

    Raises:
        TypeError: fn is not a convolution, or may be more than one.
        ValueError: the tensors are not on a GPU, the dtype is unsupported, or backward is not a
            bool. PyTorch's own errors for invalid arguments propagate.
    """
    options_of("engines", EngineOptions, options).check_ranges()
    bound = bound_call("engines", fn, args, kwargs, backward)
    tensors, call = prepare(bound, "engines")
    return engines_of(call, tensors, bound.passes(backward), progress=progress, **options)


def engines_of(
    call: ConvCall,
    tensors: ConvTensors,
    passes: Sequence[str],
    *,
    progress: bool | None = None,
    **options: Any,
) -> EngineTable:
    """Return the engines of a call's passes, as :func:`engines` does.

    Raises:
        ValueError: the tensors are not on a GPU.
    """
    device = tensors.x.device
    if device.type != "cuda":
        raise ValueError(f"engines needs tensors on a GPU, where cuDNN runs, got them on {device}")
    tensors = dataclasses.replace(tensors, bias=None)
    call = dataclasses.replace(call, problem=dataclasses.replace(call.problem, bias=False))
    with (
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),  # the tensors are already cast
        PlanOracle(device) as oracle,
    ):
        if len(passes) > 1:
            tensors, call = with_grad_output(tensors, call)
        timed = functools.partial(time_op, quick=True, **options)
        listed = tuple(_list_pass(call, name, tensors, oracle, timed, progress) for name in passes)
    return EngineTable(call, str(device), listed, provenance(device))


def _list_pass(
    call: ConvCall,
    name: str,
    tensors: ConvTensors,
    oracle: PlanOracle,
    timed: Callable[[Candidate], Measurement],
    progress: bool | None,
) -> PassEngines:
    theirs = call.pytorch_call(name, tensors)
    backend = call.backend(name, tensors)
    exact, result = exact_result(call, name, tensors), theirs()
    log = oracle.ask(call, [name])[name] if backend in CUDNN_BACKENDS else None
    return PassEngines(
        name=name,
        backend=backend,
        pytorch=timed(Candidate(theirs, name="PyTorch")),
        pytorch_tag=log.plan.tag if log and log.plan else None,
        unknown=log.unknown if log else "PyTorch does not give this pass to cuDNN",
        pytorch_error=error_of(result, exact),
        engines=tuple(_run_engines(call, name, tensors, exact, timed, progress)) if log else (),
    )


def _run_engines(
    call: ConvCall,
    name: str,
    tensors: ConvTensors,
    exact: torch.Tensor | None,
    timed: Callable[[Candidate], Measurement],
    progress: bool | None,
) -> Iterator[EngineResult]:
    prepared = prepare_pass(call, name, tensors)
    for listed in tracked(prepared.engines(), "engine", description=name, shown=progress):
        engine = codec.decode(EngineResult, listed)
        refused = listed["unsupported"] or listed["excluded"]
        if refused:
            yield dataclasses.replace(engine, refused=refused.split("\n")[0].strip())
        else:
            yield _run_engine(prepared, engine, exact, timed)


def _run_engine(
    prepared: _C.EnginePass,
    engine: EngineResult,
    exact: torch.Tensor | None,
    timed: Callable[[Candidate], Measurement],
) -> EngineResult:
    try:
        begin = time.perf_counter()
        workspace_bytes, run = prepared.build(engine.tag)
        engine = dataclasses.replace(
            engine,
            workspace_bytes=workspace_bytes,
            build_seconds=time.perf_counter() - begin,
        )
        results = []
        for _ in range(_RUNS):
            prepared.result.fill_(float("nan"))  # an engine that writes nothing is not exact
            run()
            results.append(prepared.result.clone())
        torch.cuda.synchronize(prepared.result.device)
        return dataclasses.replace(
            engine,
            measurement=timed(Candidate(run, name=engine.tag)),
            error=error_of(results[0], exact),
            repeats=all(same_bits(results[0], other) for other in results[1:]),
        )
    except RuntimeError as error:  # also out of memory; the other engines may run
        torch.cuda.synchronize(prepared.result.device)  # raises if the GPU is unusable
        return dataclasses.replace(engine, refused=first_line(error))
