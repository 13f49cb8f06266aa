"""Compare candidates at each point of some axes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from convtime.core.errors import InputError, shown
from convtime.sweeps.application import Application, read_applications
from convtime.sweeps.axes import Axes, read_axes
from convtime.sweeps.comparison_plan import ComparisonPlan, ComparisonPoint
from convtime.sweeps.executing import Workers, crew_of
from convtime.sweeps.table import ComparisonTable
from convtime.sweeps.table_rows import COLUMNS
from convtime.sweeps.visiting import check_arguments, drawn, visit_all, written
from convtime.sweeps.worker import Maker, told
from convtime.timing.agreement import Check, check_results
from convtime.timing.candidate import Candidate, distinct, name_of
from convtime.timing.compare import compare
from convtime.timing.comparison import Agreement, Comparison
from convtime.timing.options import Options
from convtime.timing.sampling.measure import TimeLimit
from convtime.timing.time_op import time_op


@dataclasses.dataclass(frozen=True)
class How:
    """How each point is compared.

    Attributes:
        baseline: the candidate that ratios and results refer to.
        check: how results are compared; None for no check.
        margin: relative difference that counts as equal.
        given: further arguments of ``compare`` that are no timing options.
    """

    baseline: str
    check: Check | None
    margin: float
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def compare_over(
    candidates: Mapping[str, Any] | Sequence[Any],
    over: object,
    options: Mapping[str, Any],
    *,
    baseline: str | None,
    check: Check | None,
    given: Mapping[str, Any],
    file: str | os.PathLike[str] | None,
    seed: int | None,
    progress: bool | None,
    executor: Workers,
) -> ComparisonTable:
    """Run ``compare`` with ``over``; see :func:`convtime.compare`.

    Args:
        candidates: as for ``compare``.
        over: values by axis.
        options: timing options, with ``margin``.
        baseline: as for ``compare``.
        check: as for ``compare``.
        given: further arguments of ``compare``.
        file: as for ``sweep``.
        seed: as for ``sweep``.
        progress: as for ``sweep``.
        executor: as for ``sweep``.

    Raises:
        InputError: an argument does not fit; raised before any measurement.
    """
    axes = read_axes(over, options, COLUMNS, "compare")
    named = _named(candidates)
    if len(named) < 2:
        got = f"{shown(next(iter(named)))} alone; use sweep" if named else "none"
        raise InputError(f"over needs at least two candidates, got {got}")
    applications = read_applications(named, axes.parameters)
    names = [*applications]
    baseline = names[0] if baseline is None else baseline
    if baseline not in names:
        raise InputError(f"baseline must be one of {names}, got {baseline!r}")
    how = How(baseline, check, float(options["margin"]), given)
    return run(applications, axes, how, file=file, seed=seed, progress=progress, executor=executor)


def _named(candidates: object) -> dict[Any, Any]:
    """Return candidates by name; in a sequence, those with equal names are numbered."""
    if isinstance(candidates, Mapping):
        return dict(candidates)
    if not isinstance(candidates, Sequence) or isinstance(candidates, str | bytes):
        raise InputError(
            "over needs callables or Candidates, in a mapping by name or in a sequence, got "
            f"{type(candidates).__name__}"
        )
    named: dict[Any, Any] = {}
    for each in candidates:
        name = each.name if isinstance(each, Candidate) else name_of(each)
        named[distinct(name, named)] = each
    return named


def run(
    applications: Mapping[str, Application],
    axes: Axes,
    how: How,
    *,
    file: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    executor: Workers = None,
) -> ComparisonTable:
    """Run :func:`compare_over` on candidates and axes that were already checked."""
    check_arguments(file, seed)
    with crew_of(executor, _Visits(applications, axes, how)) as crew:
        plan = ComparisonPlan(
            applications={name: each.identity for name, each in applications.items()},
            axes=axes.labels,
            options=written({**axes.options, **how.given, "check": how.check}),
            seed=drawn(seed),
            machine=crew.machine,
            baseline=how.baseline,
            margin=how.margin,
        )
        journal = visit_all(plan, crew, file=file, seed=seed, progress=progress)
    assert isinstance(journal.plan, ComparisonPlan)
    return ComparisonTable.of_visits(journal.plan, journal.visits)


@dataclasses.dataclass(frozen=True)
class _Visits(Maker[ComparisonPoint]):
    """Compares candidates at points."""

    how: How

    def make(self, point: ComparisonPoint) -> ComparisonPoint:
        """Return the point with the comparison of all candidates that do not fail."""
        alone = {name: self._alone(name, point) for name in self.applications}
        errors = {name: each for name, each in alone.items() if isinstance(each, str)}
        found = [each for each in alone.values() if not isinstance(each, str)]
        # The sampler settles the verdicts on all candidates against the first one, and the question
        # is which one is fastest.
        candidates = [each for _, each in sorted(found, key=lambda pair: pair[0])]
        if not candidates:
            return dataclasses.replace(point, errors=errors)
        options = self.axes.options_at(point.values)
        if len(candidates) == 1 and options.get("stop") == "verdict":
            del options["stop"]
        try:
            compared: Comparison = compare(candidates, check=None, **self.how.given, **options)
            agreements = self._agreements(candidates, options)
        except (Exception, SystemExit) as error:  # anything that the user's code raises
            errors |= {each.name: f"together with others, {told(error)}" for each in candidates}
            return dataclasses.replace(point, errors=errors)
        return dataclasses.replace(
            point, comparison=compared, errors=errors, same_results=agreements
        )

    def _alone(self, name: str, point: ComparisonPoint) -> tuple[float, Candidate] | str:
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
            median = time_op(candidate.but(flops=None, nbytes=None), **options).median
        except (Exception, SystemExit) as error:  # anything that the user's code raises
            return told(error)
        return median, _with_flops(candidate)

    def _agreements(
        self, candidates: Sequence[Candidate], options: Mapping[str, Any]
    ) -> Mapping[str, Agreement]:
        """Compare results with the baseline's, or with the first one's if the baseline failed."""
        if self.how.check is None or len(candidates) < 2:
            return {}
        order = [*self.applications]
        order.sort(key=lambda name: name != self.how.baseline)
        chosen = Options(**options)
        return check_results(
            sorted(candidates, key=lambda each: order.index(each.name)),
            self.how.check,
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
    counter = FlopCounterMode(display=False)
    with contextlib.suppress(Exception), counter:  # some calls do not support PyTorch's modes
        candidate.fn(*candidate.args, **candidate.kwargs)
        if counter.get_total_flops() > 0:
            return candidate.but(flops=float(counter.get_total_flops()))
    return candidate
