"""`convtime.diagnose`: run contrasts within a budget, and derive causes from them."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from convtime.conv.advice import Advice, measured_advice
from convtime.conv.binding import convolutions_of, prepare
from convtime.conv.call import FPROP
from convtime.core.checks import is_finite
from convtime.core.errors import one_line
from convtime.device.provenance import provenance
from convtime.diagnosis.advice import advise
from convtime.diagnosis.contrasts import CONTRASTS, time_work, work_of
from convtime.diagnosis.diagnosis import Diagnosis, Skipped
from convtime.diagnosis.difference import split, time_by_other_tool
from convtime.diagnosis.effects import account_of
from convtime.diagnosis.evidence import Calls, Evidence
from convtime.diagnosis.operation import Operation, look_at_calls
from convtime.diagnosis.rules import judge
from convtime.timing.candidate import Candidate, candidate_and_options, with_keywords
from convtime.timing.options import DiagnoseOptions
from convtime.timing.sampling.measure import find_devices

if TYPE_CHECKING:
    import os

    from torch.utils import benchmark
    from typing_extensions import Unpack

    from convtime.timing.measurement import Measurement

_MOST_CONVOLUTIONS = 3  # with different problems
_CONVOLUTION_SECONDS = 0.5  # for each


@with_keywords(DiagnoseOptions)
def diagnose(
    fn: Callable[..., object] | Candidate,
    *args: Any,
    against: float
    | Callable[[], float]
    | str
    | os.PathLike[str]
    | Measurement
    | benchmark.Measurement
    | None = None,
    budget: float = 15.0,
    counters: bool = True,
    again: Sequence[str] = (),
    **options: Unpack[DiagnoseOptions],
) -> Diagnosis:
    """Explain which causes dominate the time of ``fn(*args, **kwargs)`` or make it vary.

    The operation is called under conditions that each differ in one factor. Each difference leads
    to a cause with a confidence and advice. Values, layout and addresses are varied for tensors in
    the arguments, in the module, or in variables that ``fn`` itself refers to.

    ``fn`` is a callable, or a :class:`convtime.Candidate`, which has its arguments. One that has
    not been called yet captures its first-call cost. With ``before``, fewer factors can be varied.

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
        against: another tool's number, whose difference from ours is split into parts. Pass
            seconds; a callable that returns seconds; ``"do_bench"``, ``"do_bench_cudagraph"`` or
            ``"timer"`` to run triton's or PyTorch's tool; a file that
            :func:`convtime.read_measurements` reads, for example from nvbench; or a measurement.
        budget: seconds after which no further contrast starts. The result lists skipped contrasts.
        counters: whether to read hardware counters, if allowed.
        again: command that times the same operation in a fresh process and prints a
            :class:`convtime.Measurement` as JSON. Default: a picklable function is passed to a
            fresh process.
        metric: which time of a call's kernels, copies and memsets is the result and is compared:
            ``busy`` (time during which at least one of them ran), ``span`` (from the first start to
            the last end, including gaps) or ``sum`` (sum of their durations, more than busy if they
            overlap). Only for the method ``kernel``; other methods measure the elapsed time.
        device: device of the work. Default: the GPU of the first CUDA tensor found in arguments,
            closure or module parameters; the CPU if only CPU tensors are found; the current GPU (if
            there is one) if no tensor is found.
        stream: stream that is current during the calls. Default: the current stream.
        exclusive: whether processes and threads of this user take turns on a GPU: each waits until
            the GPU is free, for at most a minute, and blocks the others while it times. The result
            says how long it waited, and why if it did not have the GPU to itself.

    Raises:
        TypeError: ``fn`` is not callable, or an option has the wrong type.
        ValueError: the budget is not a positive number, the device is missing, or ``against`` is
            not a valid time. Exceptions of ``fn`` propagate.
    """
    if not is_finite(budget) or float(budget) <= 0:
        raise ValueError(f"budget must be a positive number of seconds, got {budget!r}")
    if not isinstance(counters, bool):
        raise TypeError(f"counters must be True or False, got {counters!r}")
    candidate, chosen = candidate_and_options("diagnose", DiagnoseOptions, fn, args, options)
    begin = time.perf_counter()
    device = find_devices([candidate], chosen.device).device
    operation = Operation(candidate, device, tuple(again), chosen)
    if chosen.metric != "busy" and not operation.on_gpu:
        raise ValueError(f"metric {chosen.metric!r} is for work on a GPU; leave out metric")
    before = _allocations()
    with operation.on_device():
        # First, to capture one-time work of first calls.
        calls = look_at_calls(operation)
    if chosen.device is None and not operation.on_gpu and _allocations() > before:
        # The first call copied its tensors to a GPU and used it.
        operation, calls = _on_device(operation, find_devices([candidate], "cuda").device, calls)
    with operation.on_device():
        other = None if against is None else time_by_other_tool(against, candidate)
        measured = time_work(operation, calls)
    unused_gpu = ""
    if operation.on_gpu and measured.method == "cpu":
        # Method "auto" falls back to "cpu" only if calls issue no GPU work.
        unused_gpu = str(operation.device)
        operation, calls = _on_device(operation, torch.device("cpu"), calls)
        measured = time_work(operation, calls)
    with operation.on_device():
        evidence = Evidence(operation.on_gpu, calls, work_of(operation, measured))
        evidence, skipped = _look(operation, evidence, begin + float(budget), counters=counters)
        advice, why_not = _try_convolutions(operation, evidence, begin + float(budget))
    if why_not:
        skipped.append(Skipped("convolutions", why_not))
    return Diagnosis(
        name=candidate.name,
        causes=tuple(
            dataclasses.replace(cause, advice=advise(cause, evidence)) for cause in judge(evidence)
        ),
        account=account_of(evidence),
        evidence=evidence,
        skipped=tuple(skipped),
        difference=None if other is None else split(evidence, *other),
        advice=advice,
        seconds=time.perf_counter() - begin,
        device=str(operation.device),
        unused_gpu=unused_gpu,
        provenance=provenance(operation.device),
    )


def _on_device(operation: Operation, device: torch.device, calls: Calls) -> tuple[Operation, Calls]:
    """Return the operation on another device, and its calls there, whose first ones were before."""
    moved = dataclasses.replace(operation, device=device)
    with moved.on_device():
        return moved, dataclasses.replace(look_at_calls(moved), first=calls.first)


def _allocations() -> int:
    """Return the number of GPU allocations that PyTorch's allocator has made."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    devices = range(torch.cuda.device_count())
    return sum(torch.cuda.memory_stats(each).get("allocation.all.allocated", 0) for each in devices)


def _look(
    operation: Operation, evidence: Evidence, until: float, *, counters: bool
) -> tuple[Evidence, list[Skipped]]:
    """Run all contrasts that apply and fit in the budget; return the others as skipped."""
    skipped = []
    if not operation.on_gpu:
        skipped.append(Skipped("GPU contrasts", "the work is on the CPU"))
    for contrast in CONTRASTS:
        if contrast.only_on not in ("", operation.device.type):
            continue
        why_not = contrast.obstacle(operation, evidence)
        if contrast.name == "counters" and not counters:
            why_not = "counters=False"
        cost, left = contrast.cost(evidence), until - time.perf_counter()
        if not why_not and cost > left:
            why_not = (
                f"it would take about {cost:.1f} s, but the budget has {max(0.0, left):.1f} s left"
            )
        if not why_not:
            try:
                evidence = contrast.look(operation, evidence)
            except Exception as error:  # a failed contrast must not discard the others
                why_not = one_line(error)
        if why_not:
            skipped.append(Skipped(contrast.name, why_not, contrast.varies))
    return evidence, skipped


def _try_convolutions(
    operation: Operation, evidence: Evidence, until: float
) -> tuple[tuple[Advice, ...], str]:
    """Try other layouts, dtypes and sizes for the convolutions of a call.

    Args:
        operation: the diagnosed operation.
        evidence: its evidence.
        until: end of the budget, on the clock of ``time.perf_counter``.

    Returns:
        The advice that was tried, and why some or all was skipped. The reason is empty if
        everything was tried or there are no convolutions.
    """
    try:
        operation.prepare()
        calls = convolutions_of(operation.call)
        distinct = {call.problem.label: (tensors, call) for tensors, call in map(prepare, calls)}
    except Exception as error:  # no exception here may discard the diagnosis
        return (), one_line(error)
    count = len(distinct)
    if count > _MOST_CONVOLUTIONS:
        return (), f"it runs {count} different convolutions; use convtime.conv.explain on each one"
    advice: list[Advice] = []
    for label, (tensors, call) in distinct.items():
        if time.perf_counter() + _CONVOLUTION_SECONDS + 20 * evidence.calls.waiting.median > until:
            return tuple(advice), "the budget leaves no time to try other layouts and dtypes"
        with torch.no_grad(), contextlib.suppress(RuntimeError):  # may not fit in memory
            tried = measured_advice(call, FPROP, tensors, _CONVOLUTION_SECONDS)
            advice += [
                each if count == 1 else dataclasses.replace(each, text=f"{label}: {each.text}")
                for each in tried
            ]
    return tuple(advice), ""
