"""The result of a race: the winner, the ties, and why each other candidate was dropped."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from convtime.core import codec
from convtime.core.checks import require
from convtime.timing.comparison import Agreement, Comparison
from convtime.timing.measurement import Measurement
from convtime.timing.verdict import Judgement
from convtime.view.shown import Shown


@dataclasses.dataclass(frozen=True)
class Dropped:
    """Why and when a candidate left a race.

    Attributes:
        reason: the reason in words.
        stage: ``alone`` for the first timing of each candidate in isolation, otherwise the number
            of the round, from 1.
        seconds: time since the start of the race.
    """

    reason: str
    stage: str
    seconds: float

    def __str__(self) -> str:
        where = "alone" if self.stage == "alone" else f"in round {self.stage}"
        return f"dropped {where}, after {self.seconds:.2f} s: {self.reason}"


@dataclasses.dataclass(frozen=True, repr=False)
class Race(codec.Stored, Shown, show="convtime.tuning.show"):
    """The fastest of several candidates; see :func:`convtime.race`.

    Attributes:
        winner: name of the candidate to use: the first in ``order`` of those ``ties`` whose time is
            within half of the margin of ``fastest``.
        fastest: name of the candidate with the shortest time, by the ratios in the last round.
        ties: names of the candidates that the last round did not find slower than ``fastest`` by
            more than the margin, in ``order``; they include the winner and ``fastest``.
        order: all names, the preferred ones first.
        margin: relative difference that counts as equal.
        alone: first measurement of each candidate that could be timed, in isolation.
        rounds: comparisons of the candidates that were left; the last one contains the finalists.
            Empty if a single candidate was left before the first round.
        dropped: why each other candidate was dropped, by name, in the order of dropping.
        same_results: whether each candidate's result agrees with the reference's; empty if the
            results were not compared.
        remarks: reservations about candidates, by name.
        seconds: duration of the race.
    """

    winner: str
    fastest: str
    ties: tuple[str, ...]
    order: tuple[str, ...]
    margin: float
    alone: Mapping[str, Measurement]
    rounds: tuple[Comparison, ...] = ()
    dropped: Mapping[str, Dropped] = dataclasses.field(default_factory=dict)
    same_results: Mapping[str, Agreement] = dataclasses.field(default_factory=dict)
    remarks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        named = {self.winner, self.fastest, *self.ties, *self.alone, *self.dropped, *self.remarks}
        unknown = named.union(*(compared.others for compared in self.rounds)) - {*self.order}
        require(
            not unknown,
            f"what a race names must be some of {list(self.order)}, got {sorted(unknown)}",
        )

    def measurement(self, name: str) -> Measurement | None:
        """Return the candidate's last measurement; None if it could not be timed.

        Raises:
            KeyError: the name is not in the race.
        """
        self._check(name)
        compared = self._last_round(name)
        return self.alone.get(name) if compared is None else compared.measurements[name]

    def judge(self, name: str) -> Judgement | None:
        """Return the verdict on a candidate's last round: against the winner, if that was in it.

        A candidate that was dropped earlier is judged against the baseline of its last round. None
        if it was in no round.

        Raises:
            KeyError: the name is not in the race.
        """
        self._check(name)
        compared = self._last_round(name)
        if compared is None:
            return None
        against = self.winner if self.winner in compared.measurements else compared.baseline
        return compared.judge(name, against)

    def _last_round(self, name: str) -> Comparison | None:
        return next((each for each in reversed(self.rounds) if name in each.measurements), None)

    def _check(self, name: str) -> None:
        if name not in self.order:
            raise KeyError(f"candidate must be one of {list(self.order)}, got {name!r}")
