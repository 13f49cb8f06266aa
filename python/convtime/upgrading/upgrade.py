"""Time a model's layers with two interpreters, alternating, and find what changed and why."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from convtime.conv.plan_log import parse_log
from convtime.core.errors import InputError
from convtime.device.gpu_turn import turn
from convtime.exchange.unknown import of_samples
from convtime.regression.baseline import Baseline
from convtime.regression.changes import Change, Changes
from convtime.regression.compare_runs import compare_runs
from convtime.regression.medians import standard_error
from convtime.regression.noise import Repeats
from convtime.timing.measurement import Measurement
from convtime.upgrading.causes import PassFacts, cause_of, difference_of
from convtime.upgrading.probe import BACKWARD, FORWARD, STEP
from convtime.upgrading.result import LayerChange, Upgrade
from convtime.upgrading.workers import FailedError, Side

MARGIN = 0.03
BUDGET = 0.5  # seconds per pass, both interpreters together
PAIRS = 2
_BURST_SECONDS = {"cuda": 2e-3, "cpu": 5e-3}
_MOST_CALLS = 1000
_ROUNDS = range(12, 61)
_PATIENCE = 600.0  # seconds to wait for other timings on the same GPU
_NO_GRADIENT = "it has no gradient"

Tell = Callable[[str, int, int], None]
_Times = Mapping[str, tuple[Measurement, Measurement]]


@dataclasses.dataclass(frozen=True)
class Interpreters:
    """Two interpreters and the layers that both run.

    Attributes:
        old: path of the old interpreter.
        new: path of the new one.
        device: ``cpu``, ``cuda`` or ``cuda:N``, as both number the GPUs.
        load: the question that loads the layers; see :mod:`convtime.upgrading.probe`.
        command: command that runs a layer again, before the name of the layer.
    """

    old: str
    new: str
    device: str
    load: Mapping[str, Any]
    command: str

    @contextlib.contextmanager
    def pair(self, *, logs: bool = False) -> Iterator[tuple[Side, Side]]:
        """Start a pair of processes and load the layers in both.

        Raises:
            InputError: an interpreter cannot be used, or they use different GPUs.
        """
        with (
            Side("old", self.old, self.device, self.load, logs=logs) as old,
            Side("new", self.new, self.device, self.load, logs=logs) as new,
        ):
            old.begin()
            new.begin()  # both import torch at the same time
            old.load()
            new.load()
            gpus = [side.environment["gpu_uuid"] for side in (old, new)]
            if gpus[0] != gpus[1]:
                raise InputError(
                    f"--old and --new must run on the same GPU, but used {gpus[0]} and {gpus[1]}; "
                    "set CUDA_VISIBLE_DEVICES"
                )
            yield old, new


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
class _Known:
    """Everything that is known about a pass: facts or failures of both sides."""

    facts: list[PassFacts | None]
    failures: list[str]


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
    with interpreters.pair(logs=True) as sides:
        passes = _passes(sides, layers)
        known = {}
        for index, each in enumerate(passes):
            tell("facts", index, len(passes))
            known[each.title] = _known(each, sides)
        settings = (_settings(sides[0]), _settings(sides[1]))
        on_gpu = sides[0].environment["gpu_uuid"] is not None
        gpus = [f"GPU-{sides[0].environment['gpu_uuid']}"] if on_gpu else []
        environments = sides[0].environment, sides[1].environment
    timed = [each for each in passes if not any(known[each.title].failures)]
    kind = "cuda" if on_gpu else "cpu"

    def run(chosen: Sequence[_Pass], what: str) -> _Times:
        """Time passes in a pair of processes; note failures."""
        found = {}
        with turn(gpus, _PATIENCE), interpreters.pair() as pair:
            for index, each in enumerate(chosen):
                tell(what, index, len(chosen))
                samples = _alternating(each, pair, known[each.title], budget, kind)
                if samples is not None:
                    found[each.title] = _measured(each.title, samples, environments, kind)
        return found

    changes = _judged([run(timed, "times")], margin) if timed else Changes(())
    suspects = [
        each for each in timed if each.title in {one.name for one in changes.of("slower", "faster")}
    ]
    runs: list[_Times] = []
    missing = [*_missing(on_gpu=on_gpu)]
    try:
        while suspects and len(runs) < pairs:
            runs.append(run(suspects, f"confirming, pair {len(runs) + 1}"))
    except InputError as error:  # the interpreter worked before: keep what is known
        missing.append(f"whether the findings repeat: {error}")
        pairs = len(runs)
    if runs:
        changes = changes.confirmed(_judged(runs, margin))
    judged = {change.name: change for change in changes.changes}
    found = [
        _layer_change(each, known[each.title], judged.get(each.title), settings, interpreters)
        for each in passes
        if known[each.title].failures.count(_NO_GRADIENT) < 2
    ]
    failed = [each for each in found if each.before is None and each.after is None]
    rest = [each for each in found if each not in failed]
    return Upgrade(
        layers=tuple(
            sorted(
                (each for each in rest if each.layers[0] != STEP),
                key=lambda each: -abs(each.cost_seconds or 0.0),
            )
        ),
        before=settings[0],
        after=settings[1],
        margin=margin,
        pairs=pairs,
        step=tuple(each for each in rest if each.layers[0] == STEP),
        missing=tuple(missing),
        failures=tuple(f"{each.title}: {each.change.sentence}" for each in failed),
    )


def _passes(sides: tuple[Side, Side], wanted: Collection[str]) -> list[_Pass]:
    """Return the passes; layers with identical calls in both interpreters are timed once."""
    old, new = ({each["name"]: each for each in side.loaded["layers"]} for side in sides)
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


def _known(each: _Pass, sides: tuple[Side, Side]) -> _Known:
    known = _Known([None, None], ["", ""])
    for index, side in enumerate(sides):
        described = {one["name"]: one for one in side.loaded["layers"]}.get(each.layers[0])
        if described is None:
            known.failures[index] = f"the {side.which} interpreter does not have it"
            continue
        before = side.plan_log.stat().st_size if side.plan_log.exists() else 0
        try:
            facts = side.ask("facts", **each.question)
        except FailedError as error:
            known.failures[index] = str(error)
            continue
        call = {what: described[what] for what in ("module", "dtype", "sizes", "layout")}
        facts["kernels"] = tuple(facts["kernels"])
        known.facts[index] = PassFacts(**call, **facts, plan=_plan(side, before))
    return known


def _plan(side: Side, start: int) -> str:
    """Return the tag of the plan that cuDNN's frontend logged since; empty for none."""
    if not side.plan_log.exists():
        return ""
    with side.plan_log.open("rb") as file:
        file.seek(start)
        plan = parse_log(file.read().decode(errors="replace")).plan
    return "" if plan is None else plan.tag


def _settings(side: Side) -> dict[str, str]:
    facts = {**side.environment, "threads": side.loaded["threads"]}
    facts |= {f"flag {name}": value for name, value in side.loaded["flags"].items()}
    return {name: str(value) for name, value in facts.items() if value is not None}


def _alternating(
    each: _Pass, sides: tuple[Side, Side], known: _Known, budget: float, kind: str
) -> tuple[list[float], list[float]] | None:
    """Time a pass in rounds of one burst per side; None if one of them fails, which is noted."""

    def burst(index: int, calls: int) -> float:
        try:
            seconds: float = sides[index].ask("time", **each.question, calls=calls)["seconds"]
        except FailedError as error:
            known.failures[index] = str(error)
            raise
        return seconds

    try:
        for index in (0, 1):
            burst(index, 1)  # the first call allocates and chooses algorithms
        once = max(burst(0, 1), burst(1, 1), 1e-9)
        calls = max(1, min(_MOST_CALLS, math.ceil(_BURST_SECONDS[kind] / once)))
        once = max(burst(0, calls), burst(1, calls), 1e-9)
        calls = max(1, min(_MOST_CALLS, math.ceil(_BURST_SECONDS[kind] / once)))
        rounds = int(budget / (2 * calls * once))
        rounds = max(_ROUNDS.start, min(_ROUNDS.stop - 1, rounds))
        samples: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds):
            for index in (0, 1) if number % 2 == 0 else (1, 0):
                samples[index].append(burst(index, calls))
    except FailedError:
        return None
    return samples


def _measured(
    name: str,
    samples: tuple[list[float], list[float]],
    environments: tuple[Mapping[str, Any], Mapping[str, Any]],
    kind: str,
) -> tuple[Measurement, Measurement]:
    """Return both sides' times, the new ones relative to the old ones of the same round.

    What changes both bursts of a round alike, such as the clock, then cancels out.
    """
    center = statistics.median(samples[0])
    ratios = [new / old for old, new in zip(*samples, strict=True)]
    seconds = ([center] * len(ratios), [center * ratio for ratio in ratios])
    method = "event" if kind == "cuda" else "cpu"
    before, after = (
        of_samples(
            name, each, "convtime upgrade", environment, method=method, cache="warm", device=kind
        )
        for each, environment in zip(seconds, environments, strict=True)
    )
    return before, after


def _judged(
    runs: Sequence[Mapping[str, tuple[Measurement, Measurement]]], margin: float
) -> Changes:
    """Judge the passes as the gate does, from one or several pairs of processes."""

    def side(index: int) -> Baseline:
        names = [name for name in runs[0] if all(name in run for run in runs)]
        by_name = {name: [run[name][index] for run in runs] for name in names}
        repeats = {
            name: Repeats(
                tuple(each.median for each in measured), tuple(map(standard_error, measured))
            )
            for name, measured in by_name.items()
            if len(measured) > 1
        }
        return Baseline({name: measured[0] for name, measured in by_name.items()}, repeats)

    return compare_runs(side(0), side(1), margin=margin)


def _layer_change(
    each: _Pass,
    known: _Known,
    change: Change | None,
    settings: tuple[Mapping[str, str], Mapping[str, str]],
    interpreters: Interpreters,
) -> LayerChange:
    before, after = known.facts
    if any(known.failures):
        verdict = "missing" if known.failures[1] else "new"
        told = " and ".join(
            f"the {which} interpreter: {failure}"
            for which, failure in zip(("old", "new"), known.failures, strict=True)
            if failure
        )
        change = Change(each.title, verdict, sentence=told)  # type: ignore[arg-type]
    assert change is not None
    reproducer = f"{interpreters.command} --layer {each.layers[0]!r}"
    change = dataclasses.replace(change, reproducer=reproducer)
    found = LayerChange(each.layers, each.which, change, None, before, after)
    if before is None or after is None:
        return found
    cause = None
    if change.verdict in ("slower", "faster"):
        cause = cause_of(before, after, settings, change.attribution)
    cost = None
    if change.before is not None and change.after is not None:
        cost = len(each.layers) * (change.after - change.before)
    return dataclasses.replace(
        found, cost_seconds=cost, cause=cause, different=difference_of(before, after)
    )


def _missing(*, on_gpu: bool) -> Iterator[str]:
    if on_gpu:
        yield "clocks, instructions and the time of each kernel: the probe does not measure them"
    else:
        yield "memory and cuDNN's plans: they are known on a GPU only"
