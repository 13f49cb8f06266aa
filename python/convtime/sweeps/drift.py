"""How steady and how equal the workers of a run were, as the times of its control show it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from convtime.regression.compare_runs import compare_runs
from convtime.view.safe_text import counted

if TYPE_CHECKING:
    from convtime.regression.changes import Change
    from convtime.timing.measurement import Measurement

#: Relative difference of the control's times above which a run warns.
DRIFT_MARGIN = 0.03


@dataclasses.dataclass(frozen=True)
class Controls:
    """The visits of the control.

    Attributes:
        name: name of the control.
        by_worker: its measurements in order of time, by the name of the worker.
        failure: why a visit failed; empty if none did.
    """

    name: str
    by_worker: Mapping[str, Sequence[Measurement]]
    failure: str = ""

    def drift(self, margin: float = DRIFT_MARGIN) -> Change | None:
        """Return how the control's time changed from its first visit to its last.

        Of several workers, it is the one on which the time changed most.

        Args:
            margin: relative difference that counts as equal.

        Returns:
            The change; None if no worker measured the control twice.
        """
        changes = [
            _change(self._name_on(worker), visits[0], visits[-1], margin)
            for worker, visits in self.by_worker.items()
            if len(visits) > 1
        ]
        return max(changes, key=_size, default=None)

    def workers(self, margin: float = DRIFT_MARGIN) -> dict[str, Change]:
        """Return how the control's time on each worker differs from that on a typical worker.

        The typical worker has the median time; of an even number, the shorter of both. A worker's
        time is the median one of its visits.

        Args:
            margin: relative difference that counts as equal.

        Returns:
            The changes from the typical worker to the others, by worker; empty for a single worker.
        """
        times = {worker: _middle(visits) for worker, visits in self.by_worker.items()}
        if len(times) < 2:
            return {}
        typical = self.typical_worker
        return {
            worker: _change(worker, times[typical], measured, margin)
            for worker, measured in times.items()
            if worker != typical
        }

    @property
    def typical_worker(self) -> str:
        """The worker that others are compared with; empty if the control was not measured."""
        order = sorted(self.by_worker, key=lambda worker: _middle(self.by_worker[worker]).median)
        return order[(len(order) - 1) // 2] if order else ""

    def ratios(self) -> dict[str, float | None]:
        """Return the control's time on each of several workers over that on the typical worker."""
        found: dict[str, float | None] = {
            worker: None if change.ratio is None else change.ratio.value
            for worker, change in self.workers().items()
        }
        return {self.typical_worker: 1.0, **found} if found else {}

    def sentences(self, points: Mapping[str, int]) -> Iterator[str]:
        """Yield drift and differences between workers in words.

        Args:
            points: number of points that each worker measured.
        """
        yield self._drift_sentence()
        workers = self.workers()
        equal = [worker for worker, change in workers.items() if change.verdict == "same"]
        if workers and len(equal) == len(workers):
            yield (
                f"{len(workers) + 1} workers took equally long for the control, within "
                f"{DRIFT_MARGIN:.0%}"
            )
            return
        for worker, change in workers.items():
            told = (
                f"worker {worker} took {change.ratio} of the time of worker {self.typical_worker} "
                "for the control"
            )
            if change.verdict in ("slower", "faster"):
                yield (
                    f"WARNING: {told}: it is {change.verdict} by more than {DRIFT_MARGIN:.0%}, and "
                    f"so are the times of its {counted(points.get(worker, 0), 'point')}"
                )
            elif change.verdict != "same":
                yield f"{told}; whether it is as fast is uncertain: {change.sentence}"

    def _name_on(self, worker: str) -> str:
        return self.name if len(self.by_worker) < 2 else f"{self.name} on worker {worker}"

    def _drift_sentence(self) -> str:
        drift = self.drift()
        if drift is None:
            why = (
                f"it failed: {self.failure}"
                if self.failure
                else "it was measured fewer than two times"
            )
            return f"drift is unknown: the control is {self.name}, and {why}"
        if drift.ratio is None:
            return f"drift is unknown: the control is {drift.name}, and {drift.sentence}"
        return (
            f"drift: {drift.name} ran at {drift.ratio} of its initial time by the end; "
            f"{_in_words(drift)}"
        )


def _change(name: str, before: Measurement, after: Measurement, margin: float) -> Change:
    (change,) = compare_runs({name: before}, {name: after}, margin=margin).changes
    return change


def _middle(visits: Sequence[Measurement]) -> Measurement:
    return sorted(visits, key=lambda measured: measured.median)[(len(visits) - 1) // 2]


def _size(change: Change) -> float:
    return -1.0 if change.ratio is None else abs(math.log(change.ratio.value))


def _in_words(drift: Change) -> str:
    if drift.verdict == "same":
        return f"the machine was stable within {DRIFT_MARGIN:.0%}"
    if drift.verdict == "uncertain":
        return f"the machine's stability is uncertain: {drift.sentence}"
    return (
        f"WARNING: the machine became {drift.verdict} during the run, by more than "
        f"{DRIFT_MARGIN:.0%}; drift alone may explain smaller differences between points"
    )
