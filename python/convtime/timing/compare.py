"""Compare the times of several operations."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, get_args

import torch

from convtime.core.checks import described, require
from convtime.core.child import Child, ChildError, job
from convtime.core.errors import first_line
from convtime.timing.candidate import Candidate, candidates_of, distinct, with_keywords
from convtime.timing.comparison import Agreement, Comparison, Interference
from convtime.timing.measurement import Measurement
from convtime.timing.options import Options, SharedOptions, Stop, options_of
from convtime.timing.result_check import Check, check_results
from convtime.timing.sampling.measure import (
    TimeLimit,
    measure,
    measure_here_or_in_group,
    reporting_errors,
)
from convtime.timing.time_op import with_rates
from convtime.timing.verdict import Ratio
from convtime.view.wording import format_seconds

if TYPE_CHECKING:
    import torch.distributed as dist
    from typing_extensions import Unpack


#: Operations to compare, by name or in a sequence.
Candidates = (
    Mapping[str, Callable[..., object] | Candidate] | Sequence[Callable[..., object] | Candidate]
)

_IN_GROUP = "further calls would have to be agreed between the ranks"

# Of the timing of each candidate alone.
_SHARE = 0.1  # of the comparison's own time, for all candidates together
_LEAST_SECONDS = 0.02  # for each candidate, if that is more
_WARMUP_SHARE = 0.25  # of that; one-time work is already done after the comparison
_MIN_SAMPLES = 10

#: Time allowed for a comparison in a fresh process, in addition to the timing.
_PATIENCE_SECONDS = 120.0


@with_keywords(SharedOptions)
def compare(
    candidates: Candidates,
    *,
    baseline: str | None = None,
    check: Check | bool | None = "close",
    control: bool = False,
    interference: bool = True,
    confirm: bool = False,
    group: dist.ProcessGroup | None = None,
    stop: Stop | None = None,
    margin: float = 0.01,
    **options: Unpack[SharedOptions],
) -> Comparison:
    """Run :func:`convtime.compare` without ``over``."""
    with reporting_errors(group):
        require(
            group is None or not confirm,
            "confirm=True cannot be used in a group of ranks; leave out confirm=True",
        )
        how = check_flags(check, control=control, interference=interference, confirm=confirm)
        compared = candidates_of(candidates)
        require(compared, "there must be at least one candidate to compare, got none")
        names = [candidate.name for candidate in compared]
        baseline = names[0] if baseline is None else baseline
        require(baseline in names, f"baseline must be one of {names}, got {baseline!r}")
        # The sampler's verdicts use the first candidate as the baseline.
        compared.sort(key=lambda candidate: candidate.name != baseline)
        duplicate = compared[0].but(name=distinct("control", names))
        timed = [*compared, duplicate] if control else compared
        if stop is None:
            stop = "verdict" if len(timed) > 1 else "interval"
        elif stop == "verdict" and len(timed) == 1:
            raise ValueError(f"stop='verdict' needs several candidates, got {names} alone")
        chosen = options_of("compare", SharedOptions, options, margin=margin, stop=stop)
    again = b""
    if confirm and len(compared) > 1:
        require(
            chosen.stream is None,
            "confirm=True cannot use a stream, which does not exist in a fresh process; leave out "
            "stream",
        )
        for candidate in compared:
            check_sendable(candidate, "confirm=True")
        by_name = {candidate.name: candidate for candidate in compared}
        sent = {name: value for name, value in options.items() if name not in ("log", "stream")}
        sent |= {"stop": stop, "margin": margin, "check": None, "interference": False}
        again = job(compare, by_name, **sent)
    limit = TimeLimit(chosen.timeout)
    measurements = measure_here_or_in_group(timed, chosen, group, limit)
    measured = dict(zip((each.name for each in timed), measurements, strict=True))
    interfering: dict[str, Interference] = {}
    same_results: dict[str, Agreement] = {}
    why_not = ""
    if measurements[0].ranks is not None:
        why_not = _IN_GROUP
        unchecked = Agreement(None, f"not checked, since {_IN_GROUP}")
        same_results = {other.name: unchecked for other in compared[1:]}
    else:
        on_device = dataclasses.replace(chosen, device=measurements[0].device)  # known from now on
        if interference and len(timed) > 1:
            interfering, why_not = find_interference(
                compared, measured, on_device, limit.seconds_left
            )
        if how is not None and len(compared) > 1:
            same_results = check_results(compared, how, on_device, limit)
    confirmation = confirm_ratios(again, chosen.budget) if again else {}
    measured = {each.name: with_rates(each, measured[each.name], chosen) for each in timed}
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


def check_flags(check: object, **flags: object) -> Check | None:
    """Return how results are compared, and require that the other arguments are True or False.

    Raises:
        ValueError: an argument has another value.
    """
    is_known = check is None or isinstance(check, bool)
    is_known = is_known or (isinstance(check, str) and check in get_args(Check))
    require(is_known, f"check must be 'close', 'exact' or None, got {described(check)}")
    for flag, value in flags.items():
        require(isinstance(value, bool), f"{flag} must be True or False, got {described(value)}")
    return "close" if check is True else check or None  # type: ignore[return-value]


def find_interference(
    candidates: Sequence[Candidate],
    compared: Mapping[str, Measurement],
    options: Options,
    seconds_left: float,
) -> tuple[dict[str, Interference], str]:
    """Time each candidate alone, in a tenth of the comparison's time in total, or in 0.02 s each.

    Args:
        candidates: candidates of the comparison.
        compared: their measurements, by name.
        options: options of the comparison.
        seconds_left: seconds until its timeout.

    Returns:
        The candidates whose two medians differ by more than both intervals and the margin, by name;
        and why others may not have been checked, empty if all were.
    """
    interfering: dict[str, Interference] = {}
    one = next(iter(compared.values()))
    if any(measured.regime != "as-is" for measured in compared.values()):
        why_not = f"regime {one.regime.used!r} would have to be set up again for each candidate"
        return interfering, why_not
    assert one.warmup_calls is not None  # only measurements of other tools have None
    assert one.warmup_seconds is not None
    assert one.sampling_seconds is not None
    spent = one.warmup_seconds + one.sampling_seconds
    seconds_per_call = spent / (one.warmup_calls + len(one.seconds) * len(compared))
    budget = max(_LEAST_SECONDS, _SHARE * spent / len(candidates))
    warmup = _WARMUP_SHARE * budget
    if _MIN_SAMPLES * seconds_per_call > budget - warmup:
        why_not = f"{_MIN_SAMPLES} calls of each alone take more than a tenth of the comparison"
        return interfering, why_not
    if len(candidates) * budget > seconds_left:
        return interfering, "the timeout leaves no time for it"
    alone_options = dataclasses.replace(
        options,
        regime="as-is",
        warmup=warmup,
        stop="budget",
        min_samples=_MIN_SAMPLES,
        budget=budget - warmup,
        log=None,
    )
    why_not = ""
    for candidate in candidates:
        try:
            (alone,) = measure([candidate], alone_options)
        except Exception as error:  # the calls may raise anything; keep the measurements
            why_not = f"{candidate.name!r} could not be timed alone ({first_line(error)})"
            continue
        measured = compared[candidate.name]
        (low, high), (alone_low, alone_high) = measured.median_interval, alone.median_interval
        difference = max(low - alone_high, alone_low - high)
        if alone.method != measured.method:
            why_not = f"{candidate.name!r} alone is timed by {alone.method}"
        elif difference > float(options.margin) * alone.median:
            ratio = measured.median / alone.median
            times = [format_seconds(each.median) for each in (measured, alone)]
            sentence = f"takes {times[0]} beside the others and {times[1]} alone ({ratio:.3f})"
            interfering[candidate.name] = Interference(ratio, alone.median, sentence)
    return interfering, why_not


def fresh_process() -> Child:
    """Return a process that uses as many threads as this one."""
    return Child(job(torch.set_num_threads, torch.get_num_threads()))


def confirm_ratios(compare: bytes, seconds: float) -> Mapping[str, Ratio]:
    """Return the ratios that a fresh process measures, by name.

    Args:
        compare: a job that returns a comparison.
        seconds: time that the timing may take in that process.

    Raises:
        RuntimeError: if that process fails.
    """
    try:
        with fresh_process() as child:
            compared: Comparison = child.call(compare, _PATIENCE_SECONDS + seconds)
    except ChildError as error:
        raise RuntimeError(f"the fresh process to confirm this {error}") from error
    return {name: compared.ratio(name) for name in compared.others}


def check_sendable(candidate: Candidate, what: str) -> None:
    """Check that a fresh process can have a candidate.

    Args:
        candidate: the candidate.
        what: the option that asks for the process.

    Raises:
        ValueError: it cannot be sent.
    """
    try:
        for function in (candidate.fn, candidate.before):
            # Pickle would send it by a name that the fresh process does not define.
            if getattr(function, "__module__", None) == "__main__":
                name = getattr(function, "__qualname__", function)
                raise pickle.PicklingError(f"{name} is defined in __main__")
        pickle.dumps(candidate)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{what} sends the candidates to a fresh process, and {candidate.name!r} cannot "
            f"be sent ({first_line(error)}); define its function in a module"
        ) from error
