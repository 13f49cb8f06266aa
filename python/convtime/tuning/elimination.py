"""Decide which candidates stay in a race, how long each round lasts, and who wins.

Each candidate is first timed alone. Rounds then time those that are left together, and drop those
that are slower than the fastest. No device is used here: a Timer does the timing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Protocol

from convtime.core.errors import first_line
from convtime.timing.comparison import Agreement, Comparison
from convtime.timing.measurement import Measurement
from convtime.tuning.race_result import Dropped, Race

#: Called with a race's stage (``alone``, ``check`` or the number of a round), and the names in it.
OnStage = Callable[[str, Sequence[str]], object]

_ALONE = "alone"
# How many times the shortest time makes a candidate clearly slower. Times alone depend on the clock
# that the GPU has at that time: on an H100 they are off by up to 5 %, and by more on a CPU.
_CLEARLY_SLOWER = 1.5
_LEAST_SECONDS = 0.01  # of a round
_FINALISTS = 4  # so few are not screened
_SCREENING_SHARE = 1 / 3  # of the time left
_SCREENED_SHARE = 1 / 4  # screening goes on if it drops this share of the candidates


class UnusableError(RuntimeError):
    """A candidate has made the GPU unusable for this process.

    Attributes:
        name: the candidate; empty if it is one of several.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class Timer(Protocol):
    """What a race needs of a device."""

    def time_alone(self, name: str) -> Measurement:
        """Time a candidate in isolation, briefly; raise what it raises, or an UnusableError."""

    def compare(self, names: Sequence[str], seconds: float, *, last: bool) -> Comparison:
        """Time candidates interleaved and compare them with the first one."""

    def agreements(self, names: Sequence[str]) -> Mapping[str, Agreement]:
        """Compare results with the reference's; empty if they are not to be compared."""

    def too_fast(self, measured: Measurement) -> str:
        """Return why a time is too short for the device, or an empty string."""


def none_left(dropped: Mapping[str, Dropped]) -> RuntimeError:
    """Return the error for a race whose candidates were all dropped."""
    reasons = "; ".join(f"{name!r}: {each.reason}" for name, each in dropped.items())
    return RuntimeError(f"none of the candidates can be timed: {reasons}")


def fastest_in(compared: Comparison) -> str:
    """Return the candidate with the smallest ratio to the baseline, which has ratio 1."""
    return min(
        (compared.baseline, *compared.others),
        key=lambda name: 1.0 if name == compared.baseline else compared.ratio(name).value,
    )


@dataclasses.dataclass
class Elimination:
    """A race.

    Attributes:
        names: the candidates, in the order of the first timing.
        timer: what times them.
        order: the same names, in the order that breaks ties.
        seconds: planned duration.
        margin: relative difference that counts as equal.
        on_stage: called at the start of each timing.
        clock: time in seconds.
    """

    names: Sequence[str]
    timer: Timer
    _: dataclasses.KW_ONLY
    order: Sequence[str]
    seconds: float
    margin: float
    on_stage: OnStage
    clock: Callable[[], float] = monotonic

    def __post_init__(self) -> None:
        self._start = self.clock()
        self._alone: dict[str, Measurement] = {}
        self._agreements: Mapping[str, Agreement] = {}
        self._rounds: list[Comparison] = []
        self._dropped: dict[str, Dropped] = {}
        self._remarks: dict[str, str] = {}

    def run(self) -> Race:
        """Run the race.

        Raises:
            RuntimeError: no candidate could be timed.
            UnusableError: as ``timer.time_alone``.
        """
        self._time_alone(self.names)
        self._drop_without_gpu_work()
        self._check_results()
        self._recheck_too_fast()
        self._drop_clearly_slower()
        while len(self._left()) > 1:
            last = self._is_last()
            if self._run_round(last) and last:
                break
        if not self._left():
            raise none_left(self._dropped)
        return self._race()

    def _left(self) -> list[str]:
        """Return the candidates that were not dropped, the one with the shortest time first."""
        left = [name for name in self.names if name not in self._dropped]
        if not self._rounds:
            return sorted(left, key=lambda name: self._alone[name].median)
        last = self._rounds[-1]
        return sorted(left, key=lambda name: last.ratio(name).value)

    def _drop(self, name: str, reason: str, stage: str = _ALONE) -> None:
        self._dropped[name] = Dropped(reason, stage, self.clock() - self._start)

    def _time_alone(self, names: Iterable[str]) -> None:
        for name in names:
            self.on_stage(_ALONE, (name,))
            try:
                self._alone[name] = self.timer.time_alone(name)
            except UnusableError:
                raise
            except Exception as error:  # a candidate may raise anything
                self._drop(name, f"it failed ({first_line(error)})")

    def _drop_without_gpu_work(self) -> None:
        """Dropped calls that only the host could time, unless all are of that kind."""
        on_host = [name for name in self._left() if self._alone[name].method == "cpu"]
        if len(on_host) < len(self._left()):
            for name in on_host:
                self._drop(name, "it issues no work to the GPU, unlike others")

    def _check_results(self) -> None:
        names = [name for name in self.names if name not in self._dropped]
        self.on_stage("check", names)
        self._agreements = self.timer.agreements(names)
        for name, agreement in self._agreements.items():
            if agreement.same is False:
                self._drop(name, str(agreement))

    def _recheck_too_fast(self) -> None:
        """Time candidates again whose times the device cannot reach, which one mishap explains."""
        for name in self._left():
            if self.timer.too_fast(self._alone[name]):
                self._time_alone([name])
            too_fast = "" if name in self._dropped else self.timer.too_fast(self._alone[name])
            if too_fast:
                self._remarks[name] = too_fast

    def _drop_clearly_slower(self) -> None:
        left = self._left()
        least = min((self._alone[name].median for name in left), default=0.0)
        for name in left:
            ratio = self._alone[name].median / least if least > 0 else 1.0
            if ratio > _CLEARLY_SLOWER:
                self._drop(name, f"alone, it took {ratio:.2f} times as long as {left[0]}")

    def _is_last(self) -> bool:
        left = self._left()
        if len(left) <= _FINALISTS:
            return True
        if not self._rounds:
            return False
        screened = len(self._rounds[-1].measurements)
        return screened - len(left) < _SCREENED_SHARE * screened

    def _run_round(self, last: bool) -> bool:
        """Time those that are left together; return whether none of them failed."""
        left = self._left()
        stage = str(len(self._rounds) + 1)
        self.on_stage(stage, left)
        seconds = max(self.seconds - (self.clock() - self._start), _LEAST_SECONDS)
        if not last:
            seconds *= _SCREENING_SHARE
        try:
            compared = self.timer.compare(left, seconds, last=last)
        except UnusableError:
            raise
        except Exception as error:  # of a candidate; alone, it shows itself
            self._time_alone(left)
            if len(self._left()) == len(left):
                raise RuntimeError(
                    f"the candidates {', '.join(map(repr, left))} can be timed alone, but not "
                    f"together ({first_line(error)}); race fewer"
                ) from error
            return False
        self._rounds.append(compared)
        fastest = fastest_in(compared)
        for name in left:
            judged = compared.judge(name, fastest)
            if judged.verdict == "slower":
                more = judged.ratio.value - 1
                self._drop(name, f"it is {more:.2%} slower than {fastest}", stage)
        return True

    def _race(self) -> Race:
        left = self._left()
        if len(left) == 1:
            fastest = winner = left[0]
            ties: tuple[str, ...] = (winner,)
        else:
            last = self._rounds[-1]
            fastest = fastest_in(last)
            ties = tuple(
                name
                for name in self.order
                if name in last.measurements
                and (name == fastest or last.verdict(name, fastest) != "slower")
            )
            # The first within half of the margin. The other half is the error that a repetition may
            # have: the winner is then still one of its ties.
            limit = 1 + last.margin / 2
            winner = next(
                name for name in ties if name == fastest or last.ratio(name, fastest).value <= limit
            )
        return Race(
            winner=winner,
            fastest=fastest,
            ties=ties,
            order=tuple(self.order),
            margin=self.margin,
            alone=self._alone,
            rounds=tuple(self._rounds),
            dropped=self._dropped,
            same_results=self._agreements,
            remarks=self._remarks,
            seconds=self.clock() - self._start,
        )
