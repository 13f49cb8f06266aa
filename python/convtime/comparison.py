"""Several operations under one condition, and the ratios of their times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from convtime._load import _C
from convtime.candidate import Candidate
from convtime.measurement import Measurement, format_seconds
from convtime.timing import Options, measure

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from convtime.timing import OptionsDict

Verdict = Literal["faster", "slower", "same", "uncertain"]


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How long one operation takes against another: below 1 it is faster.

    Attributes:
        value: median over the rounds of the two times' ratio within the round.
        low: lower end of the value's interval.
        high: its upper end.
        confidence: the interval's confidence.
    """

    value: float
    low: float
    high: float
    confidence: float = _C.CONFIDENCE

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """Measurements that were taken together, round by round.

    Attributes:
        measurements: by name, in the order given; sample i of each comes from the same round.
        margin: share of the baseline's time up to which another time counts as the same.
    """

    measurements: Mapping[str, Measurement]
    margin: float = 0.01

    def ratio(self, name: str, baseline: str | None = None) -> Ratio:
        """Time of ``name`` over time of ``baseline`` (the first candidate unless given).

        Raises:
            KeyError: for a name that is not in the comparison.
        """
        if baseline is None:
            baseline = next(iter(self.measurements))
        for one in (name, baseline):
            if one not in self.measurements:
                raise KeyError(f"{one!r} was not compared; there are {list(self.measurements)}")
        over, under = self.measurements[name].seconds, self.measurements[baseline].seconds
        return Ratio(*_C.paired_ratio(over, under))

    def verdict(self, name: str, baseline: str | None = None) -> Verdict:
        """What the interval of :meth:`ratio` says, with 95 % confidence.

        Args:
            name: the candidate that is judged.
            baseline: what it is compared with; the first candidate unless given.

        Returns:
            ``same`` if the whole interval lies within 1 ± ``margin``, ``faster`` or ``slower`` if
            all of it lies beyond, and else ``uncertain``: more samples could tell.

        Raises:
            KeyError: for a name that is not in the comparison.
        """
        ratio = self.ratio(name, baseline)
        return _C.judge(ratio.low, ratio.high, self.margin)

    @property
    def exit_code(self) -> int:
        """For CI: 1 if any candidate is slower than the first by more than the margin, else 0."""
        return int(any(self.verdict(name) == "slower" for name in self.measurements))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form: each measurement's, in order."""
        return {
            "margin": self.margin,
            "measurements": [one.to_dict() for one in self.measurements.values()],
        }

    def __repr__(self) -> str:
        baseline, *others = self.measurements
        lines = [
            f"  {baseline}: {format_seconds(self.measurements[baseline].median)}, the baseline"
        ]
        lines += [
            f"  {name}: {format_seconds(self.measurements[name].median)}, ratio "
            f"{self.ratio(name)}, {self.verdict(name)} (within {self.margin:.2%})"
            for name in others
        ]
        return "\n".join(["<convtime.Comparison", *lines]) + ">"


def compare(
    candidates: Mapping[str, Callable[[], object]],
    *,
    stop: str | None = None,
    margin: float = 0.01,
    **options: Unpack[OptionsDict],
) -> Comparison:
    """Times several callables interleaved, so that whatever drifts drifts for all of them alike.

    Each round calls every candidate once, in random order; ``time_op`` is the case of one
    candidate, and the other options are its own. ``budget`` is for the whole comparison.

    Args:
        candidates: callables without arguments, by name; the first one is the baseline.
        stop: when sampling ends, beside ``max_samples`` and ``budget``: ``verdict`` (it is settled
            how each candidate compares with the first), or one of ``time_op``'s criteria. Unless
            given, ``verdict`` for several candidates, and ``interval`` for one.
        margin: share of the baseline's time up to which another time counts as the same.
        options: those of ``time_op`` from ``method`` on.

    Raises:
        ValueError: for no candidates, a margin that is not positive, and as ``time_op``.
        TypeError: for something that is not callable, or an option that there is not.
    """
    if not isinstance(candidates, Mapping):
        raise TypeError(
            f"compare takes callables by name, as a mapping, got {type(candidates).__name__}"
        )
    if not candidates:
        raise ValueError("there must be at least one candidate to compare, got none")
    if stop is None:
        stop = "verdict" if len(candidates) > 1 else "interval"
    measurements = measure(
        [Candidate(name, fn) for name, fn in candidates.items()],
        Options(stop=stop, margin=margin, **options),
    )
    return Comparison(dict(zip(candidates, measurements, strict=True)), float(margin))
