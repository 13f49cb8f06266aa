"""What users call: one operation timed, or several against each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, get_args

import torch

from convtime.core.errors import first_line
from convtime.results.ceilings import Ceilings
from convtime.results.comparison import Comparison
from convtime.results.interference import Interference
from convtime.results.measurement import Measurement
from convtime.timing import confirming
from convtime.timing.agreement import Check, check_results
from convtime.timing.candidate import Candidate, candidates_of, distinct
from convtime.timing.ceilings import ceilings
from convtime.timing.interference import find_interference
from convtime.timing.options import Options, Regime, Stop, make_options, takes_options
from convtime.timing.sampling import measure
from convtime.timing.supervision import TimeLimit, watched

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from convtime.timing.options import SharedOptions

#: What ``regime="both"`` times in, the one that leaves the GPU cool first.
_BOTH: Final[tuple[Regime, ...]] = ("burst", "sustained")


@takes_options("margin")
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
    stop: Stop = "interval",
    **options: Unpack[SharedOptions],
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
        flops: floating-point operations of a call, to be set against what this device reaches,
            which is measured afterwards, once (see ``ceilings``), and beyond any ``timeout``.
        nbytes: bytes that a call has to move, likewise.
        {options}

    Returns:
        The samples in seconds, with method, conditions and provenance; for ``regime="both"`` those
        of the burst, and the others as its ``sustained``.

    Raises:
        TypeError: if ``fn`` is not callable, and for an option that there is not.
        ValueError: for an option outside of its range, options that contradict each other, a GPU
            method or ``clocks="lock"`` for work on the CPU, or a CPU to ``pin`` to that the thread
            may not run on.
        TimeoutError: where ``timeout`` passes before there is a sample.
        PermissionError: for ``clocks="lock"`` where this user may not lock them; it says what to
            run.
        RuntimeError: for a failure of CUDA, where ``method="kernel"`` cannot be had, or where
            ``method="graph"`` cannot capture the call. Whatever ``fn`` raises passes through.
    """
    candidate = Candidate(
        fn,
        *args,
        kwargs=kwargs,
        name=name,
        setup=setup,
        backward=backward,
        grad_to_none=grad_to_none,
        flops=flops,
        nbytes=nbytes,
    )
    chosen = make_options("time_op", {"stop": stop, **options}, but=("margin",))
    if chosen.stop == "verdict":
        raise ValueError("stop='verdict' needs something to compare with; use convtime.compare")
    with watched(chosen) as shown:
        measured = _measure_one(candidate, shown)
    return _with_rates(candidate, measured, chosen)


def _measure_one(candidate: Candidate, options: Options) -> Measurement:
    if options.regime != "both":
        return measure([candidate], options)[0]
    limit = TimeLimit.of(options.timeout)
    first, second = (dataclasses.replace(options, regime=regime) for regime in _BOTH)
    (burst,) = measure([candidate], first, limit=limit)
    try:
        (sustained,) = measure([candidate], second, limit=limit)
    except TimeoutError as error:
        return dataclasses.replace(
            burst, stop_reason="timeout", regime_reason=f"{second.regime} was not timed: {error}"
        )
    return dataclasses.replace(burst, sustained=sustained)


def _with_rates(candidate: Candidate, measured: Measurement, options: Options) -> Measurement:
    """What was measured, set against what the device reaches where the candidate's work is known.

    Afterwards, since a large copy and a large matmul heat the device.
    """
    if candidate.flops is None and candidate.nbytes is None:
        return measured
    reached, why_not = _ceilings_of(torch.device(measured.device), options.exclusive)
    rates: dict[str, Any] = {
        "flops": candidate.flops,
        "nbytes": candidate.nbytes,
        "ceilings": reached,
        "ceilings_reason": why_not,
    }
    if measured.sustained is not None:
        rates["sustained"] = dataclasses.replace(measured.sustained, **rates)
    return dataclasses.replace(measured, **rates)


def _ceilings_of(device: torch.device, exclusive: bool) -> tuple[Ceilings | None, str]:
    """The ceilings, or why there are none, which is no reason to lose what was measured."""
    try:
        return ceilings(device, exclusive=exclusive), ""
    except RuntimeError as error:  # of a GPU that is full, for one
        return None, f"they could not be measured on {device} ({first_line(error)})"


@takes_options()
def compare(
    candidates: Mapping[str, Callable[[], object] | Candidate]
    | Sequence[Callable[[], object] | Candidate],
    *,
    baseline: str | None = None,
    check: Check | bool | None = "close",
    control: bool = False,
    interference: bool = True,
    confirm: bool = False,
    stop: Stop | None = None,
    margin: float = 0.01,
    **options: Unpack[SharedOptions],
) -> Comparison:
    """Times several callables interleaved, so that whatever drifts drifts for all of them alike.

    Each round calls every candidate once, in random order; ``time_op`` is the case of one
    candidate. ``budget`` is for the whole comparison. Unless given, ``stop`` is ``verdict`` for
    several candidates, and ``interval`` for one.

    Args:
        candidates: callables without arguments, or with them (:class:`convtime.Candidate`), by name
            or in a sequence. In a mapping, a Candidate's own name does not count; in a sequence,
            those of one name are numbered.
        baseline: the name of the candidate that the others are compared with; the first one unless
            given.
        check: whether the candidates' results are compared with the baseline's, by further calls
            after the timing: ``close`` (within a tolerance for each dtype, see docs/methods.md),
            ``exact`` (to the bit), or None (they are not). Another result is said in the
            comparison's ``same_results``, and is no error.
        control: whether a duplicate of the baseline is timed beside it, as a further candidate.
            Where it is found to differ, no verdict counts.
        interference: whether each candidate is also timed alone, briefly, to find those whose time
            is another one beside the others. It takes up to a tenth of the comparison's time, or
            0.02 s for each candidate where that is more. Not done in a regime other than ``as-is``.
        confirm: whether a fresh process compares once more, which takes it some seconds; a verdict
            that it does not come to is ``uncertain``. For what differs between processes, such as
            the state of memory. Functions have to be those of modules, which that process imports.
        {options}

    Raises:
        ValueError: for no candidates, a baseline that is none of them, a margin that is not
            positive, and as ``time_op``.
        TypeError: for something that is not callable, or an option that there is not.
        TimeoutError: where ``timeout`` passes before there is a sample.
    """
    compared = candidates_of(candidates)
    if not compared:
        raise ValueError("there must be at least one candidate to compare, got none")
    names = [candidate.name for candidate in compared]
    baseline = names[0] if baseline is None else baseline
    if baseline not in names:
        raise ValueError(f"baseline must be one of {names}, got {baseline!r}")
    known = check is None or isinstance(check, bool)
    if not known and not (isinstance(check, str) and check in get_args(Check)):
        raise ValueError(f"check must be 'close', 'exact' or None, got {check!r}")
    flags = (("control", control), ("interference", interference), ("confirm", confirm))
    for what, value in flags:
        if not isinstance(value, bool):
            raise ValueError(f"{what} must be True or False, got {value!r}")
    # First, since that is where the sampler looks for the baseline of its verdicts.
    compared.sort(key=lambda candidate: candidate.name != baseline)
    duplicate = compared[0].but(name=distinct("control", compared))
    timed = [*compared, duplicate] if control else compared
    if stop is None:
        stop = "verdict" if len(timed) > 1 else "interval"
    elif stop == "verdict" and len(timed) == 1:
        raise ValueError(f"stop='verdict' needs several candidates, got {names} alone")
    chosen = make_options("compare", {"stop": stop, "margin": margin, **options})
    if chosen.regime == "both":
        raise ValueError(
            "compare times its candidates in one regime, got regime='both'; call it with "
            "regime='burst' and with regime='sustained'"
        )
    sent = b""
    if confirm and len(compared) > 1:
        if chosen.stream is not None:
            raise ValueError("confirm=True takes no stream, which a fresh process does not have")
        sent = confirming.send(compared, _options_sent(options, chosen))
    limit = TimeLimit.of(chosen.timeout)
    with watched(chosen) as shown:
        found = measure(timed, shown, limit=limit)
    measured = dict(zip((each.name for each in timed), found, strict=True))
    interfering: dict[str, Interference] = {}
    why_not = ""
    if interference and len(timed) > 1:
        interfering, why_not = find_interference(compared, measured, chosen, limit.seconds_left)
    same_results = {}
    if check and len(compared) > 1:
        how: Check = "close" if check is True else check
        same_results = check_results(compared, how, chosen, limit)
    confirmation = confirming.confirm(sent, chosen.budget) if sent else {}
    measured = {each.name: _with_rates(each, measured[each.name], chosen) for each in timed}
    return Comparison(
        {name: measured[name] for name in (*names, *measured)},
        float(margin),
        baseline=baseline,
        control=duplicate.name if control else "",
        same_results=same_results,
        interference=interfering,
        interference_reason=why_not,
        confirmation=confirmation,
    )


def _options_sent(given: Mapping[str, Any], chosen: Options) -> dict[str, Any]:
    """Those of compare in a fresh process, which neither checks results nor tells of batches."""
    own = {name: value for name, value in given.items() if name not in ("log", "stream")}
    return {
        **own,
        "stop": chosen.stop,
        "margin": chosen.margin,
        "check": None,
        "interference": False,
    }
