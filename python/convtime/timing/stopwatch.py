"""User-facing functions: time one operation, or compare several."""

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

#: Regimes of ``regime="both"``; the one that leaves the GPU cool comes first.
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
    """Time ``fn(*args, **kwargs)`` with calls from C++ until its median is precise enough.

    Args:
        fn: callable to time. Its result is dropped after the timed region; it may return None.
        args: positional arguments of ``fn``.
        kwargs: keyword arguments of ``fn``.
        name: name of the result. Default: the name of the function.
        setup: called without arguments before each call, outside the timed region and before the
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
        {options}

    Returns:
        The samples in seconds, with method, conditions and provenance. For ``regime="both"``, those
        of the burst; its ``sustained`` holds the others.

    Raises:
        TypeError: if ``fn`` is not callable, or for an unknown option.
        ValueError: if an option is outside its range, options contradict each other, a GPU method
            or ``clocks="lock"`` is used for work on the CPU, or the thread may not run on the CPU
            in ``pin``.
        TimeoutError: if ``timeout`` passes before the first sample.
        PermissionError: if ``clocks="lock"`` is used and this user may not lock clocks; the message
            says which command to run.
        RuntimeError: if CUDA fails, ``method="kernel"`` is unavailable, or ``method="graph"``
            cannot capture the call. Exceptions of ``fn`` pass through.
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
    """Add the device's ceilings to a measurement if the candidate's FLOPs or bytes are given.

    This comes after the timing, because a large copy and a large matmul heat the device.
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
    """Return the ceilings, or None and why they are unavailable: this keeps the measurement."""
    try:
        return ceilings(device, exclusive=exclusive), ""
    except RuntimeError as error:  # for example, if the GPU's memory is full
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
    """Time several callables interleaved, so that drift affects all of them equally.

    Each round calls every candidate once, in random order; ``time_op`` does the same with one
    candidate. ``budget`` applies to the whole comparison. The default of ``stop`` is ``verdict``
    for several candidates and ``interval`` for one.

    Args:
        candidates: callables without arguments, or with them (:class:`convtime.Candidate`), by name
            or in a sequence. In a mapping, a Candidate's own name is ignored; in a sequence,
            candidates with the same name are numbered.
        baseline: name of the candidate that the others are compared with. Default: the first one.
        check: whether further calls after the timing compare the candidates' results with the
            baseline's: ``close`` (within a tolerance for each dtype, see docs/methods.md),
            ``exact`` (bit by bit), or None (no check). A different result is not an error; the
            comparison's ``same_results`` reports it.
        control: whether to time a duplicate of the baseline as an additional candidate. If it is
            found to differ, no verdict counts.
        interference: whether to time each candidate briefly in isolation, to find those whose time
            changes when it runs with the others. This takes up to a tenth of the comparison's time,
            or 0.02 s per candidate if that is more. Skipped in a regime other than ``as-is``.
        confirm: whether a fresh process repeats the comparison, which takes some seconds. A verdict
            that it does not confirm is ``uncertain``. This accounts for differences between
            processes, such as the state of memory. Functions must be defined in modules, which the
            process imports.
        {options}

    Raises:
        ValueError: if there are no candidates, the baseline is not one of their names, or the
            margin is not positive; otherwise as ``time_op``.
        TypeError: for a candidate that is not callable, or an unknown option.
        TimeoutError: if ``timeout`` passes before the first sample.
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
    # The sampler's verdicts use the first candidate as the baseline.
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
            raise ValueError(
                "confirm=True cannot use a stream, which does not exist in a fresh process; leave "
                "out stream"
            )
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
    """Options of compare in a fresh process, which neither checks results nor logs batches."""
    own = {name: value for name, value in given.items() if name not in ("log", "stream")}
    return {
        **own,
        "stop": chosen.stop,
        "margin": chosen.margin,
        "check": None,
        "interference": False,
    }
