"""Which candidates are fastest at a point; and chance among all pairs of a table."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from convtime.regression.significance import LogMedian, LogRatio, adjusted
from convtime.timing.comparison import Comparison
from convtime.timing.verdict import Judgement, Ratio
from convtime.tuning.heats import fastest_in

#: Expected share of false ones among all differences that a table reports.
FALSE_DISCOVERIES = 0.05

#: ``winner``: all others are slower. ``tie``: the leaders take equally long. ``undecided``: whether
#: they do is uncertain. ``alone``: all others failed.
Kind = Literal["winner", "tie", "undecided", "alone"]

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
        told = ", ".join(self.leaders)
        return told if self.kind == "winner" else f"{told} ({self.kind})"


class Row:
    """A point's comparison, judged as a part of a table.

    Args:
        comparison: the point's comparison.
        names: candidates that were timed, in the table's order.
        chances: adjusted p-value of a difference beyond the margin, by pair.
    """

    def __init__(
        self,
        comparison: Comparison,
        names: Sequence[str],
        chances: Mapping[frozenset[str], float],
    ) -> None:
        self._comparison = comparison
        self._names = names
        self._chances = chances

    def judge(self, name: str, against: str) -> Judgement:
        """Return the comparison's judgement; uncertain if chance explains it in this table.

        Raises:
            KeyError: a candidate was not timed at this point.
        """
        judged = self._comparison.judge(name, against)
        chance = self._chances.get(frozenset((name, against)), 1.0)
        if judged.verdict not in ("slower", "faster") or chance <= FALSE_DISCOVERIES:
            return judged
        return dataclasses.replace(
            judged,
            verdict="uncertain",
            reason="one-of-many",
            sentence=f"it would be {judged.verdict} if this were the only pair, but among all "
            "pairs of the table a difference like this can occur by chance (adjusted p-value "
            f"{chance:.2g})",
        )

    @property
    def outcome(self) -> Outcome:
        """Which candidates are fastest."""
        fastest = fastest_in(self._comparison)
        verdicts = {
            name: "same" if name == fastest else self.judge(name, fastest).verdict
            for name in self._names
        }
        leaders = tuple(name for name, verdict in verdicts.items() if verdict != "slower")
        if len(self._names) == 1:
            kind: Kind = "alone"
        elif len(leaders) == 1:
            kind = "winner"
        elif all(verdicts[name] == "same" for name in leaders):
            kind = "tie"
        else:
            kind = "undecided"
        return Outcome(kind, fastest, leaders)


def rows_of(compared: Mapping[str, tuple[Comparison, Sequence[str]]]) -> dict[str, Row]:
    """Judge comparisons as the rows of one table, by the names of their points.

    Each is given with the names of its candidates in the table's order.

    A difference counts only at a false-discovery rate of 5 % among all pairs of candidates at all
    points. All pairs count, because the fastest candidate of a point is known only afterward.
    """
    pairs = {
        (position, frozenset(pair)): _chance(comparison, *pair)
        for position, (comparison, names) in compared.items()
        for pair in itertools.combinations(names, 2)
    }
    chances = dict(zip(pairs, adjusted([*pairs.values()]), strict=True))
    return {
        position: Row(
            comparison,
            names,
            {pair: chance for (of, pair), chance in chances.items() if of == position},
        )
        for position, (comparison, names) in compared.items()
    }


def _chance(comparison: Comparison, name: str, against: str) -> float:
    """Return the probability of such a ratio if the true ratio is within the margin."""
    rounds = len(comparison.measurements[name].seconds)
    known = logarithm(comparison.ratio(name, against), rounds)
    return 1.0 if known is None else known.p_value(comparison.margin)


def logarithm(ratio: Ratio, rounds: int) -> LogRatio | None:
    """Return the logarithm of a ratio over a number of rounds; None if it is unknown."""
    if not (0 < ratio.value < math.inf and ratio.low > 0 and ratio.high < math.inf):
        return None
    over = LogMedian.of_interval(ratio.value, ratio.low, ratio.high, rounds, 0.0)
    return LogRatio(over, _EXACT)
