"""Drift of the machine during a run, as the times of its control show it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from convtime.regression.compare_runs import compare_runs

if TYPE_CHECKING:
    from convtime.regression.changes import Change
    from convtime.timing.measurement import Measurement

#: Relative drift of the control above which a run warns.
DRIFT_MARGIN = 0.03


def drift_of(
    name: str, visits: Iterable[Measurement | None], margin: float = DRIFT_MARGIN
) -> Change | None:
    """Return how a control's time changed from its first visit to its last.

    Args:
        name: name of the control.
        visits: its measurements in order of time; None for a visit that failed.
        margin: relative difference that counts as equal.

    Returns:
        The change; None if it was measured fewer than two times.
    """
    measured = [each for each in visits if each is not None]
    if len(measured) < 2:
        return None
    (change,) = compare_runs({name: measured[0]}, {name: measured[-1]}, margin=margin).changes
    return change


def drift_sentence(control: str, drift: Change | None, failure: str) -> str:
    """Return the drift in words.

    Args:
        control: name of the control.
        drift: its change; None if it is unknown.
        failure: why a visit failed; empty if none did.
    """
    if drift is None:
        why = f"it failed: {failure}" if failure else "it was measured fewer than two times"
        return f"drift is unknown: the control is {control}, and {why}"
    if drift.ratio is None:
        return f"drift is unknown: the control is {control}, and {drift.sentence}"
    return (
        f"drift: {control} ran at {drift.ratio} of its initial time by the end; {_in_words(drift)}"
    )


def _in_words(drift: Change) -> str:
    if drift.verdict == "same":
        return f"the machine was stable within {DRIFT_MARGIN:.0%}"
    if drift.verdict == "uncertain":
        return f"the machine's stability is uncertain: {drift.sentence}"
    return (
        f"WARNING: the machine became {drift.verdict} during the run, by more than "
        f"{DRIFT_MARGIN:.0%}; drift alone may explain smaller differences between points"
    )
