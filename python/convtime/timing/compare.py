"""Compare the times of several operations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

from convtime.timing import confirming
from convtime.timing.agreement import Check, check_results
from convtime.timing.candidate import Candidate, candidates_of, distinct
from convtime.timing.ceilings import with_rates
from convtime.timing.comparison import Agreement, Comparison, Interference
from convtime.timing.interference import find_interference
from convtime.timing.options import Options, Stop
from convtime.timing.process_groups import measure_here_or_in_group, reporting_errors
from convtime.timing.sampling.supervision import TimeLimit, watched
from convtime.timing.signature import options_of, takes_options

if TYPE_CHECKING:
    import torch.distributed as dist
    from typing_extensions import Unpack

    from convtime.sweeps.table import ComparisonTable
    from convtime.timing.options import SharedOptions

_Candidates = (
    Mapping[str, Callable[..., object] | Candidate] | Sequence[Callable[..., object] | Candidate]
)
_Axes = Mapping[str, Iterable[Any] | Mapping[str, Any]]

_IN_GROUP = "further calls would have to be agreed between the ranks"


@overload
def compare(
    candidates: _Candidates,
    over: None = None,
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
) -> Comparison: ...


@overload
def compare(
    candidates: _Candidates,
    over: _Axes,
    *,
    file: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    executor: Executor | int | Literal["gpus"] | None = None,
    baseline: str | None = None,
    check: Check | bool | None = "close",
    control: bool = False,
    interference: bool = True,
    confirm: bool = False,
    group: dist.ProcessGroup | None = None,
    stop: Stop | None = None,
    margin: float = 0.01,
    **options: Unpack[SharedOptions],
) -> ComparisonTable: ...


@takes_options()
def compare(
    candidates: _Candidates,
    over: _Axes | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    executor: Executor | int | Literal["gpus"] | None = None,
    baseline: str | None = None,
    check: Check | bool | None = "close",
    control: bool = False,
    interference: bool = True,
    confirm: bool = False,
    group: dist.ProcessGroup | None = None,
    stop: Stop | None = None,
    margin: float = 0.01,
    **options: Unpack[SharedOptions],
) -> Comparison | ComparisonTable:
    """Time several callables interleaved, so that drift affects all of them equally.

    Each round calls every candidate once, in random order; ``time_op`` does the same with one
    candidate. ``budget`` applies to the whole comparison. The default of ``stop`` is ``verdict``
    for several candidates and ``interval`` for one.

    With ``over``, the candidates are compared at each combination of the axes' values, each time
    with this budget. An axis is an option of ``time_op``, as for ``sweep``, or a parameter of the
    candidates. If any axis is a parameter, each candidate is a factory: it is called with a point's
    values, and returns a callable without arguments or a :class:`convtime.Candidate`. PyTorch's
    random numbers are the same for each factory, so that all draw the same inputs. The result tells
    which candidates are fastest at each point; differences count at a false-discovery rate of 5 %
    among all pairs of candidates at all points. A candidate that fails at a point is left out
    there.

    Args:
        candidates: callables without arguments, or with them (:class:`convtime.Candidate`), by name
            or in a sequence. In a mapping, a Candidate's own name is ignored; in a sequence,
            candidates with the same name are numbered.
        over: values of each axis, as for ``sweep``.
        file: only with ``over``: file to which each point is written when done. If the file exists,
            the comparison resumes, as a ``sweep`` does.
        seed: only with ``over``: seed of the order of the points. Default: random, and recorded.
        progress: only with ``over``: whether to show a progress bar on standard error. Default: on
            a terminal only.
        executor: only with ``over``: where the points are compared, as for ``sweep``.
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
        group: process group whose ranks compare together, as for ``time_op``: each of them makes
            the same call. Neither results nor interference are then checked, and neither ``over``
            nor ``confirm`` can be used.
        {options}

    Returns:
        A :class:`convtime.Comparison`; with ``over``, a :class:`convtime.ComparisonTable`.

    Raises:
        ValueError: if there are no candidates, the baseline is not one of their names, or the
            margin is not positive; otherwise as ``time_op``.
        TypeError: for a candidate that is not callable, or an unknown option.
        TimeoutError: if ``timeout`` passes before the first sample.
    """
    with reporting_errors(group):
        if group is not None and (over is not None or confirm):
            what = "over" if over is not None else "confirm=True"
            raise ValueError(f"{what} cannot be used in a group of ranks; leave out {what}")
        known = check is None or isinstance(check, bool)
        if not known and not (isinstance(check, str) and check in get_args(Check)):
            raise ValueError(f"check must be 'close', 'exact' or None, got {check!r}")
        flags = (("control", control), ("interference", interference), ("confirm", confirm))
        for what, value in flags:
            if not isinstance(value, bool):
                raise ValueError(f"{what} must be True or False, got {value!r}")
        how: Check | None = "close" if check is True else check or None
        given: dict[str, Any] = {"margin": margin, **options}
        if over is not None:
            # The only function of a room above: it calls this one at each point.
            from convtime.sweeps.compare_over import compare_over

            return compare_over(
                candidates,
                over,
                given if stop is None else {"stop": stop, **given},
                baseline=baseline,
                check=how,
                given=dict(flags),
                file=file,
                seed=seed,
                progress=progress,
                executor=executor,
            )
        only_over = (("file", file), ("seed", seed), ("progress", progress), ("executor", executor))
        for what, argument in only_over:
            if argument is not None:
                raise ValueError(f"{what} must be left out without over, got {argument!r}")
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
        chosen = options_of("compare", {"stop": stop, **given})
    sent = b""
    if confirm and len(compared) > 1:
        if chosen.stream is not None:
            raise ValueError(
                "confirm=True cannot use a stream, which does not exist in a fresh process; leave "
                "out stream"
            )
        sent = confirming.send(compared, _options_sent(given, chosen))
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
