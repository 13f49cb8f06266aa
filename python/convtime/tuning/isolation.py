"""Run a race in a child process, and replace it when a candidate makes it unusable."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from convtime.core.child import ChildError, job, report
from convtime.core.errors import one_line
from convtime.timing.candidate import Candidate
from convtime.timing.compare import check_sendable, fresh_process
from convtime.timing.options import Options
from convtime.timing.result_check import Check
from convtime.tuning.elimination import OnStage, UnusableError, none_left
from convtime.tuning.race_result import Dropped, Race

_BEGIN_SECONDS = 120.0  # up to the first report, mostly of CUDA's initialization
_MARGIN_SECONDS = 10.0  # for the child to report a timeout itself
_LONGEST_ROUND = 20.0  # times the planned duration of the race, beyond the timeout


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is raced, and how.

    Attributes:
        candidates: by name.
        reference: a candidate whose result is right; None for the first of the candidates.
        check: how results are compared; None for no check.
        order: names in the order that breaks ties.
        seconds: planned duration.
        options: the timing options; ``timeout`` limits the first timing of each candidate.
        thorough: whether each candidate is first timed for longer, to find one that fails later.
    """

    candidates: Mapping[str, Candidate]
    reference: Candidate | None
    check: Check | None
    order: Sequence[str]
    seconds: float
    options: Options
    thorough: bool = False

    def without(self, names: Mapping[str, Dropped]) -> Plan:
        """Return the plan without some candidates."""
        return dataclasses.replace(
            self,
            candidates={name: each for name, each in self.candidates.items() if name not in names},
            order=[name for name in self.order if name not in names],
        )


class _Loss(NamedTuple):
    """Why a process cannot continue, and the candidate that it timed alone; empty in a round."""

    name: str
    reason: str


#: Runs a race in the process that calls it.
Run = Callable[[Plan, OnStage], Race]


def run(run_here: Run, plan: Plan, on_stage: OnStage) -> Race:
    """Run a race in child processes, each without the candidates that ended the ones before.

    Args:
        run_here: runs a race in the process that calls it.
        plan: the race.
        on_stage: is called with each stage and the names in it.

    Raises:
        RuntimeError: no candidate is left, several make the process end only together, or the child
            fails for another reason.
        ValueError: a candidate cannot be sent to another process.
    """
    start = time.monotonic()
    dropped: dict[str, Dropped] = {}
    while True:
        left = plan.without(dropped)
        if not left.candidates:
            raise none_left(dropped)
        started = time.monotonic() - start
        race = _run_once(run_here, left, on_stage)
        if isinstance(race, _Loss):
            if race.name:
                dropped[race.name] = Dropped(race.reason, "alone", time.monotonic() - start)
                continue
            if not plan.thorough:
                plan = dataclasses.replace(plan, thorough=True)
                continue
            names = ", ".join(map(repr, left.candidates))
            raise RuntimeError(
                f"some of the candidates {names} can be timed alone, but not together: "
                f"{race.reason}; race fewer"
            )
        later = {
            name: dataclasses.replace(drop, seconds=drop.seconds + started)
            for name, drop in race.dropped.items()
        }
        return dataclasses.replace(
            race,
            order=tuple(plan.order),
            dropped=dropped | later,
            seconds=time.monotonic() - start,
        )


def _run_once(run_here: Run, plan: Plan, on_stage: OnStage) -> Race | _Loss:
    """Run a race in one child process."""
    for candidate in (*plan.candidates.values(), plan.reference):
        if candidate is not None:
            check_sendable(candidate, "isolated=True")
    name, has_begun = "", False

    def reported(stage: tuple[str, list[str]]) -> float:
        nonlocal name, has_begun
        on_stage(*stage)
        kind, names = stage
        alone, has_begun = kind == "alone", True
        name = names[0] if alone else ""
        patience = float(plan.options.timeout or 0.0) + _MARGIN_SECONDS
        return patience + (0.0 if alone else _LONGEST_ROUND * plan.seconds)

    try:
        with fresh_process() as child:
            race: Race | _Loss = child.call(job(_race, run_here, plan), _BEGIN_SECONDS, reported)
            child.end()  # by itself, it would wait for a GPU that hangs
            return race
    except ChildError as ended:
        error = ended.__cause__
        if isinstance(error, RuntimeError | ValueError):
            raise RuntimeError(one_line(error)) from None
        if not has_begun:
            raise RuntimeError(f"the isolated race could not begin: its process {ended}") from None
        return _Loss(name, f"its process {ended}")


def _race(run_here: Run, plan: Plan) -> Race | _Loss:
    try:
        return run_here(plan, lambda stage, names: report((stage, [*names])))
    except UnusableError as error:
        return _Loss(error.name, one_line(error.__context__ or error))
