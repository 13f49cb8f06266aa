"""The history of a suite: its runs, the series of its tests, and their change points."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from convtime.core import codec
from convtime.core.checks import require
from convtime.core.errors import shown
from convtime.histories.run import HistoryRun
from convtime.timing.verdict import Ratio
from convtime.view.figure import Figure
from convtime.view.shown import Shown


@dataclasses.dataclass(frozen=True)
class ChangePoint:
    """A change of a test's level.

    Attributes:
        run: index in :attr:`History.runs` of the first run after the change.
        commit: commit of that run; its date if the commit is unknown.
        before: commit of the run of this test before it.
        commits: commits among which the first one after the change is, with 95 % probability.
        earliest: index in :attr:`History.runs` of the first one.
        latest: index of the last one.
        certainty: probability that ``commit`` is at most one measured commit away from the change.
        p_value: expected number of changes as clear as this one in a series without a change.
        ratio: level after the change over the level before it, with its 95 % interval.
        differs: other recorded properties of the machine that differ between the two runs.
    """

    run: int
    commit: str
    before: str
    commits: tuple[str, ...]
    earliest: int
    latest: int
    certainty: float
    p_value: float
    ratio: Ratio
    differs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.commits, f"the change at run {self.run} must be at some commits, got none")

    @property
    def verdict(self) -> str:
        """``slower`` or ``faster``."""
        return "slower" if self.ratio.value > 1 else "faster"


@dataclasses.dataclass(frozen=True)
class Series:
    """The times of one test on one hardware, under the same conditions.

    Attributes:
        name: name of the test.
        hardware: name of the GPU or CPU.
        conditions: conditions of the timings.
        runs: indices in :attr:`History.runs` of the runs that measured it.
        seconds: the median in each run.
        low: lower end of each median's interval within its run.
        high: upper end of each median's interval within its run.
        deviation: relative standard deviation between runs without a change of level; NaN if there
            is only one run.
        changes: the change points, in order.
        judged: whether there are enough runs to find a change point.
    """

    name: str
    hardware: str
    conditions: str
    runs: tuple[int, ...]
    seconds: tuple[float, ...]
    low: tuple[codec.LowerBound, ...]
    high: tuple[codec.UpperBound, ...]
    deviation: codec.Number = math.nan
    changes: tuple[ChangePoint, ...] = ()
    judged: bool = False

    def __post_init__(self) -> None:
        counts = [len(values) for values in (self.runs, self.seconds, self.low, self.high)]
        require(
            self.runs and len(set(counts)) == 1,
            f"{shown(self.name)} must have a time and its interval for each of its runs, of which "
            f"there is at least one, got {counts}",
        )


@dataclasses.dataclass(frozen=True, repr=False)
class History(codec.Stored, Shown, show="convtime.histories.show"):
    """The times of a suite over many runs; see :func:`convtime.history`.

    Attributes:
        runs: the runs in order, each with ``date``, ``commit``, ``dirty``, ``tool``, ``machine``
            and ``file``; their times are in ``series``.
        series: a series for each test, hardware and conditions.
        false_alarms: expected number of false change points per series without a change.
        remarks: sentences about files, commits, clocks and tests.
    """

    runs: tuple[HistoryRun, ...]
    series: tuple[Series, ...]
    false_alarms: float
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.runs, "a history must have at least one run, got none")
        for series in self.series:
            changes = [(change.run, change.earliest, change.latest) for change in series.changes]
            unknown = {*series.runs}.union(*changes) - {*range(len(self.runs))}
            require(
                not unknown,
                f"{shown(series.name)} must be of some of {len(self.runs)} runs, got the indices "
                f"{sorted(unknown)}",
            )

    def __getitem__(self, name: str) -> Series:
        """Return the series of a test; of several, the one with the newest run."""
        named = [series for series in self.series if series.name == name]
        if not named:
            raise KeyError(f"{name!r} is in no run")
        return max(named, key=lambda series: series.runs[-1])

    @property
    def changes(self) -> tuple[tuple[Series, ChangePoint], ...]:
        """All change points with their series, the newest first."""
        changes = [(series, change) for series in self.series for change in series.changes]
        return tuple(sorted(changes, key=lambda pair: -pair[1].run))

    @property
    def expected_false_alarms(self) -> float:
        """Expected number of false change points among all.

        Each judged series adds :attr:`false_alarms` for each stretch between its change points.
        """
        judged = [series for series in self.series if series.judged]
        return self.false_alarms * sum(len(series.changes) + 1 for series in judged)

    def plot(self, names: Sequence[str] | None = None) -> Figure:
        """Plot times over commits, with intervals, change points and changes of the hardware.

        A line marks each change point, and a band the commits among which it is. A dotted line and
        a gap mark a change of the hardware.

        Args:
            names: tests to plot. Default: those with a change point, or else all; twelve at most.

        Returns:
            A figure to save or show, e.g. ``history.plot().save("history.png")``.

        Raises:
            ValueError: a name is unknown.
        """
        figure: Figure = self._drawing().plot(self, names)
        return figure
