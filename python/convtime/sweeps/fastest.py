"""Which candidates are fastest: at a point, along an axis, and where another one becomes fastest.

Nothing here needs a device.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from convtime.regression.significance import LogMedian, LogRatio, adjusted
from convtime.sweeps.plan import Label
from convtime.timing.comparison import Comparison
from convtime.timing.verdict import Judgement
from convtime.tuning.elimination import fastest_in

#: Expected share of false ones among all differences that a table reports.
FALSE_DISCOVERIES = 0.05

#: ``winner``: all others are slower. ``tie``: the leaders take equally long. ``undecided``: whether
#: they do is uncertain. ``alone``: all others failed.
Kind = Literal["winner", "tie", "undecided", "alone"]

_SENTENCES: Mapping[Kind, str] = {
    "winner": "{} is fastest",
    "tie": "{} tie",
    "undecided": "{} are too close to call",
    "alone": "only {} could be timed",
}
_EXACT = LogMedian(0.0, 0.0, 0.0, degrees_of_freedom=19, between_processes=0.0)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Which candidates are fastest at a point.

    Attributes:
        kind: ``winner``, ``tie``, ``undecided`` or ``alone``.
        fastest: candidate with the shortest time.
        leaders: candidates that are not found slower than ``fastest`` by more than the margin, in
            the order of the candidates.
    """

    kind: Kind
    fastest: str
    leaders: tuple[str, ...]

    def __str__(self) -> str:
        leaders = ", ".join(self.leaders)
        return leaders if self.kind == "winner" else f"{leaders} ({self.kind})"


class JudgedTable:
    """Comparisons, judged as the points of one table.

    A difference counts only at a false-discovery rate of 5 % among all pairs of candidates at all
    points. All pairs count, because the fastest candidate of a point is known only afterward.

    Args:
        comparisons: the comparison at each point, and its candidates in the table's order.
    """

    def __init__(self, comparisons: Mapping[str, tuple[Comparison, Sequence[str]]]) -> None:
        self._comparisons = comparisons
        ratios = {
            (point, frozenset(pair)): (log_ratio(compared, *pair), compared.margin)
            for point, (compared, names) in comparisons.items()
            for pair in itertools.combinations(names, 2)
        }
        p_values = [1.0 if log is None else log.p_value(margin) for log, margin in ratios.values()]
        self._p_values = dict(zip(ratios, adjusted(p_values), strict=True))

    def judge(self, point: str, name: str, against: str) -> Judgement:
        """Return the comparison's judgement; uncertain if chance explains it in this table.

        Raises:
            KeyError: a candidate was not timed at this point.
        """
        judged = self._comparisons[point][0].judge(name, against)
        p_value = self._p_values.get((point, frozenset((name, against))), 1.0)
        if judged.verdict not in ("slower", "faster") or p_value <= FALSE_DISCOVERIES:
            return judged
        return dataclasses.replace(
            judged,
            verdict="uncertain",
            reason="one-of-many",
            sentence=f"it would be {judged.verdict} if this were the only pair, but among all "
            "pairs of the table a difference like this can occur by chance (adjusted p-value "
            f"{p_value:.2g})",
        )

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """Which candidates are fastest, by point."""
        return {point: self._outcome(point) for point in self._comparisons}

    def _outcome(self, point: str) -> Outcome:
        comparison, names = self._comparisons[point]
        fastest = fastest_in(comparison)
        verdicts = {
            name: "same" if name == fastest else self.judge(point, name, fastest).verdict
            for name in names
        }
        leaders = tuple(name for name, verdict in verdicts.items() if verdict != "slower")
        if len(names) == 1:
            kind: Kind = "alone"
        elif len(leaders) == 1:
            kind = "winner"
        else:
            kind = "tie" if {verdicts[name] for name in leaders} == {"same"} else "undecided"
        return Outcome(kind, fastest, leaders)


def log_ratio(comparison: Comparison, name: str, against: str) -> LogRatio | None:
    """Return the logarithm of the ratio of two candidates' times; None if it is unknown."""
    ratio = comparison.ratio(name, against)
    if not (0 < ratio.value < math.inf and ratio.low > 0 and ratio.high < math.inf):
        return None
    rounds = len(comparison.measurements[name].seconds)
    return LogRatio(LogMedian.of_interval(ratio.value, ratio.low, ratio.high, rounds, 0.0), _EXACT)


def verdict_along(
    axis: str, values: Sequence[Label], outcomes: Sequence[Outcome | None], *, ordered: bool
) -> str:
    """Return the outcomes along an axis as one sentence, e.g. "a is fastest up to batch 16; …".

    Args:
        axis: name of the axis.
        values: its values.
        outcomes: outcome at each value; None where no candidate was timed.
        ordered: whether the values are ascending numbers, so that ranges have a meaning.
    """
    sentences = [
        _SENTENCES[outcome.kind].format(join_names(outcome.leaders))
        if outcome
        else "nothing is known"
        for outcome in outcomes
    ]
    if ordered:
        return "; ".join(_ranges(axis, values, sentences))
    by_sentence: dict[str, list[Label]] = {}
    for value, sentence in zip(values, sentences, strict=True):
        by_sentence.setdefault(sentence, []).append(value)
    if len(by_sentence) == 1 and len(values) > 1:
        return f"{sentences[0]} at every {axis}"
    return "; ".join(
        f"{sentence} at {axis} {join_names(where)}" for sentence, where in by_sentence.items()
    )


def join_names(names: Sequence[Label]) -> str:
    """Return names as "a, b and c"."""
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last


def _ranges(axis: str, values: Sequence[Label], sentences: Sequence[str]) -> Iterator[str]:
    """Yield each run of equal sentences with its first and last value."""
    pairs = zip(sentences, values, strict=True)
    for sentence, group in itertools.groupby(pairs, lambda pair: pair[0]):
        run = [value for _, value in group]
        first, last = run[0], run[-1]
        where = f"at {first}" if first == last else f"from {first} to {last}"
        if first == values[0] and last == values[-1]:
            yield f"{sentence} " + (
                f"at {axis} {first}" if first == last else f"at every {axis} {where}"
            )
        elif first == values[0]:
            yield f"{sentence} {'at' if first == last else 'up to'} {axis} {last}"
        elif last == values[-1] and first != last:
            yield f"from {first} on {sentence}"
        else:
            yield f"{where} {sentence}"


@dataclasses.dataclass(frozen=True)
class Crossover:
    """Where along an axis one candidate overtakes another.

    ``at``, ``low`` and ``high`` follow from straight lines between the measured ratios. Without
    this assumption, the crossover is between ``after`` and ``before``.

    Attributes:
        axis: name of the axis.
        where: values of the other axes in words; empty if there is no other axis.
        below: the faster candidate below the crossover.
        above: the faster candidate above it.
        at: estimated value at which both take equally long.
        low: lower end of its 95 % interval.
        high: upper end of its 95 % interval.
        after: the last measured value at which ``below`` is certainly faster.
        before: the next measured value at which ``above`` is certainly faster.
    """

    axis: str
    where: str
    below: str
    above: str
    at: float
    low: float
    high: float
    after: float
    before: float

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        return (
            f"{where}{self.above} overtakes {self.below} at about {self.axis} {self.at:.3g} "
            f"[{self.low:.3g}, {self.high:.3g}], between the measured {self.after:g} and "
            f"{self.before:g}"
        )


def crossings(
    judgements: Mapping[float, Judgement],
    names: tuple[str, str],
    axis: str,
    where: str,
    *,
    geometric: bool,
) -> Iterator[Crossover]:
    """Yield the crossovers of two candidates, each between certain and opposite verdicts.

    Args:
        judgements: verdict on the first candidate and ratio of the first over the second, at
            ascending values of the axis.
        names: the first and the second candidate.
        axis: name of the axis.
        where: values of the other axes in words.
        geometric: whether to interpolate on a logarithmic axis.
    """
    certain = [x for x, judged in judgements.items() if judged.verdict in ("faster", "slower")]
    for after, before in itertools.pairwise(certain):
        if judgements[after].verdict == judgements[before].verdict:
            continue
        ratios = {
            math.log(x) if geometric else x: judged.ratio
            for x, judged in judgements.items()
            if after <= x <= before
        }
        value = next(_equal_times({x: ratio.value for x, ratio in ratios.items()}))
        ends = [
            *_equal_times({x: ratio.low for x, ratio in ratios.items()}),
            *_equal_times({x: ratio.high for x, ratio in ratios.items()}),
        ]
        at, low, high = (math.exp(x) if geometric else x for x in (value, min(ends), max(ends)))
        below, above = names if judgements[after].verdict == "faster" else reversed(names)
        yield Crossover(axis, where, below, above, at, low, high, after, before)


def _equal_times(ratios: Mapping[float, float]) -> Iterator[float]:
    """Yield where straight lines through the logarithms of ratios reach a ratio of 1.

    Ratios without a logarithm are skipped: ends of intervals may be unknown between two points.
    """
    logarithms = [(x, math.log(ratio)) for x, ratio in ratios.items() if 0 < ratio < math.inf]
    for (x, before), (next_x, after) in itertools.pairwise(logarithms):
        if before * after <= 0 and before != after:
            yield x + (next_x - x) * before / (before - after)
