"""The changes between two runs, name by name."""

from __future__ import annotations

import dataclasses
import statistics
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import get_args

from convtime.core import codec
from convtime.regression.attribution import Attribution
from convtime.regression.differences import Difference
from convtime.timing.verdict import (
    ChangeVerdict,
    Failure,
    Finding,
    Ratio,
    Reason,
    Verdict,
    check_failures,
    exit_code_of,
)
from convtime.view import markdown
from convtime.view.shown import Shown
from convtime.view.wording import listed

#: What :meth:`Changes.exit_code` can report.
FINDS = (
    *(verdict for verdict in get_args(ChangeVerdict) if verdict != "same"),
    "contradictory",
    "more-instructions",
)

_FEWEST = 5
_MOST = 0.8  # share of the tests that agree
# Those that agree differ from the median change by less than this share of it, or by noise.
_AGREEMENT = 0.25


@dataclasses.dataclass(frozen=True)
class Change:
    """Change of one time between two runs.

    Attributes:
        name: name of both measurements.
        verdict: ``same``, ``slower`` or ``faster`` by more than the margin, ``uncertain`` between
            these; ``missing`` from the later run, or ``new`` in it.
        before: the earlier median in seconds; None if the name is new.
        after: the later median in seconds; None if the name is missing.
        ratio: the later median over the earlier one, with its unadjusted interval; None unless both
            medians are above 0.
        p_value: probability of a difference beyond the margin by chance alone, adjusted for the
            number of names, or of any difference for a calibrated name; None if the change is not
            judged.
        reason: code for why the verdict is ``uncertain``; None if it is certain.
        contradiction: for kernel times, the verdicts on busy time and span if both are certain and
            contradict each other; empty otherwise.
        instructions_ratio: instructions per call of the later run over those of the earlier one;
            None if either is unknown.
        more_instructions: a sentence if the ratio is beyond the margin for instructions; empty
            otherwise.
        instructions_reason: why the instructions are not judged; empty if they are.
        margin: relative difference that counts as equal for this name; None if it is not judged.
        attribution: the most likely cause, for a time that is slower or faster and for more
            instructions; None for others.
        sentence: the reasons in words; empty if there are none.
        reproducer: command that measures it again, from the later measurement's ``provenance``;
            empty if there is none.
    """

    name: str
    verdict: ChangeVerdict
    before: float | None = None
    after: float | None = None
    ratio: Ratio | None = None
    p_value: float | None = None
    reason: Reason | None = None
    sentence: str = ""
    reproducer: str = ""
    contradiction: str = ""
    instructions_ratio: float | None = None
    more_instructions: str = ""
    instructions_reason: str = ""
    margin: float | None = None
    attribution: Attribution | None = None

    @property
    def kinds(self) -> tuple[Failure | ChangeVerdict, ...]:
        """The findings that an exit code can report for this change."""
        kinds: list[Failure | ChangeVerdict] = [self.verdict]
        kinds += ["contradictory"] if self.contradiction else []
        kinds += ["more-instructions"] if self.more_instructions else []
        return tuple(kinds)


@dataclasses.dataclass(frozen=True)
class CommonChange:
    """A change that most tests have in common.

    Attributes:
        verdict: ``slower`` or ``faster``.
        ratio: the median ratio.
        low: the least ratio of the tests.
        high: the largest one.
        names: the tests that are found slower or faster, and agree.
        compared: number of tests that could be compared.
    """

    verdict: Verdict
    ratio: float
    low: float
    high: float
    names: tuple[str, ...]
    compared: int

    def __str__(self) -> str:
        return (
            f"{len(self.names)} of {self.compared} tests are {self.verdict} alike: "
            f"{self.ratio:.4f} ({self.low:.4f} to {self.high:.4f})"
        )


@dataclasses.dataclass(frozen=True, repr=False)
class Changes(codec.Stored, Shown, show="convtime.regression.show"):
    """Changes from one run to another; see :func:`compare_runs`.

    Attributes:
        changes: one change per name, those of the earlier run first, in its order.
        margin: relative difference that counts as equal for names without a calibrated margin.
        false_discoveries: expected false-discovery rate among all changes that are found slower or
            faster; without any change, the share of runs with a finding.
        geomean: geometric mean of the ratios of all comparable names, with an interval for these
            names; None if there are none.
        differences: all other recorded differences.
        environment: machine, versions and commits of both runs, by name.
        different: how a result differs from its baseline's in the later run, by name; only for
            results that were compared and differ.
    """

    changes: tuple[Change, ...]
    margin: float = 0.03
    false_discoveries: float = 0.05
    geomean: Ratio | None = None
    differences: tuple[Difference, ...] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    different: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __getitem__(self, name: str) -> Change:
        """Return the change of a name."""
        for change in self.changes:
            if change.name == name:
                return change
        raise KeyError(f"{name!r} is in neither run")

    def of(self, *verdicts: ChangeVerdict) -> tuple[Change, ...]:
        """Return the changes with one of the verdicts."""
        return tuple(change for change in self.changes if change.verdict in verdicts)

    @property
    def common(self) -> CommonChange | None:
        """The change that most names have in common, as one finding; None if there is none."""
        return common_change(self.changes)

    def confirmed(self, again: Changes) -> Changes:
        """Return the changes after some names were measured again and compared with the same run.

        The second verdict on these names counts; its sentence names the first one. What was slower
        and then faster, or the reverse, is uncertain.
        """
        second = {change.name: change for change in again.changes}
        return dataclasses.replace(
            self,
            changes=tuple(
                _confirmed(change, second[change.name]) if change.name in second else change
                for change in self.changes
            ),
        )

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings for a gate, as pairs of name and finding."""
        return tuple((change.name, kind) for change in self.changes for kind in change.kinds)

    def exit_code(
        self, fail_on: Failure | Collection[Failure] = "slower", uncertain: int = 0
    ) -> int:
        """Return an exit code for CI from the changes.

        Args:
            fail_on: verdicts that give 1, ``contradictory`` or ``more-instructions`` (see
                :class:`Change`). A warning lists the names whose instructions are not judged.
            uncertain: exit code if there is no such finding but a verdict is uncertain, or
                instructions are to be judged and are not. Default: 0. With 125, ``git bisect run``
                skips the commit.

        Raises:
            ValueError: ``fail_on`` contains an unknown finding.
        """
        failures = check_failures(fail_on, FINDS)
        unjudged = self.unjudged_instructions if "more-instructions" in failures else ()
        for sentence in unjudged:
            warnings.warn(sentence, stacklevel=2)
        code, _ = exit_code_of(self.findings, failures, uncertain)
        return code or (uncertain if unjudged else 0)

    @property
    def unjudged_instructions(self) -> tuple[str, ...]:
        """Why ``more-instructions`` is not judged: a sentence for each reason, with its names."""
        by_reason: dict[str, list[str]] = {}
        for change in self.changes:
            if change.instructions_reason:
                by_reason.setdefault(change.instructions_reason, []).append(change.name)
        return tuple(
            f"more-instructions is not judged for {listed(names, most=1)}: {reason}"
            for reason, names in by_reason.items()
        )

    def to_markdown(self, fail_on: str | Collection[str] = ()) -> str:
        """Return :meth:`details` in Markdown for a pull request, with everything escaped.

        Args:
            fail_on: findings of which the headline says whether they occurred; see
                :meth:`exit_code`.

        Raises:
            ValueError: ``fail_on`` contains an unknown finding.
        """
        failures = check_failures(fail_on, (*FINDS, "different"))
        return markdown.render(self._drawing().judged(self, failures))


def _confirmed(first: Change, second: Change) -> Change:
    ratio = "without a ratio" if first.ratio is None else str(first.ratio)
    history = f"at first {first.verdict}: {ratio}"
    if first.verdict == second.verdict:
        history = f"found twice, first as {ratio}"
    if {first.verdict, second.verdict} == {"slower", "faster"}:
        history += f", then {second.verdict}: the measurements disagree"
        instructions = second.more_instructions
        second = dataclasses.replace(
            second,
            verdict="uncertain",
            reason="not-confirmed",
            attribution=Attribution("code", instructions) if instructions else None,
        )
    sentence = "; ".join(filter(None, (history, second.sentence)))
    return dataclasses.replace(second, sentence=sentence)


def common_change(changes: Sequence[Change]) -> CommonChange | None:
    """Return the change that at least four of five tests have in common; None if there is none."""
    ratios = {
        change.name: change.ratio
        for change in changes
        if change.ratio is not None and change.p_value is not None
    }
    if len(ratios) < _FEWEST:
        return None
    center = statistics.median(ratio.value for ratio in ratios.values())
    tolerance = _AGREEMENT * abs(center - 1)
    alike = {
        name
        for name, ratio in ratios.items()
        if ratio.low - tolerance <= center <= ratio.high + tolerance
    }
    verdict: Verdict = "slower" if center > 1 else "faster"
    agreeing = [one.name for one in changes if one.name in alike and one.verdict == verdict]
    if len(alike) < _MOST * len(ratios) or len(agreeing) <= len(ratios) / 2:
        return None
    values = [ratios[name].value for name in agreeing]
    return CommonChange(verdict, center, min(values), max(values), tuple(agreeing), len(ratios))
