"""`convtime.diagnose`: looks at contrasts while a budget lasts, and judges what they show."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from convtime.core.errors import one_line
from convtime.core.provenance import provenance
from convtime.results.diagnosis import Cause, Diagnosis, Skipped
from convtime.results.evidence import Evidence
from convtime.study.diagnose import convolutions
from convtime.study.diagnose.account import account_of
from convtime.study.diagnose.advice import advise
from convtime.study.diagnose.calls import look_at_calls
from convtime.study.diagnose.contrasts import CONTRASTS, Contrast, time_work, work_of
from convtime.study.diagnose.difference import split
from convtime.study.diagnose.other_tools import other_of
from convtime.study.diagnose.rules import judge
from convtime.study.diagnose.subject import Subject
from convtime.timing.candidate import Candidate
from convtime.timing.options import Options, is_finite
from convtime.timing.sampling import Place, find_place, on

if TYPE_CHECKING:
    import os

    from torch.utils import benchmark

    from convtime.results.measurement import Measurement


def diagnose(
    fn: Callable[..., object],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    setup: Callable[[], object] | None = None,
    grad_to_none: Iterable[torch.Tensor] | None = None,
    backward: bool = False,
    against: float
    | Callable[[], float]
    | str
    | os.PathLike[str]
    | Measurement
    | benchmark.Measurement
    | None = None,
    budget: float = 15.0,
    device: torch.device | str | int | None = None,
    counters: bool = True,
    again: Sequence[str] = (),
) -> Diagnosis:
    """Says what dominates the time of ``fn(*args, **kwargs)``, and what makes it vary.

    It calls it under conditions that differ in one thing each, and says of each difference what it
    is due to, how sure that is, and what to do about it. Numbers, layout and addresses are varied
    of the tensors in arguments, module, or variables that ``fn`` itself refers to.

    Args:
        fn: what is diagnosed. Not to have been called before shows what its first call does.
        args: its positional arguments.
        kwargs: its keyword arguments.
        name: what the result is called; the function's own name unless given.
        setup: as ``time_op``'s; with it, fewer things can be varied.
        grad_to_none: as ``time_op``'s.
        backward: as ``time_op``'s.
        against: another tool's number, to be told what lies between it and ours: seconds; a call
            that returns seconds; ``"do_bench"``, ``"do_bench_cudagraph"`` or ``"timer"`` to run
            triton's or PyTorch's on it; a file that :func:`convtime.read_measurements` reads, of
            nvbench for example; or a measurement.
        budget: seconds after which no further contrast is begun. Those that are left out are said.
        device: as ``time_op``'s.
        counters: whether hardware counters are read, where that is allowed.
        again: a command that times the same in a fresh process, and prints a
            :class:`convtime.Measurement` as JSON; unless given, a function that can be pickled is
            handed on to one.

    Raises:
        TypeError: for something that is not callable, and options of another type.
        ValueError: for a budget that is no positive number, a device that is not there, and an
            ``against`` that is no time. Whatever ``fn`` raises passes through.
    """
    if isinstance(budget, bool) or not is_finite(budget) or float(budget) <= 0:
        raise ValueError(f"budget must be a positive number of seconds, got {budget!r}")
    if not isinstance(counters, bool):
        raise TypeError(f"counters must be True or False, got {counters!r}")
    candidate = Candidate(
        fn,
        *args,
        kwargs=kwargs,
        name=name,
        setup=setup,
        grad_to_none=grad_to_none,
        backward=backward,
    )
    begin = time.perf_counter()
    place = find_place([candidate], Options(device=device).device)
    subject = Subject(candidate, place, tuple(again))
    before = _allocations()
    with on(place.device, None):
        # First of all, since what only first calls do is done after it.
        calls = look_at_calls(subject)
    if device is None and not place.on_gpu and _allocations() > before:
        # The first call showed that it uses a GPU, to which it copies its tensors.
        place = find_place([candidate], "cuda")
        subject = dataclasses.replace(subject, place=place)
        with on(place.device, None):
            calls = dataclasses.replace(look_at_calls(subject), first=calls.first)
    with on(place.device, None):
        other = None if against is None else other_of(against, candidate)
        measured = time_work(subject, calls)
    unused_gpu = ""
    if place.on_gpu and measured.method == "cpu":
        # Method "auto" falls back to that where calls issue no work to the GPU, and only there.
        unused_gpu = str(place.device)
        place = Place(torch.device("cpu"), (), f"the call gives {unused_gpu} no work")
        subject = dataclasses.replace(subject, place=place)
        calls = dataclasses.replace(look_at_calls(subject), first=calls.first)
        measured = time_work(subject, calls)
    with on(place.device, None):
        work = work_of(subject, measured)
        evidence = Evidence(on_gpu=place.on_gpu, calls=calls, work=work)
        evidence, skipped = _look(subject, evidence, begin + float(budget), counters=counters)
        advice, why_not = convolutions.advise(subject, evidence, begin + float(budget))
    if why_not:
        skipped.append(Skipped("convolutions", why_not))
    return Diagnosis(
        name=candidate.name,
        causes=tuple(map(_with_advice(evidence), judge(evidence))),
        account=account_of(evidence),
        evidence=evidence,
        skipped=tuple(skipped),
        difference=None if other is None else split(evidence, other),
        advice=advice,
        seconds=time.perf_counter() - begin,
        device=str(place.device),
        unused_gpu=unused_gpu,
        provenance=provenance(place.device),
    )


def _allocations() -> int:
    """How often PyTorch's allocator has given out memory of GPUs."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    devices = range(torch.cuda.device_count())
    return sum(torch.cuda.memory_stats(each).get("allocation.all.allocated", 0) for each in devices)


def _with_advice(evidence: Evidence) -> Callable[[Cause], Cause]:
    return lambda cause: dataclasses.replace(cause, advice=advise(cause, evidence))


def _look(
    subject: Subject, evidence: Evidence, until: float, *, counters: bool
) -> tuple[Evidence, list[Skipped]]:
    """All contrasts that make sense and that there is time for; and the others."""
    skipped = []
    if not subject.on_gpu:
        skipped.append(Skipped("what is of a GPU", "the work is on the CPU"))
    for contrast in CONTRASTS:
        if contrast.only_on not in ("", subject.place.device.type):
            continue
        why_not = contrast.obstacle(subject, evidence)
        if contrast.name == "counters" and not counters:
            why_not = "counters=False"
        why_not = why_not or _too_late(contrast, evidence, until)
        if not why_not:
            try:
                evidence = contrast.look(subject, evidence)
            except (
                Exception
            ) as error:  # whatever the calls raise there: all else is not lost for it
                why_not = one_line(error)
        if why_not:
            skipped.append(Skipped(contrast.name, why_not, contrast.varies))
    return evidence, skipped


def _too_late(contrast: Contrast, evidence: Evidence, until: float) -> str:
    cost, left = contrast.cost(evidence), until - time.perf_counter()
    if cost <= left:
        return ""
    return f"it would take some {cost:.1f} s, and {max(0.0, left):.1f} s of the budget are left"
