"""Judge the times of two interpreters, and confirm findings in fresh pairs of processes."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from convtime.core.errors import InputError
from convtime.regression.attribution import attribute
from convtime.regression.baseline import Baseline
from convtime.regression.changes import Change, Changes
from convtime.regression.compare_runs import compare_runs
from convtime.regression.noise import Noise, Repeats, between_processes
from convtime.timing.measurement import Measurement

#: The old and the new interpreter's measurement in one pair of processes.
Pair = tuple[Measurement, Measurement]
Run = Mapping[str, Pair]  # by name

INTERRUPTED = "it was interrupted"


@dataclasses.dataclass(frozen=True)
class Confirmation:
    """Changes whose findings were confirmed.

    Attributes:
        changes: the changes, by name.
        pairs: number of fresh pairs of processes that confirmed each finding.
        missing: why that is fewer than requested, as sentences.
        interrupted: whether Ctrl-C ended the timing or the confirmation.
    """

    changes: Mapping[str, Change]
    pairs: int
    missing: tuple[str, ...] = ()
    interrupted: bool = False


def confirm(
    first: Run,
    again: Callable[[Collection[str]], Iterator[Run]],
    margin: float,
    pairs: int,
    *,
    interrupted: bool = False,
) -> Confirmation:
    """Judge the times as the gate does, and findings once more from fresh pairs of processes.

    Args:
        first: the times of the first pair.
        again: times some names in fresh pairs of processes, one after the other.
        margin: relative difference that counts as equal.
        pairs: number of fresh pairs.
        interrupted: whether Ctrl-C ended the first pair; there are no fresh ones then.
    """
    changes = judge([first], margin)
    suspects = {change.name for change in changes.of("slower", "faster")}
    runs: list[Run] = []
    missing: list[str] = []
    why_fewer = INTERRUPTED if interrupted else ""
    try:
        if suspects and not interrupted:
            for run in again(suspects):
                runs.append(run)  # noqa: PERF402 (an error keeps the earlier ones)
    except InputError as error:
        why_fewer = str(error)
    except KeyboardInterrupt:
        interrupted, why_fewer = True, INTERRUPTED
    if why_fewer:
        missing.append(f"whether the findings repeat: {why_fewer}")
        pairs = len(runs)
    if runs:
        changes = changes.confirmed(judge(runs, margin))
        lost = sorted(name for name in suspects if any(name not in run for run in runs))
        missing += [f"whether {name} repeats: it gave no time again" for name in lost]
    return Confirmation(
        {change.name: change for change in changes.changes}, pairs, tuple(missing), interrupted
    )


def judge(runs: Sequence[Run], margin: float) -> Changes:
    """Judge the names that all pairs of processes have, from their ratios in each pair.

    A change of the machine between two pairs affects both times of a pair alike. All pairs count:
    one that contradicts the others shows that processes differ.

    Args:
        runs: the times of each pair.
        margin: relative difference that counts as equal.
    """
    names = [name for name in runs[0] if all(name in run for run in runs)]
    before, after = ({name: runs[0][name][side] for name in names} for side in (0, 1))
    repeats: tuple[dict[str, Repeats], dict[str, Repeats]] = ({}, {})
    for name in names:
        pairs = [run[name] for run in runs]
        if len(runs) > 1 and all(one.median > 0 for pair in pairs for one in pair):
            repeats[0][name], repeats[1][name] = _mean_ratio(pairs, margin)
    changes = compare_runs(Baseline(before, repeats[0]), Baseline(after, repeats[1]), margin=margin)
    changed = tuple(
        _with_times_of_ratio(change, runs[0][change.name]) for change in changes.changes
    )
    return dataclasses.replace(changes, changes=changed)


def _mean_ratio(pairs: Sequence[Pair], margin: float) -> tuple[Repeats, Repeats]:
    """Return the old time and the new one, with the noise of the mean of the pairs' ratios.

    compare_runs takes the noise of two times; each has half of the ratio's variance.
    """
    logs = [math.log(new.median / old.median) for old, new in pairs]
    assumed = math.sqrt(2) * between_processes(pairs[0][0])
    spread = max(assumed, statistics.stdev(logs)) / math.sqrt(2 * len(logs))
    noise = Noise(len(logs), 0.0, spread, margin)
    center = pairs[0][0].median
    times = (center, center * math.exp(statistics.fmean(logs)))
    old, new = (Repeats((each,), (0.0,), noise) for each in times)
    return old, new


def _with_times_of_ratio(change: Change, pair: Pair) -> Change:
    """Give a change the times of its ratio, and a cause from this name alone.

    Both interpreters alternate on one device, which cannot make all names of only one slower.
    """
    ratio, was = change.ratio, change.before
    if ratio is None or was is None:
        return change
    attribution = change.attribution and attribute(*pair, ratio)
    return dataclasses.replace(change, after=was * ratio.value, attribution=attribution)
