"""Time a model's layers with two interpreters, alternating, and find what changed and why."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shlex
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from convtime.core.checks import check_one_of
from convtime.device.gpu_turn import turn
from convtime.exchange.other_tools import of_samples
from convtime.regression.changes import Change
from convtime.upgrading.causes import PassFacts, difference_of
from convtime.upgrading.confirming import INTERRUPTED, Pair, Run, confirm
from convtime.upgrading.interpreters import FailedError, Interpreters, Side
from convtime.upgrading.probe import BACKWARD, FORWARD, STEP
from convtime.upgrading.result import LayerChange, Upgrade, by_cost, not_compared

MARGIN = 0.03
BUDGET = 0.5  # seconds per pass, both interpreters together
PAIRS = 4
_BURST_SECONDS = {"cuda": 1e-3, "cpu": 5e-3}
_MOST_CALLS = 1000
_LEAST_ROUNDS, _MOST_ROUNDS = 12, 60
_PATIENCE = 600.0  # seconds to wait for other timings on the same GPU
_NO_GRADIENT = "it has no gradient"

#: Is called with a description, the number of steps done, and of all steps.
Progress = Callable[[str, int, int], None]


@dataclasses.dataclass
class _Pass:
    """One pass of layers whose calls are identical in each interpreter.

    Attributes:
        layers: names of the layers; the first one is timed.
        which: the pass.
        facts: its facts in both interpreters; None where they are unknown.
        failures: why an interpreter cannot run it; empty for one that can.
    """

    layers: tuple[str, ...]
    which: str
    facts: list[PassFacts | None] = dataclasses.field(default_factory=lambda: [None, None])
    failures: list[str] = dataclasses.field(default_factory=lambda: ["", ""])

    @property
    def title(self) -> str:
        return f"{self.layers[0]} {self.which}"

    @property
    def question(self) -> dict[str, str]:
        return {"name": self.layers[0], "which": self.which}


def upgrade(
    interpreters: Interpreters,
    *,
    layers: Collection[str] = (),
    margin: float = MARGIN,
    budget: float = BUDGET,
    pairs: int = PAIRS,
    progress: Progress = lambda *_: None,
) -> Upgrade:
    """Compare two interpreters, layer by layer.

    A KeyboardInterrupt ends the timing; passes that were timed before are judged.

    Args:
        interpreters: the interpreters and their layers.
        layers: names of the layers to compare; empty for all.
        margin: relative difference that counts as equal.
        budget: seconds for each pass, both interpreters together.
        pairs: number of fresh pairs of processes that confirm each finding.
        progress: is called with each step.

    Raises:
        InputError: an interpreter cannot be used, or does not have the named layers.
    """
    first: dict[str, Pair] = {}
    interrupted = False
    # Those that time start with those that look for facts, since the import of torch takes long.
    with contextlib.closing(interpreters.pairs(2, first_logs=True)) as both:
        sides = next(both)
        gpus = [f"GPU-{sides[0].environment['gpu_uuid']}"] if sides[0].on_gpu else []
        settings = (sides[0].settings(), sides[1].settings())
        passes = _passes(sides, layers)
        _find_facts(passes, sides, progress)
        idle = _idle(passes) if sides[0].on_gpu else []
        missing = [*_missing(sides, idle)]
        passes = [one_pass for one_pass in passes if one_pass not in idle]
        timed = [one_pass for one_pass in passes if not any(one_pass.failures)]
        try:
            if timed:
                with turn(gpus, _PATIENCE):
                    for title, pair in _times(next(both), timed, budget, "times", progress):
                        first[title] = pair  # noqa: PERF403 (an interrupt keeps the earlier ones)
        except KeyboardInterrupt:
            if not first:
                raise
            interrupted = True

    def again(names: Collection[str]) -> Iterator[Run]:
        with turn(gpus, _PATIENCE):
            for number, pair in enumerate(interpreters.pairs(pairs), start=1):
                # A failure here leaves the first verdict as it is.
                chosen = [
                    _Pass(one_pass.layers, one_pass.which)
                    for one_pass in timed
                    if one_pass.title in names
                ]
                yield dict(_times(pair, chosen, budget, f"confirming, pair {number}", progress))

    confirmation = confirm(first, again, margin, pairs, interrupted=interrupted)
    untimed = [
        one_pass
        for one_pass in passes
        if not any(one_pass.failures) and one_pass.title not in first
    ]
    changes = [
        _layer_change(one_pass, settings, confirmation.changes, interpreters.command)
        for one_pass in passes
        if one_pass not in untimed and not all(one_pass.failures)
    ]
    failed = [
        not_compared(one_pass.title, one_pass.failures)
        for one_pass in passes
        if all(one_pass.failures) and {*one_pass.failures} != {_NO_GRADIENT}
    ]
    return Upgrade(
        layers=by_cost(change for change in changes if change.layers[0] != STEP),
        before=settings[0],
        after=settings[1],
        margin=margin,
        pairs=confirmation.pairs,
        step=tuple(change for change in changes if change.layers[0] == STEP),
        missing=(*missing, *confirmation.missing),
        failures=(
            *(f"{change.name}: {change.sentence}" for change in failed),
            *(f"{one_pass.title}: {INTERRUPTED}" for one_pass in untimed),
        ),
        interrupted=confirmation.interrupted,
    )


def _passes(sides: tuple[Side, Side], wanted: Collection[str]) -> list[_Pass]:
    """Return the passes; layers with identical calls in both interpreters are timed once."""
    old, new = (side.loaded["layers"] for side in sides)
    names = [*dict.fromkeys((*old, *new))]
    for name in wanted:
        check_one_of("--layer", name, names)
    groups: dict[tuple[str | None, ...], list[str]] = {}
    for name in names:
        if name in (wanted or names):
            keys = tuple(layers[name]["key"] if name in layers else None for layers in (old, new))
            groups.setdefault(keys, []).append(name)
    return [
        _Pass(tuple(group), which) for group in groups.values() for which in (FORWARD, BACKWARD)
    ]


def _find_facts(passes: Collection[_Pass], sides: tuple[Side, Side], progress: Progress) -> None:
    # The layers come before the step, which would make their first calls.
    for number, one_pass in enumerate(sorted(passes, key=lambda one: one.layers[0] == STEP)):
        progress("facts", number, len(passes))
        described = [side.loaded["layers"].get(one_pass.layers[0]) for side in sides]
        modules = _modules(*described)
        for index, (side, description) in enumerate(zip(sides, described, strict=True)):
            if description is None:
                one_pass.failures[index] = f"the {side.which} interpreter does not have it"
                continue
            try:
                one_pass.facts[index] = _facts(one_pass, side, description, modules[index])
            except FailedError as error:
                one_pass.failures[index] = str(error)


def _facts(one_pass: _Pass, side: Side, description: dict[str, Any], module: str) -> PassFacts:
    facts = side.ask("facts", **one_pass.question)
    plan = ""
    if side.on_gpu and one_pass.layers[0] != STEP:  # the step has the plans of all layers
        _, plan = side.ask_with_plans("build_plans", **one_pass.question)
    described_call = {what: description[what] for what in ("dtype", "sizes", "layout")}
    facts["kernels"] = tuple(facts["kernels"])
    return PassFacts(module=module, **described_call, **facts, plan=plan)


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


def _idle(passes: Collection[_Pass]) -> list[_Pass]:
    """Return the passes that run no kernels in either interpreter, such as an identity's."""
    without_kernels = [
        one_pass
        for one_pass in passes
        if not any(facts.kernels for facts in one_pass.facts if facts)
    ]
    # Where the profiler sees no kernels at all, it tells nothing.
    if len(without_kernels) == len(passes):
        return []
    return [one_pass for one_pass in without_kernels if not any(one_pass.failures)]


#: The old and the new interpreter's answers about their bursts: time per call and the GPU's clock.
_Bursts = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def _times(
    sides: tuple[Side, Side],
    passes: Collection[_Pass],
    budget: float,
    what: str,
    progress: Progress,
) -> Iterator[tuple[str, Pair]]:
    """Yield the times of passes by title, except of those that fail."""
    for index, one_pass in enumerate(passes):
        progress(what, index, len(passes))
        try:
            bursts = _time_bursts(one_pass, sides, budget)
        except FailedError:
            continue
        yield one_pass.title, _measurements(one_pass.title, bursts, sides)


def _time_bursts(one_pass: _Pass, sides: tuple[Side, Side], budget: float) -> _Bursts:
    """Time a pass in rounds of one burst per side.

    Raises:
        FailedError: one of them fails, which the pass notes.
    """
    kind = sides[0].kind

    def burst(index: int, calls: int) -> dict[str, Any]:
        try:
            return sides[index].ask("time", **one_pass.question, calls=calls)
        except FailedError as error:
            one_pass.failures[index] = str(error)
            other = 1 - index
            if not one_pass.failures[other]:  # which perhaps fails, too
                burst(other, calls)
            raise

    def calls_per_burst(calls: int) -> int:
        seconds = max(1e-9, *(float(burst(index, calls)["seconds"]) for index in (0, 1)))
        return max(1, min(_MOST_CALLS, math.ceil(_BURST_SECONDS[kind] / seconds)))

    for index in (0, 1):
        first = burst(index, 1)["seconds"]  # it allocates and chooses algorithms
        facts = one_pass.facts[index]
        # On a CPU, a call that is not timed comes before it.
        if kind == "cuda" and facts is not None and facts.first_call_seconds is None:
            one_pass.facts[index] = dataclasses.replace(facts, first_call_seconds=first)
    calls = calls_per_burst(calls_per_burst(1))
    bursts: _Bursts = ([], [])
    end = time.perf_counter() + budget
    for number in range(_MOST_ROUNDS):
        if number >= _LEAST_ROUNDS and time.perf_counter() > end:
            break
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            bursts[index].append(burst(index, calls))
    return bursts


def _measurements(name: str, bursts: _Bursts, sides: tuple[Side, Side]) -> Pair:
    """Return both sides' times, the new ones relative to the old ones of the same round.

    What changes both bursts of a round alike, such as the clock, then cancels out.
    """
    center = statistics.median(burst["seconds"] for burst in bursts[0])
    ratios = [new["seconds"] / old["seconds"] for old, new in zip(*bursts, strict=True)]
    seconds = ([center] * len(ratios), [center * ratio for ratio in ratios])
    before, after = (
        of_samples(
            *(name, seconds[index], "convtime upgrade", side.environment),
            method="event" if side.on_gpu else "cpu",
            cache="warm",
            device=side.kind,
            sm_clocks_hz=tuple(burst["clock_hz"] for burst in bursts[index] if side.on_gpu),
        )
        for index, side in enumerate(sides)
    )
    return before, after


def _layer_change(
    one_pass: _Pass,
    settings: tuple[Mapping[str, str], Mapping[str, str]],
    changes: Mapping[str, Change],
    command: str,
) -> LayerChange:
    if any(one_pass.failures):
        change = not_compared(one_pass.title, one_pass.failures)
    else:
        change = changes[one_pass.title]
    return LayerChange.of(
        one_pass.layers,
        one_pass.which,
        dataclasses.replace(change, reproducer=f"{command} {shlex.quote(one_pass.layers[0])}"),
        one_pass.facts,
        settings,
        difference_of(*one_pass.facts),
    )


def _missing(sides: tuple[Side, Side], idle: Sequence[_Pass]) -> Iterator[str]:
    scripted = dict.fromkeys(name for side in sides for name in side.loaded["scripted"])
    if scripted:
        first = next(iter(scripted))
        yield f"the times of scripted modules, which have no hooks ({len(scripted)}, e.g. {first})"
    if not sides[0].on_gpu:
        yield "clocks, memory and cuDNN's plans: they are known on a GPU only"
        return
    yield "instructions and the time of each kernel: only tests record them, see the guide"
    for side in sides:
        if side.loaded["no_clock"]:
            yield f"the clock of the {side.which} interpreter: {side.loaded['no_clock']}"
    if idle:
        yield f"the times of passes that run no kernels ({len(idle)}, e.g. {idle[0].title})"
