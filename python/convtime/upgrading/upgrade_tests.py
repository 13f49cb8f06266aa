"""Run tests with two interpreters, alternating, and find whose times changed and why."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence

from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.regression.changes import Change
from convtime.timing.measurement import Measurement
from convtime.upgrading.causes import PassFacts
from convtime.upgrading.confirming import INTERRUPTED, Run, confirm
from convtime.upgrading.interpreters import FailedError, Interpreters, Side
from convtime.upgrading.result import LayerChange, Upgrade, by_cost, not_compared
from convtime.upgrading.upgrade import MARGIN, PAIRS, Progress

_MISSING = "sizes, layouts, backends, memory and bits of results: tests do not record them"
_ABSENT = "it does not have this test"


@dataclasses.dataclass
class _Records:
    """What tests recorded in one process.

    Attributes:
        measured: the times, by name.
        tests: by the same names, the tests.
        different: how results differ from those of the test's baseline, by name.
        plans: tags of the plans that cuDNN built, by test that ran; empty without its log.
        failures: why there are no times, by test.
    """

    measured: dict[str, Measurement] = dataclasses.field(default_factory=dict)
    tests: dict[str, str] = dataclasses.field(default_factory=dict)
    different: dict[str, str] = dataclasses.field(default_factory=dict)
    plans: dict[str, str] = dataclasses.field(default_factory=dict)
    failures: dict[str, str] = dataclasses.field(default_factory=dict)

    def add(self, other: _Records) -> None:
        for field, values in vars(other).items():
            getattr(self, field).update(values)

    def facts(self, name: str) -> PassFacts | None:
        """Return the facts of a time; None if there is none."""
        measured = self.measured.get(name)
        if measured is None:
            return None
        return PassFacts(
            plan=self.plans.get(self.tests[name], ""),
            kernels=tuple(sorted({activity.label for activity in measured.activities})),
            first_call_seconds=measured.first_call_seconds,
        )

    def failure(self, test: str, name: str) -> str:
        """Return why a test gave no time of this name; empty if it gave one."""
        if name in self.measured:
            return ""
        return self.failures.get(test, "it recorded no such time")


def upgrade_tests(
    interpreters: Interpreters,
    *,
    margin: float = MARGIN,
    pairs: int = PAIRS,
    progress: Progress = lambda *_: None,
) -> Upgrade:
    """Compare the times that tests record in two interpreters.

    A KeyboardInterrupt ends the timing; tests that both interpreters ran before are judged.

    Args:
        interpreters: the interpreters and their tests.
        margin: relative difference that counts as equal.
        pairs: number of fresh pairs of processes that confirm each finding.
        progress: is called with each step.

    Raises:
        InputError: an interpreter cannot be used, or not with these tests.
    """
    old, new = _Records(), _Records()
    interrupted = False
    with contextlib.closing(interpreters.pairs(1)) as single:
        sides = next(single)
        settings = (sides[0].settings(), sides[1].settings())
        on_gpu = sides[0].on_gpu
        every = [*dict.fromkeys(test for side in sides for test in side.loaded["tests"])]
        require(every, f"{' '.join(interpreters.load['paths'])} contains no tests")
        try:
            _run_tests(sides, every, "times", progress, (old, new))
        except KeyboardInterrupt:
            if not _pairs(old, new):
                raise
            interrupted = True
    tests = {**new.tests, **old.tests}
    done = {*old.plans, *old.failures}

    def run_again(names: Collection[str], sides: tuple[Side, Side], what: str) -> list[_Records]:
        wanted = {tests[name] for name in names}
        both = _Records(), _Records()
        _run_tests(sides, [test for test in every if test in wanted], what, progress, both)
        return [*both]

    def again(names: Collection[str]) -> Iterator[Run]:
        for number, sides in enumerate(interpreters.pairs(pairs), start=1):
            yield _pairs(*run_again(names, sides, f"confirming, pair {number}"))

    confirmation = confirm(_pairs(old, new), again, margin, pairs, interrupted=interrupted)
    missing = [_MISSING, *confirmation.missing]
    changed = [
        name
        for name, change in confirmation.changes.items()
        if change.verdict in ("slower", "faster")
    ]
    if changed and on_gpu and confirmation.interrupted:
        missing.append(f"cuDNN's plans: {INTERRUPTED}")
    elif changed and on_gpu:
        try:
            for sides in interpreters.pairs(1, first_logs=True):
                logged = run_again(changed, sides, "plans")
                old.plans, new.plans = (recorded.plans for recorded in logged)
        except InputError as error:
            missing.append(f"cuDNN's plans: {error}")
    changes = [
        _change(name, tests[name], confirmation.changes, (old, new), settings, interpreters.command)
        for name in tests
    ]
    without = [test for test in every if test in done and test not in tests.values()]
    silent = [test for test in without if test not in {**old.failures, **new.failures}]
    if silent:
        missing.append(f"the times of tests that recorded none ({len(silent)}, e.g. {silent[0]})")
    failed = [
        not_compared(test, [recorded.failure(test, "") for recorded in (old, new)])
        for test in without
        if test not in silent
    ]
    return Upgrade(
        layers=by_cost(changes),
        before=settings[0],
        after=settings[1],
        margin=margin,
        pairs=confirmation.pairs,
        missing=tuple(missing),
        failures=(
            *(f"{change.name}: {change.sentence}" for change in failed),
            *(f"{test}: {INTERRUPTED}" for test in every if test not in done),
        ),
        interrupted=confirmation.interrupted,
    )


def _run_tests(
    sides: tuple[Side, Side],
    tests: Sequence[str],
    what: str,
    progress: Progress,
    both: tuple[_Records, _Records],
) -> None:
    """Run tests in both interpreters, alternating; an interrupt adds a test to both or neither."""
    for number, test in enumerate(tests):
        progress(what, number, len(tests))
        of_test = {
            index: _run_test(sides[index], test, tests[number + 1 :])
            for index in ((0, 1) if number % 2 == 0 else (1, 0))
        }
        for index, recorded in of_test.items():
            both[index].add(recorded)


def _run_test(side: Side, test: str, later: Sequence[str]) -> _Records:
    available = side.loaded["tests"]
    if test not in available:
        return _Records(failures={test: _ABSENT})
    # Pytest keeps the fixtures that the next test shares.
    following = next((test for test in later if test in available), None)
    try:
        answer, plans = side.ask_with_plans("time", test=test, next=following)
    except FailedError as error:
        return _Records(failures={test: str(error)})
    measured = {
        name: Measurement.from_dict(fields) for name, fields in answer["measurements"].items()
    }
    return _Records(measured, answer["tests"], answer["different"], {test: plans})


def _pairs(old: _Records, new: _Records) -> Run:
    return {
        name: (measured, new.measured[name])
        for name, measured in old.measured.items()
        if name in new.measured
    }


def _change(
    name: str,
    test: str,
    changes: Mapping[str, Change],
    both: tuple[_Records, _Records],
    settings: tuple[Mapping[str, str], Mapping[str, str]],
    command: str,
) -> LayerChange:
    old, new = both
    failures = [recorded.failure(test, name) for recorded in both]
    change = not_compared(name, failures) if any(failures) else changes[name]
    if _ABSENT not in failures:  # pytest rejects it there
        change = dataclasses.replace(change, reproducer=f"{command} {shlex.quote(test)}")
    different = "" if name in old.different else new.different.get(name, "")
    facts = [recorded.facts(name) for recorded in both]
    return LayerChange.of((name,), "", change, facts, settings, different)
