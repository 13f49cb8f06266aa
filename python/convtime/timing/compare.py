"""Compare the times of several operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from convtime.timing import confirming
from convtime.timing.agreement import Check, check_results
from convtime.timing.candidate import Candidate, candidates_of, distinct
from convtime.timing.ceilings import with_rates
from convtime.timing.comparison import Comparison, Interference
from convtime.timing.interference import find_interference
from convtime.timing.options import Options, Stop
from convtime.timing.sampling.measure import measure
from convtime.timing.sampling.supervision import TimeLimit, watched
from convtime.timing.signature import options_of, takes_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from convtime.timing.options import SharedOptions


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
            baseline's: ``close`` (within a tolerance for each dtype, see
            docs/explanation/comparing.md), ``exact`` (bit by bit), or None (no check). A different
            result is not an error; the comparison's ``same_results`` reports it.
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
    chosen = options_of("compare", {"stop": stop, "margin": margin, **options})
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
