"""Compare the times of several operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from convtime.core.child import job
from convtime.timing import confirming
from convtime.timing.agreement import Check, check_results
from convtime.timing.candidate import Candidate, candidates_of, distinct, with_keywords
from convtime.timing.ceilings import with_rates
from convtime.timing.comparison import Agreement, Comparison, Interference
from convtime.timing.interference import find_interference
from convtime.timing.options import Options, SharedOptions, Stop, options_of
from convtime.timing.sampling.measure import (
    TimeLimit,
    measure_here_or_in_group,
    reporting_errors,
    watched,
)

if TYPE_CHECKING:
    import torch.distributed as dist
    from typing_extensions import Unpack


#: Operations to compare, by name or in a sequence.
Candidates = (
    Mapping[str, Callable[..., object] | Candidate] | Sequence[Callable[..., object] | Candidate]
)

_IN_GROUP = "further calls would have to be agreed between the ranks"


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
        if group is not None and confirm:
            raise ValueError(
                "confirm=True cannot be used in a group of ranks; leave out confirm=True"
            )
        how = check_flags(check, control=control, interference=interference, confirm=confirm)
        given: dict[str, Any] = {"margin": margin, **options}
        compared = candidates_of(candidates)
        if not compared:
            raise ValueError("there must be at least one candidate to compare, got none")
        names = [candidate.name for candidate in compared]
        baseline = names[0] if baseline is None else baseline
        if baseline not in names:
            raise ValueError(f"baseline must be one of {names}, got {baseline!r}")
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
        if chosen.stream is not None:
            raise ValueError(
                "confirm=True cannot use a stream, which does not exist in a fresh process; leave "
                "out stream"
            )
        confirming.check_sendable(compared, "confirm=True")
        by_name = {candidate.name: candidate for candidate in compared}
        again = job(compare, by_name, **_options_sent(given, chosen))
    limit = TimeLimit.of(chosen.timeout)
    with watched(chosen) as shown:
        found = measure_here_or_in_group(timed, shown, group, limit)
    measured = dict(zip((each.name for each in timed), found, strict=True))
    interfering: dict[str, Interference] = {}
    why_not = ""
    in_group = found[0].ranks is not None
    if in_group:
        why_not = _IN_GROUP
    elif interference and len(timed) > 1:
        interfering, why_not = find_interference(compared, measured, chosen, limit.seconds_left)
    same_results = {}
    if in_group:
        same_results = {
            other.name: Agreement(None, f"not checked, since {_IN_GROUP}") for other in compared[1:]
        }
    elif how is not None and len(compared) > 1:
        same_results = check_results(compared, how, chosen, limit)
    confirmation = confirming.confirm(again, chosen.budget) if again else {}
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
    is_known = isinstance(check, str) and check in get_args(Check)
    if not (is_known or check is None or isinstance(check, bool)):
        raise ValueError(f"check must be 'close', 'exact' or None, got {check!r}")
    for flag, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"{flag} must be True or False, got {value!r}")
    return "close" if check is True else check or None  # type: ignore[return-value]


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
