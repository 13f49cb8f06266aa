"""Time a model's layers with two interpreters, alternating, and find what changed and why."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shlex
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from convtime.core.errors import InputError
from convtime.device.gpu_turn import turn
from convtime.exchange.other_tools import of_samples
from convtime.regression.changes import Change
from convtime.timing.measurement import Measurement
from convtime.upgrading.causes import PassFacts, difference_of
from convtime.upgrading.confirming import INTERRUPTED, Pair, Run, confirmed
from convtime.upgrading.interpreters import Interpreters
from convtime.upgrading.probe import BACKWARD, FORWARD, STEP
from convtime.upgrading.result import LayerChange, Upgrade
from convtime.upgrading.workers import FailedError, Side

MARGIN = 0.03
BUDGET = 0.5  # seconds per pass, both interpreters together
PAIRS = 4
_BURST_SECONDS = {"cuda": 1e-3, "cpu": 5e-3}
_MOST_CALLS = 1000
_LEAST_ROUNDS, _MOST_ROUNDS = 12, 60
_PATIENCE = 600.0  # seconds to wait for other timings on the same GPU
_NO_GRADIENT = "it has no gradient"

Tell = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class _Pass:
    """One pass of layers whose calls are identical in each interpreter."""

    layers: tuple[str, ...]
    which: str

    @property
    def title(self) -> str:
        return f"{self.layers[0]} {self.which}"

    @property
    def question(self) -> dict[str, str]:
        return {"layer": self.layers[0], "which": self.which}


@dataclasses.dataclass
class _PassRecord:
    """Everything that is known about a pass: facts or failures of both sides."""

    facts: list[PassFacts | None]
    failures: list[str]


@dataclasses.dataclass(frozen=True)
class _Examined:
    """Facts of both interpreters before passes are timed.

    Attributes:
        environments: versions and GPU of each.
        settings: versions and settings of each, by name.
        passes: the passes.
        known: facts of each pass, by title.
        missing: what is unknown and why, as sentences.
    """

    environments: tuple[Mapping[str, Any], Mapping[str, Any]]
    settings: tuple[Mapping[str, str], Mapping[str, str]]
    passes: list[_Pass]
    known: dict[str, _PassRecord]
    missing: list[str]

    @property
    def kind(self) -> str:
        """The kind of device."""
        return "cpu" if self.environments[0]["gpu_uuid"] is None else "cuda"

    def without_failures(self) -> list[_Pass]:
        """Return the passes that both interpreters can run, as far as is known."""
        return [
            one_pass for one_pass in self.passes if not any(self.known[one_pass.title].failures)
        ]

    @property
    def gpus(self) -> list[str]:
        """The GPU, by its unique name; empty for a CPU."""
        return [] if self.kind == "cpu" else [f"GPU-{self.environments[0]['gpu_uuid']}"]


def upgrade(
    interpreters: Interpreters,
    *,
    layers: Collection[str] = (),
    margin: float = MARGIN,
    budget: float = BUDGET,
    pairs: int = PAIRS,
    tell: Tell = lambda *_: None,
) -> Upgrade:
    """Compare two interpreters, layer by layer.

    A KeyboardInterrupt ends the timing; passes that were timed before are judged.

    Args:
        interpreters: the interpreters and their layers.
        layers: names of the layers to compare; empty for all.
        margin: relative difference that counts as equal.
        budget: seconds for each pass, both interpreters together.
        pairs: number of fresh pairs of processes that confirm each finding.
        tell: is called with a description, the number of steps done, and of all steps.

    Raises:
        InputError: an interpreter cannot be used, or does not have the named layers.
    """
    first: dict[str, Pair] = {}
    untimed: list[_Pass] = []
    interrupted = False
    # Those that time start with those that look for facts, since the import of torch takes long.
    with contextlib.closing(interpreters.pairs(2, first_logs=True)) as both:
        work = _examined(next(both), layers, tell)
        timed = work.without_failures()
        try:
            if timed:
                with turn(work.gpus, _PATIENCE):
                    pair = next(both)
                    for title, times in _times(
                        pair, timed, work, work.known, budget, "times", tell
                    ):
                        first[title] = times  # noqa: PERF403 (an interrupt keeps the earlier ones)
        except KeyboardInterrupt:
            if not first:
                raise
            interrupted = True
            untimed = [
                one_pass for one_pass in work.without_failures() if one_pass.title not in first
            ]

    def again(names: Collection[str]) -> Iterator[Run]:
        chosen = [one_pass for one_pass in timed if one_pass.title in names]
        with turn(work.gpus, _PATIENCE):
            for number, pair in enumerate(interpreters.pairs(pairs), start=1):
                # A failure here leaves the first verdict as it is.
                known = {one_pass.title: _PassRecord([None, None], ["", ""]) for one_pass in chosen}
                what = f"confirming, pair {number}"
                yield dict(_times(pair, chosen, work, known, budget, what, tell))

    verdicts = confirmed(first, again, margin, pairs, interrupted=interrupted)
    judged = {change.name: change for change in verdicts.changes.changes}
    changes = [
        _layer_change(one_pass, work, judged.get(one_pass.title), interpreters)
        for one_pass in work.passes
        if one_pass not in untimed and work.known[one_pass.title].failures.count(_NO_GRADIENT) < 2
    ]
    failed = [change for change in changes if all(work.known[change.title].failures)]
    rest = [change for change in changes if change not in failed]
    return Upgrade(
        layers=by_cost(change for change in rest if change.layers[0] != STEP),
        before=work.settings[0],
        after=work.settings[1],
        margin=margin,
        pairs=verdicts.pairs,
        step=tuple(change for change in rest if change.layers[0] == STEP),
        missing=(*work.missing, *verdicts.missing),
        failures=(
            *(f"{change.title}: {change.change.sentence}" for change in failed),
            *(f"{one_pass.title}: {INTERRUPTED}" for one_pass in untimed),
        ),
        interrupted=verdicts.interrupted,
    )


def _examined(sides: tuple[Side, Side], layers: Collection[str], tell: Tell) -> _Examined:
    """Find the passes and their facts."""
    environments = sides[0].environment, sides[1].environment
    on_gpu = environments[0]["gpu_uuid"] is not None
    passes = _passes(sides, layers)
    known = {}
    # The layers come before the step, which would make their first calls.
    for index, one_pass in enumerate(sorted(passes, key=lambda one: one.layers[0] == STEP)):
        tell("facts", index, len(passes))
        known[one_pass.title] = _examined_pass(one_pass, sides, on_gpu=on_gpu)
    missing = [*_missing(sides, on_gpu=on_gpu)]
    if on_gpu and (idle := _idle(passes, known)):
        missing.append(
            f"the times of passes that run no kernels ({len(idle)}, e.g. {idle[0].title})"
        )
        passes = [one_pass for one_pass in passes if one_pass not in idle]
    settings = (sides[0].settings(), sides[1].settings())
    return _Examined(environments, settings, passes, known, missing)


def _passes(sides: tuple[Side, Side], wanted: Collection[str]) -> list[_Pass]:
    """Return the passes; layers with identical calls in both interpreters are timed once."""
    old, new = ({layer["name"]: layer for layer in side.loaded["layers"]} for side in sides)
    names = [*dict.fromkeys((*old, *new))]
    for name in wanted:
        if name not in names:
            raise InputError(f"--layer must be one of {', '.join(names)}, got {name!r}")
    groups: dict[tuple[str | None, ...], list[str]] = {}
    for name in names:
        if name in (wanted or names):
            keys = tuple(side[name]["key"] if name in side else None for side in (old, new))
            groups.setdefault(keys, []).append(name)
    return [
        _Pass(tuple(group), which) for group in groups.values() for which in (FORWARD, BACKWARD)
    ]


def _examined_pass(one_pass: _Pass, sides: tuple[Side, Side], *, on_gpu: bool) -> _PassRecord:
    known = _PassRecord([None, None], ["", ""])
    by_name = [{layer["name"]: layer for layer in side.loaded["layers"]} for side in sides]
    described = [layers.get(one_pass.layers[0]) for layers in by_name]
    modules = _modules(*described)
    for index, (side, description) in enumerate(zip(sides, described, strict=True)):
        if description is None:
            known.failures[index] = f"the {side.which} interpreter does not have it"
            continue
        try:
            facts = side.ask("facts", **one_pass.question)
            plan = ""
            if on_gpu and one_pass.layers[0] != STEP:  # the step has the plans of all layers
                _, plan = side.ask_with_plans("build_plans", **one_pass.question)
        except FailedError as error:
            known.failures[index] = str(error)
            continue
        described_call = {what: description[what] for what in ("dtype", "sizes", "layout")}
        facts["kernels"] = tuple(facts["kernels"])
        known.facts[index] = PassFacts(module=modules[index], **described_call, **facts, plan=plan)
    return known


def _modules(old: dict[str, Any] | None, new: dict[str, Any] | None) -> tuple[str, str]:
    """Return the modules as text, which is the same if only torch's way to describe them differs.

    What only one version of torch has as an attribute is no difference.
    """
    was, now = (one["module"] if one else "" for one in (old, new))
    if old and new and old["attributes"] and new["attributes"]:
        common = old["attributes"].keys() & new["attributes"].keys()
        if all(old["attributes"][what] == new["attributes"][what] for what in common):
            return was, was
    return was, now


def _idle(passes: Collection[_Pass], known: Mapping[str, _PassRecord]) -> list[_Pass]:
    """Return the passes that run no kernels in either interpreter, such as an identity's."""

    def kernels(one_pass: _Pass) -> list[str]:
        return [name for facts in known[one_pass.title].facts if facts for name in facts.kernels]

    idle = [
        one_pass
        for one_pass in passes
        if not any(known[one_pass.title].failures) and not kernels(one_pass)
    ]
    # Where the profiler sees no kernels at all, it tells nothing.
    return idle if any(map(kernels, passes)) else []


#: The old and the new interpreter's answers about their bursts: time per call and the GPU's clock.
_Bursts = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def _times(
    sides: tuple[Side, Side],
    passes: Collection[_Pass],
    work: _Examined,
    known: Mapping[str, _PassRecord],
    budget: float,
    what: str,
    tell: Tell,
) -> Iterator[tuple[str, Pair]]:
    """Yield the times of passes by title; failures are noted in ``known``."""
    for index, one_pass in enumerate(passes):
        tell(what, index, len(passes))
        bursts = _alternating(one_pass, sides, known[one_pass.title], budget, work.kind)
        if bursts is not None:
            yield one_pass.title, _measured(one_pass.title, bursts, work)


def _alternating(
    one_pass: _Pass, sides: tuple[Side, Side], known: _PassRecord, budget: float, kind: str
) -> _Bursts | None:
    """Time a pass in rounds of one burst per side; None if one of them fails, which is noted."""

    def burst(index: int, calls: int) -> dict[str, Any]:
        try:
            return sides[index].ask("time", **one_pass.question, calls=calls)
        except FailedError as error:
            known.failures[index] = str(error)
            other = 1 - index
            if not known.failures[other]:  # which perhaps fails, too
                burst(other, calls)
            raise

    def slowest(calls: int) -> float:
        return max(1e-9, *(float(burst(index, calls)["seconds"]) for index in (0, 1)))

    try:
        for index in (0, 1):
            first = burst(index, 1)["seconds"]  # it allocates and chooses algorithms
            facts = known.facts[index]
            # On a CPU, a call that is not timed comes before it.
            if kind == "cuda" and facts is not None and facts.first_call_seconds is None:
                known.facts[index] = dataclasses.replace(facts, first_call_seconds=first)
        calls = _calls(slowest(1), kind)
        calls = _calls(slowest(calls), kind)
        bursts: _Bursts = ([], [])
        end = time.perf_counter() + budget
        for number in range(_MOST_ROUNDS):
            if number >= _LEAST_ROUNDS and time.perf_counter() > end:
                break
            for index in (0, 1) if number % 2 == 0 else (1, 0):
                bursts[index].append(burst(index, calls))
    except FailedError:
        return None
    return bursts


def _calls(once: float, kind: str) -> int:
    return max(1, min(_MOST_CALLS, math.ceil(_BURST_SECONDS[kind] / once)))


def _measured(name: str, bursts: _Bursts, work: _Examined) -> tuple[Measurement, Measurement]:
    """Return both sides' times, the new ones relative to the old ones of the same round.

    What changes both bursts of a round alike, such as the clock, then cancels out.
    """
    center = statistics.median(burst["seconds"] for burst in bursts[0])
    ratios = [new["seconds"] / old["seconds"] for old, new in zip(*bursts, strict=True)]
    seconds = ([center] * len(ratios), [center * ratio for ratio in ratios])
    on_gpu = work.kind == "cuda"
    before, after = (
        of_samples(
            *(name, seconds[index], "convtime upgrade", work.environments[index]),
            method="event" if on_gpu else "cpu",
            cache="warm",
            device=work.kind,
            sm_clocks_hz=tuple(burst["clock_hz"] for burst in bursts[index]) if on_gpu else (),
        )
        for index in (0, 1)
    )
    return before, after


def _layer_change(
    one_pass: _Pass,
    work: _Examined,
    change: Change | None,
    interpreters: Interpreters,
) -> LayerChange:
    known = work.known[one_pass.title]
    if any(known.failures):
        sentence = " and ".join(
            f"the {which} interpreter: {failure}"
            for which, failure in zip(("old", "new"), known.failures, strict=True)
            if failure
        )
        change = Change(
            one_pass.title, "missing" if known.failures[1] else "new", sentence=sentence
        )
    assert change is not None
    reproducer = f"{interpreters.command} {shlex.quote(one_pass.layers[0])}"
    change = dataclasses.replace(change, reproducer=reproducer)
    different = difference_of(*known.facts)
    return LayerChange.of(
        one_pass.layers, one_pass.which, change, known.facts, work.settings, different
    )


def by_cost(changes: Iterable[LayerChange]) -> tuple[LayerChange, ...]:
    """Sort changes: those that add or save most time come first."""
    return tuple(sorted(changes, key=lambda change: -abs(change.cost_seconds or 0.0)))


def _missing(sides: tuple[Side, Side], *, on_gpu: bool) -> Iterator[str]:
    scripted = dict.fromkeys(name for side in sides for name in side.loaded["scripted"])
    if scripted:
        first = next(iter(scripted))
        yield f"the times of scripted modules, which have no hooks ({len(scripted)}, e.g. {first})"
    if not on_gpu:
        yield "clocks, memory and cuDNN's plans: they are known on a GPU only"
        return
    yield "instructions and the time of each kernel: only tests record them, see the guide"
    for side in sides:
        if side.loaded["no_clock"]:
            yield f"the clock of the {side.which} interpreter: {side.loaded['no_clock']}"
