"""Run tests with two interpreters, alternating, and find whose times changed and why."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from convtime.core.errors import InputError
from convtime.regression.changes import Change
from convtime.timing.measurement import Measurement
from convtime.timing.verdict import ChangeVerdict
from convtime.upgrading.causes import PassFacts
from convtime.upgrading.confirming import INTERRUPTED, Run, confirmed
from convtime.upgrading.interpreters import Interpreters
from convtime.upgrading.result import LayerChange, Upgrade
from convtime.upgrading.upgrade import MARGIN, PAIRS, Tell, by_cost
from convtime.upgrading.workers import FailedError, Side

_MISSING = "sizes, layouts, backends, memory and bits of results: tests do not record them"
_ABSENT = "it does not have this test"


@dataclasses.dataclass
class _Recorded:
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

    def add(self, other: _Recorded) -> None:
        """Add what other tests recorded."""
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


def upgrade_tests(
    interpreters: Interpreters,
    *,
    margin: float = MARGIN,
    pairs: int = PAIRS,
    tell: Tell = lambda *_: None,
) -> Upgrade:
    """Compare the times that tests record in two interpreters.

    A KeyboardInterrupt ends the timing; tests that both interpreters ran before are judged.

    Args:
        interpreters: the interpreters and their tests.
        margin: relative difference that counts as equal.
        pairs: number of fresh pairs of processes that confirm each finding.
        tell: is called with a description, the number of steps done, and of all steps.

    Raises:
        InputError: an interpreter cannot be used, or not with these tests.
    """
    old, new = _Recorded(), _Recorded()
    interrupted = False
    with interpreters.pair() as sides:
        settings = (sides[0].settings(), sides[1].settings())
        on_gpu = sides[0].environment["gpu_uuid"] is not None
        every = dict.fromkeys(test for side in sides for test in side.loaded["tests"])
        if not every:
            raise InputError(f"{' '.join(interpreters.load['paths'])} contains no tests")
        try:
            _record(sides, [*every], "times", tell, (old, new))
        except KeyboardInterrupt:
            if not _run(old, new):
                raise
            interrupted = True
    tests = {**new.tests, **old.tests}
    done = {*old.plans, *old.failures}

    def tests_of(names: Iterable[str]) -> list[str]:
        wanted = {tests[name] for name in names}
        return [test for test in every if test in wanted]

    def again(names: Collection[str]) -> Iterator[Run]:
        for number, sides in enumerate(interpreters.pairs(pairs), start=1):
            both = _Recorded(), _Recorded()
            _record(sides, tests_of(names), f"confirming, pair {number}", tell, both)
            yield _run(*both)

    verdicts = confirmed(_run(old, new), again, margin, pairs, interrupted=interrupted)
    missing = [_MISSING, *verdicts.missing]
    changed = [change.name for change in verdicts.changes.of("slower", "faster")]
    if changed and on_gpu and verdicts.interrupted:
        missing.append(f"cuDNN's plans: {INTERRUPTED}")
    elif changed and on_gpu:
        try:
            with interpreters.pair(logs=True) as sides:
                logged = _Recorded(), _Recorded()
                _record(sides, tests_of(changed), "plans", tell, logged)
            old.plans, new.plans = (recorded.plans for recorded in logged)
        except InputError as error:
            missing.append(f"cuDNN's plans: {error}")
    judged = {change.name: change for change in verdicts.changes.changes}
    changes = [
        _change(name, tests[name], judged.get(name), (old, new), settings, interpreters.command)
        for name in tests
    ]
    without = [test for test in every if test in done and test not in tests.values()]
    silent = [test for test in without if test not in {**old.failures, **new.failures}]
    if silent:
        missing.append(f"the times of tests that recorded none ({len(silent)}, e.g. {silent[0]})")
    return Upgrade(
        layers=by_cost(changes),
        before=settings[0],
        after=settings[1],
        margin=margin,
        pairs=verdicts.pairs,
        missing=tuple(missing),
        failures=(
            *(f"{test}: {_failure(test, '', old, new)}" for test in without if test not in silent),
            *(f"{test}: {INTERRUPTED}" for test in every if test not in done),
        ),
        interrupted=verdicts.interrupted,
    )


def _record(
    sides: tuple[Side, Side],
    tests: Sequence[str],
    what: str,
    tell: Tell,
    both: tuple[_Recorded, _Recorded],
) -> None:
    """Run tests in both interpreters, alternating; an interrupt adds a test to both or neither."""
    for number, test in enumerate(tests):
        tell(what, number, len(tests))
        of_test = _Recorded(), _Recorded()
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            _record_one(sides[index], test, tests[number + 1 :], of_test[index])
        for recorded, added in zip(both, of_test, strict=True):
            recorded.add(added)


def _record_one(side: Side, test: str, later: Sequence[str], recorded: _Recorded) -> None:
    available = side.loaded["tests"]
    if test not in available:
        recorded.failures[test] = _ABSENT
        return
    # Pytest keeps the fixtures that the next test shares.
    following = next((test for test in later if test in available), None)
    try:
        answer, recorded.plans[test] = side.ask_with_plans("time", test=test, next=following)
    except FailedError as error:
        recorded.failures[test] = str(error)
        return
    for name, fields in answer["measurements"].items():
        recorded.measured[name] = Measurement.from_dict(fields)
    recorded.tests |= answer["tests"]
    recorded.different |= answer["different"]


def _run(old: _Recorded, new: _Recorded) -> Run:
    return {
        name: (measured, new.measured[name])
        for name, measured in old.measured.items()
        if name in new.measured
    }


def _change(
    name: str,
    test: str,
    change: Change | None,
    sides: tuple[_Recorded, _Recorded],
    settings: tuple[Mapping[str, str], Mapping[str, str]],
    command: str,
) -> LayerChange:
    old, new = sides
    before, after = old.facts(name), new.facts(name)
    if change is None:
        verdict: ChangeVerdict = "missing" if after is None else "new"
        change = Change(name, verdict, sentence=_failure(test, name, old, new))
    if _ABSENT not in (old.failures.get(test), new.failures.get(test)):  # pytest rejects it there
        change = dataclasses.replace(change, reproducer=f"{command} {shlex.quote(test)}")
    different = "" if name in old.different else new.different.get(name, "")
    return LayerChange.of((name,), "", change, (before, after), settings, different)


def _failure(test: str, name: str, old: _Recorded, new: _Recorded) -> str:
    """Say why an interpreter has no time of that name."""
    return " and ".join(
        f"the {which} interpreter: {recorded.failures.get(test, 'it recorded no such time')}"
        for which, recorded in (("old", old), ("new", new))
        if name not in recorded.measured
    )
