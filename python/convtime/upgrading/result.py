"""The result of `convtime upgrade`: what changed in each pass of a layer or test, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import get_args

from convtime.core import codec
from convtime.regression.changes import Change
from convtime.timing.verdict import ChangeVerdict, Finding, Ratio, check_failures
from convtime.upgrading.causes import Explained, PassFacts, cause_of
from convtime.view import markdown
from convtime.view.shown import Shown

#: Findings that an exit code can report.
FINDS = (*(verdict for verdict in get_args(ChangeVerdict) if verdict != "same"), "different")


@dataclasses.dataclass(frozen=True)
class LayerChange:
    """The change of one pass of a layer, of the whole step, or of a test, in two interpreters.

    Attributes:
        layers: names of the layers with identical calls; the first one was timed. Of a test, the
            name of a recorded time.
        which: ``forward`` or ``backward``; empty for a test.
        change: verdict and times; its attribution is that of the gate.
        cost_seconds: time that the change adds to a step, for all of these layers together, or to a
            call of the test; None if it is unknown.
        before: facts of the old interpreter; None if it cannot run the layer.
        after: facts of the new interpreter; None if it cannot run the layer.
        cause: the cause, for a time that is slower or faster; None for others.
        different: how the results differ in their bits, with their errors; empty if they do not.
    """

    layers: tuple[str, ...]
    which: str
    change: Change
    cost_seconds: float | None = None
    before: PassFacts | None = None
    after: PassFacts | None = None
    cause: Explained | None = None
    different: str = ""

    @classmethod
    def of(
        cls,
        layers: tuple[str, ...],
        which: str,
        change: Change,
        facts: Sequence[PassFacts | None],
        settings: tuple[Mapping[str, str], Mapping[str, str]],
        different: str,
    ) -> LayerChange:
        """Add the facts of both interpreters to a change, with its cost and cause if both ran it.

        Args:
            layers: names of the layers with identical calls.
            which: the pass.
            change: verdict and times.
            facts: facts of the old and the new interpreter.
            settings: versions and settings of both interpreters.
            different: how the results differ.
        """
        before, after = facts
        if before is None or after is None:
            return cls(layers, which, change, None, before, after)
        cause = cost = None
        if change.verdict in ("slower", "faster"):
            cause = cause_of(before, after, settings, change.attribution)
        if change.before is not None and change.after is not None:
            cost = len(layers) * (change.after - change.before)
        return cls(layers, which, change, cost, before, after, cause, different)

    @property
    def title(self) -> str:
        """The name of the first layer, with the pass, or the name of the test's time."""
        return self.change.name

    @property
    def kinds(self) -> tuple[str, ...]:
        """The findings that an exit code can report."""
        return (self.change.verdict, *(["different"] if self.different else []))


def not_compared(name: str, failures: Sequence[str]) -> Change:
    """Return the change of a name that an interpreter has no time of.

    Args:
        name: the name.
        failures: why the old and the new interpreter have none; empty for one that has it.
    """
    sentence = " and ".join(
        f"the {which} interpreter: {failure}"
        for which, failure in zip(("old", "new"), failures, strict=True)
        if failure
    )
    return Change(name, "missing" if failures[1] else "new", sentence=sentence)


def by_cost(changes: Iterable[LayerChange]) -> tuple[LayerChange, ...]:
    """Sort changes: those that add or save most time come first."""
    return tuple(sorted(changes, key=lambda change: -abs(change.cost_seconds or 0.0)))


@dataclasses.dataclass(frozen=True, repr=False)
class Upgrade(codec.Stored, Shown, show="convtime.upgrading.show"):
    """Changes of a model's layers, or of tests, in two interpreters; see ``convtime upgrade``.

    Attributes:
        step: the passes of the whole model; empty for single convolutions and tests.
        layers: the passes of the layers, or the tests; those that add or save most time come first.
        before: interpreter, versions and settings of the old side, by name.
        after: the same for the new side.
        margin: relative difference that counts as equal.
        pairs: number of fresh pairs of processes that confirmed each finding.
        missing: facts that are unknown here, a sentence each.
        failures: passes or tests that no interpreter ran, a sentence each.
        interrupted: whether Ctrl-C ended the timing early.
    """

    layers: tuple[LayerChange, ...]
    before: Mapping[str, str]
    after: Mapping[str, str]
    margin: float
    pairs: int
    step: tuple[LayerChange, ...] = ()
    missing: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    interrupted: bool = False

    def __getitem__(self, title: str) -> LayerChange:
        """Return the change of any layer's pass, e.g. ``conv1 forward``, or of a test's time."""
        for change in (*self.step, *self.layers):
            if title in {f"{layer} {change.which}".strip() for layer in change.layers}:
                return change
        raise KeyError(f"{title!r} was not timed")

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Pairs of a pass and a finding, for an exit code."""
        return tuple(
            (change.title, kind) for change in (*self.step, *self.layers) for kind in change.kinds
        )

    @property
    def step_ratio(self) -> Ratio | None:
        """Ratio of the forward pass of the whole step; None without a model."""
        forward = (one.change.ratio for one in self.step if one.which == "forward")
        return next(forward, None)

    def to_markdown(self, fail_on: str | Collection[str] = ()) -> str:
        """Return :meth:`details` in Markdown for a pull request, with everything escaped.

        Raises:
            ValueError: ``fail_on`` contains an unknown finding.
        """
        return markdown.render(self._drawing().judged(self, check_failures(fail_on, FINDS)))
