"""Compare the times of several operations, once or at each point of some axes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from convtime.core.errors import InputError, shown
from convtime.sweeps.application import Application, read_applications
from convtime.sweeps.axes import Axes, read_axes
from convtime.sweeps.comparison_table import ComparisonTable
from convtime.sweeps.plan import ComparisonPlan, ComparisonPoint
from convtime.sweeps.scheduler import visit_all
from convtime.sweeps.worker import Maker, failure_of
from convtime.timing.agreement import Check, check_results
from convtime.timing.candidate import Candidate, candidates_of
from convtime.timing.compare import Candidates, check_flags
from convtime.timing.compare import compare as compare_once
from convtime.timing.comparison import Agreement, Comparison
from convtime.timing.options import Options, Stop
from convtime.timing.process_groups import reporting_errors
from convtime.timing.sampling.measure import TimeLimit
from convtime.timing.signature import takes_options
from convtime.timing.time_op import time_op

if TYPE_CHECKING:
    import torch.distributed as dist
    from typing_extensions import Unpack

    from convtime.timing.options import SharedOptions

_Axes = Mapping[str, Iterable[Any] | Mapping[str, Any]]


@overload
def compare(
    candidates: Candidates,
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
    candidates: Candidates,
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
    candidates: Candidates,
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
    flags: dict[str, Any] = {
        "control": control,
        "interference": interference,
        "confirm": confirm,
    }
    given: dict[str, Any] = {"margin": margin, **options}
    if stop is not None:
        given["stop"] = stop
    arguments = {"file": file, "seed": seed, "progress": progress, "executor": executor}
    with reporting_errors(group):
        if over is None:
            for name, argument in arguments.items():
                if argument is not None:
                    raise ValueError(f"{name} must be left out without over, got {argument!r}")
        elif group is not None:
            raise ValueError("over cannot be used in a group of ranks; leave out over")
    if over is None:
        return compare_once(
            candidates, baseline=baseline, check=check, group=group, **flags, **given
        )
    how = check_flags(check, **flags)
    axes = read_axes(over, given, "compare")
    named: Mapping[Any, Any]
    if isinstance(candidates, Mapping):
        named = candidates
    else:
        names_of = [candidate.name for candidate in candidates_of(candidates)]
        named = dict(zip(names_of, candidates, strict=True))
    if len(named) < 2:
        got = f"{shown(next(iter(named)))} alone; use sweep" if named else "none"
        raise InputError(f"over needs at least two candidates, got {got}")
    applications = read_applications(named, axes.parameters)
    names = [*applications]
    baseline = names[0] if baseline is None else baseline
    if baseline not in names:
        raise InputError(f"baseline must be one of {names}, got {baseline!r}")
    return run(applications, axes, baseline, how, flags, **arguments)


def run(
    applications: Mapping[str, Application],
    axes: Axes,
    baseline: str,
    check: Check | None,
    flags: Mapping[str, Any],
    **arguments: Any,
) -> ComparisonTable:
    """Run :func:`compare` on candidates and axes that were already checked.

    Args:
        applications: the candidates by name.
        axes: the axes, and the timing options with ``margin``.
        baseline: as for ``compare``.
        check: as for ``compare``.
        flags: further arguments of ``compare`` that are no timing options.
        arguments: ``file``, ``seed``, ``progress`` and ``executor``, as for ``sweep``.
    """
    table: ComparisonTable = visit_all(
        ComparisonPlan,
        _Visits(applications, axes, baseline, check, flags),
        {**axes.options, **flags, "check": check},
        baseline=baseline,
        margin=float(axes.options["margin"]),
        **arguments,
    )
    return table


@dataclasses.dataclass(frozen=True)
class _Visits(Maker[ComparisonPoint]):
    """Compares candidates at points.

    Attributes:
        baseline: the candidate that ratios and results refer to.
        check: how results are compared; None for no check.
        flags: further arguments of ``compare`` that are no timing options.
    """

    baseline: str
    check: Check | None
    flags: Mapping[str, Any]

    def make(self, point: ComparisonPoint) -> ComparisonPoint:
        """Return the point with the comparison of all candidates that do not fail."""
        isolated = {name: self._in_isolation(name, point) for name in self.applications}
        errors = {name: error for name, error in isolated.items() if isinstance(error, str)}
        timed = [timing for timing in isolated.values() if not isinstance(timing, str)]
        # The sampler settles the verdicts on all candidates against the first one, and the question
        # is which one is fastest.
        candidates = [candidate for _, candidate in sorted(timed, key=lambda pair: pair[0])]
        if not candidates:
            return dataclasses.replace(point, errors=errors)
        options = self.axes.options_at(point.values)
        if len(candidates) == 1 and options.get("stop") == "verdict":
            del options["stop"]
        try:
            compared = compare_once(candidates, check=None, **self.flags, **options)
            agreements = self._agreements(candidates, options)
        except (Exception, SystemExit) as error:  # anything that the user's code raises
            reason = f"together with others, {failure_of(error)}"
            errors |= dict.fromkeys((candidate.name for candidate in candidates), reason)
            return dataclasses.replace(point, errors=errors)
        return dataclasses.replace(
            point, comparison=compared, errors=errors, same_results=agreements
        )

    def _in_isolation(self, name: str, point: ComparisonPoint) -> tuple[float, Candidate] | str:
        """Return a candidate's time in isolation and the candidate, or why it failed.

        The timing is brief. It finds candidates that fail, and makes their first calls.
        """
        try:
            with _same_random_numbers(self.device):
                parameters = self.axes.parameters_at(point.values)
                candidate = self.applications[name].candidate(parameters, name)
            options = self.axes.options_at(point.values) | {
                "quick": True,
                "regime": "as-is",
                "stop": "interval",
                "min_samples": 2,
            }
            del options["margin"]
            measured = time_op(candidate.but(flops=None, nbytes=None), **options)
        except (Exception, SystemExit) as error:  # anything that the user's code raises
            return failure_of(error)
        return measured.median, _with_flops(candidate)

    def _agreements(
        self, candidates: Sequence[Candidate], options: Mapping[str, Any]
    ) -> Mapping[str, Agreement]:
        """Compare results with the baseline's, or with the first one's if the baseline failed."""
        if self.check is None or len(candidates) < 2:
            return {}
        order = [*self.applications]
        order.sort(key=lambda name: name != self.baseline)
        chosen = Options(**options)
        return check_results(
            sorted(candidates, key=lambda candidate: order.index(candidate.name)),
            self.check,
            chosen,
            TimeLimit.of(chosen.timeout),
        )


@contextlib.contextmanager
def _same_random_numbers(device: torch.device) -> Iterator[None]:
    """Have PyTorch draw the same numbers each time, so that all candidates get the same inputs.

    The caller's generators continue as if nothing had been drawn.
    """
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(gpus):
        torch.default_generator.manual_seed(0)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(0)
        yield


def _with_flops(candidate: Candidate) -> Candidate:
    """Return the candidate with the FLOPs of its PyTorch operations, if it does not state them.

    Kernels that PyTorch does not know, and operations without a formula, are not counted, so a
    candidate that has any FLOPs has at least these.
    """
    if candidate.flops is not None or candidate.backward or candidate.before is not None:
        return candidate
    from torch.utils.flop_counter import FlopCounterMode  # imports triton, for some 0.3 s

    counter = FlopCounterMode(display=False)
    with contextlib.suppress(Exception), counter:  # some calls do not support PyTorch's modes
        candidate.fn(*candidate.args, **candidate.kwargs)
        if counter.get_total_flops() > 0:
            return candidate.but(flops=float(counter.get_total_flops()))
    return candidate
