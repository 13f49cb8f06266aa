"""Verdicts on ratios of times with their reasons, and the findings and exit code of a gate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from convtime.core import codec
from convtime.core.checks import require
from convtime.core.load import _C

if TYPE_CHECKING:
    from convtime.timing.measurement import Measurement

Verdict = Literal["slower", "faster", "uncertain", "same"]

#: The verdict on a name in two runs: also ``missing`` from the later run, or ``new`` in it.
ChangeVerdict = Literal[Verdict, "missing", "new"]

#: Findings that a gate can report as a failure. ``slower``, ``faster``, ``uncertain``: the verdict
#: on a time. ``different``: a result that differs from the baseline's. ``contradictory``: verdicts
#: on busy time and span that contradict each other. Between two runs also ``missing`` and ``new``
#: (only one run has the name), and ``more-instructions`` (a call on the CPU executes more).
Failure = Literal[
    "slower",
    "faster",
    "uncertain",
    "different",
    "contradictory",
    "missing",
    "new",
    "more-instructions",
]

#: The name that a finding is about, and the finding.
Finding = tuple[str, str]

#: Why a verdict is uncertain. ``no-gpu-work``: there are no GPU times to compare.
#: ``control-differs``: a duplicate of the baseline was found faster or slower than the baseline.
#: ``too-few-samples``: there is no interval. ``method-cost``: the method overhead is not known well
#: enough. ``disturbed``: the interval is wide, and others used the GPU or the CPU.
#: ``wide-interval``: it is wider than the margin. ``at-the-margin``: it is narrower, and contains
#: the margin's edge. ``not-confirmed``: a fresh process gave a different verdict, or a second
#: look the opposite one. ``placement``: the placement of tensors in a CPU's memory can cause a
#: difference of that size.
#: ``other-conditions``: the two times are not comparable. ``no-time``: a median is not above 0,
#: e.g. of calls that issue no work to the GPU. ``one-of-many``: it would be slower or faster alone,
#: but among so many names chance can cause such a difference.
Reason = Literal[
    "no-gpu-work",
    "control-differs",
    "too-few-samples",
    "method-cost",
    "disturbed",
    "wide-interval",
    "at-the-margin",
    "not-confirmed",
    "placement",
    "other-conditions",
    "no-time",
    "one-of-many",
]


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Ratio of two operations' times; below 1, the first one is faster.

    Attributes:
        value: median over the rounds of the ratio of the two times in a round.
        low: lower end of the value's interval. It covers the same variation as a measurement's
            interval and includes the overhead uncertainty. Unbounded for five rounds or fewer.
        high: upper end of the interval.
        confidence: confidence of the interval.
    """

    value: codec.Number
    low: codec.LowerBound
    high: codec.UpperBound
    confidence: float = _C.CONFIDENCE

    def verdict(self, margin: float, doubt: float = 0.0) -> Verdict:
        """Return the verdict of the interval; see :meth:`Comparison.verdict`.

        Args:
            margin: relative difference that counts as equal.
            doubt: share by which the interval must exceed the margin for faster or slower.
        """
        return _C.judge(self.low, self.high, margin, doubt)

    def smallest_difference(self, margin: float) -> float:
        """Return the smallest difference that this interval can show, as a share of the baseline.

        It is the margin plus half the interval's width: the interval of a candidate that differs by
        less would reach into the margin. Infinite if there is no interval.
        """
        half_width = (self.high - self.low) / 2
        known = math.isfinite(half_width) and 0 < self.value < math.inf
        return margin + half_width / self.value if known else math.inf

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Comparison of one operation with another: the verdict and its reasons.

    Attributes:
        verdict: see :meth:`Comparison.verdict`.
        ratio: ratio of the times.
        in_cycles: verdict on SM clock cycles instead of times; None if the clock is unknown.
        reason: code for why the verdict is ``uncertain``; None if it is certain.
        contradiction: for kernel times, the verdicts on busy time and span if both are certain and
            contradict each other; empty otherwise.
        sentence: the reasons in words; empty if there are none.
        smallest_difference: smallest difference, as a share of the baseline's time, that the
            comparison would have found; see :meth:`Ratio.smallest_difference`.
    """

    verdict: Verdict
    ratio: Ratio
    in_cycles: Verdict | None
    reason: Reason | None
    sentence: str
    smallest_difference: float
    contradiction: str = ""

    def __str__(self) -> str:
        text = f"{self.verdict}: ratio {self.ratio}"
        return f"{text}; {self.sentence}" if self.sentence else text


def exit_code_of(
    findings: Sequence[Finding], fail_on: Collection[str], uncertain: int = 0
) -> tuple[int, list[Finding]]:
    """Return a gate's exit code, and the findings that cause it.

    Args:
        findings: all findings.
        fail_on: findings that give 1; see :data:`Failure`.
        uncertain: exit code if there is none of these, but an ``uncertain`` verdict.
    """
    causes = [each for each in findings if each[1] in fail_on]
    if causes:
        return 1, causes
    causes = [each for each in findings if each[1] == "uncertain"]
    return (uncertain, causes) if causes and uncertain else (0, [])


def check_failures(fail_on: str | Collection[str], finds: Collection[str]) -> set[str]:
    """Return ``fail_on`` as a set.

    Raises:
        ValueError: it contains a finding that this gate cannot have.
    """
    failures: set[str] = {fail_on} if isinstance(fail_on, str) else set(fail_on)
    require(failures <= {*finds}, f"fail_on must be some of {tuple(finds)}, got {fail_on!r}")
    return failures


def other_metric(metric: str) -> str:
    """Return the metric whose verdict is checked against this metric's verdict."""
    return "span" if metric == "busy" else "busy"


def contradiction(verdict: str, metric: str, other: str, other_metric: str, ratio: Ratio) -> str:
    """Describe two certain verdicts that differ between metrics; empty for any others."""
    if "uncertain" in (verdict, other) or verdict == other:
        return ""
    names = {"busy": "busy time"}
    return (
        f"{verdict} in {names.get(metric, metric)}, but {other} in "
        f"{names.get(other_metric, other_metric)} ({ratio})"
    )


def why_uncertain(low: float, high: float, margin: float, *pair: Measurement) -> tuple[Reason, str]:
    """Return why an interval is neither within the margin nor beyond it, and a sentence."""
    rounds = len(pair[0].seconds)
    ended = f"sampling ended by {pair[0].stop_reason} after {rounds} rounds"
    if not (math.isfinite(low) and math.isfinite(high)):
        return "too-few-samples", f"{rounds} rounds are too few for an interval at that confidence"
    if high - low <= 2 * margin:
        edge = f"the margin's edge lies within {low:.4f} .. {high:.4f}"
        return "at-the-margin", f"{edge}: {ended}, and more samples narrow this"
    wide = (
        f"the interval, ± {(high - low) / 2:.2%}, is wider than the margin: {ended}, and more "
        "samples narrow it"
    )
    disturbance = next(_disturbances(*pair), None)
    if disturbance is None:
        return "wide-interval", wide
    return "disturbed", f"{disturbance}; {wide}"


def _disturbances(*pair: Measurement) -> Iterator[str]:
    for measured in pair:
        if measured.exclusive.requested and not measured.exclusive and measured.device != "cpu":
            yield measured.exclusive.reason
        if measured.disturbance:
            yield f"{measured.name!r} {measured.disturbance}"
        if measured.other_launches:
            yield (
                f"other threads launched {measured.other_launches} kernels, copies or memsets on "
                "the GPU at the same time"
            )
