"""Judge the times of two interpreters, and confirm findings in fresh pairs of processes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from convtime.core.errors import InputError
from convtime.regression.baseline import Baseline
from convtime.regression.changes import Change, Changes
from convtime.regression.compare_runs import compare_runs
from convtime.regression.medians import standard_error
from convtime.regression.noise import Repeats
from convtime.timing.measurement import Measurement

#: The old and the new interpreter's measurement in one pair of processes.
Pair = tuple[Measurement, Measurement]
Run = Mapping[str, Pair]  # by name

INTERRUPTED = "it was interrupted"


@dataclasses.dataclass(frozen=True)
class Confirmed:
    """Changes whose findings were confirmed.

    Attributes:
        changes: the changes.
        pairs: number of fresh pairs of processes that confirmed each finding.
        missing: why that is fewer than requested, as sentences.
        interrupted: whether Ctrl-C ended the confirmation.
    """

    changes: Changes
    pairs: int
    missing: tuple[str, ...] = ()
    interrupted: bool = False


def confirmed(
    first: Run, again: Callable[[Collection[str]], Iterator[Run]], margin: float, pairs: int
) -> Confirmed:
    """Judge the times as the gate does, and findings once more from fresh pairs of processes.

    Args:
        first: the times of the first pair.
        again: times some names in fresh pairs of processes, one after the other.
        margin: relative difference that counts as equal.
        pairs: number of fresh pairs.
    """
    if not first:
        return Confirmed(Changes(()), pairs)
    changes = judged([first], margin)
    suspects = {change.name for change in changes.of("slower", "faster")}
    runs: list[Run] = []
    missing: list[str] = []
    interrupted = False
    try:
        if suspects:
            for run in again(suspects):
                runs.append(run)  # noqa: PERF402 (an error keeps the earlier ones)
    except (InputError, KeyboardInterrupt) as error:  # keep what is known
        interrupted = isinstance(error, KeyboardInterrupt)
        why = INTERRUPTED if interrupted else error
        missing.append(f"whether the findings repeat: {why}")
        pairs = len(runs)
    if runs:
        again_judged = judged(runs, margin, changes.changes)
        changes = changes.confirmed(again_judged)
        lost = suspects - {change.name for change in again_judged.changes}
        missing += [f"whether {name} repeats: it gave no time again" for name in sorted(lost)]
    return Confirmed(changes, pairs, tuple(missing), interrupted)


def judged(runs: Sequence[Run], margin: float, others: Collection[Change] = ()) -> Changes:
    """Judge the names that all pairs of processes have, from their ratios in each pair.

    A change of the machine between two pairs affects both times of a pair alike.

    Args:
        runs: the times of each pair.
        margin: relative difference that counts as equal.
        others: changes of names that these runs lack; see compare_runs.
    """
    names = [name for name in runs[0] if all(name in run for run in runs)]
    measured = [{name: runs[0][name][index] for name in names} for index in (0, 1)]
    repeats: list[dict[str, Repeats]] = [{}, {}]
    comparable = [
        name
        for name in names
        if len(runs) > 1 and all(one.median > 0 for run in runs for one in run[name])
    ]
    for name in comparable:
        center = runs[0][name][0].median
        pairs = [run[name] for run in runs]
        repeats[0][name] = Repeats((center,) * len(pairs), (0.0,) * len(pairs))
        repeats[1][name] = Repeats(
            tuple(center * new.median / old.median for old, new in pairs),
            tuple(math.hypot(*map(standard_error, pair)) for pair in pairs),
        )
    before, after = (Baseline(*side) for side in zip(measured, repeats, strict=True))
    return compare_runs(before, after, margin=margin, others=others)
