"""A change that most tests of a run have in common: one finding instead of many."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from convtime.timing.verdict import Verdict

if TYPE_CHECKING:
    from convtime.regression.changes import Change

_FEWEST = 5
_MOST = 0.8  # share of the tests that agree
# Those that agree differ from the median change by less than this share of it, or by noise.
_AGREEMENT = 0.25


@dataclasses.dataclass(frozen=True)
class CommonChange:
    """A change that most tests have in common.

    Attributes:
        verdict: ``slower`` or ``faster``.
        ratio: the median ratio.
        low: the least ratio of the tests.
        high: the largest one.
        names: the tests that are found slower or faster, and agree.
        compared: number of tests that could be compared.
    """

    verdict: Verdict
    ratio: float
    low: float
    high: float
    names: tuple[str, ...]
    compared: int

    def __str__(self) -> str:
        return (
            f"{len(self.names)} of {self.compared} tests are {self.verdict} alike: "
            f"{self.ratio:.4f} ({self.low:.4f} to {self.high:.4f})"
        )


def common_change(changes: Sequence[Change]) -> CommonChange | None:
    """Return the change that at least four of five tests have in common; None if there is none."""
    ratios = {
        change.name: change.ratio
        for change in changes
        if change.ratio is not None and change.p_value is not None
    }
    if len(ratios) < _FEWEST:
        return None
    center = statistics.median(ratio.value for ratio in ratios.values())
    tolerance = _AGREEMENT * abs(center - 1)
    alike = {
        name
        for name, ratio in ratios.items()
        if ratio.low - tolerance <= center <= ratio.high + tolerance
    }
    verdict: Verdict = "slower" if center > 1 else "faster"
    found = [each.name for each in changes if each.name in alike and each.verdict == verdict]
    if len(alike) < _MOST * len(ratios) or len(found) <= len(ratios) / 2:
        return None
    values = [ratios[name].value for name in found]
    return CommonChange(verdict, center, min(values), max(values), tuple(found), len(ratios))
