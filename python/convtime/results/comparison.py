"""Several operations under one condition, and the ratios of their times."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from convtime.core import codec
from convtime.core.load import _C
from convtime.results.measurement import Measurement

SCHEMA = "1.0"

#: What is compared, by the method of timing.
_JUDGED_ON = {
    "kernel": "the device's own time for a call's kernels, copies and memsets, added up",
    "event": "the time between two events around a call, less their own cost",
    "graph": "the time of a call in a CUDA graph, less the gap to the next",
    "sync": "the host's time from an idle device to an idle device",
    "cpu": "the host's time around a call",
}

Verdict = Literal["faster", "slower", "same", "uncertain"]


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How long one operation takes against another: below 1 it is faster.

    Attributes:
        value: median over the rounds of the two times' ratio within the round.
        low: lower end of the value's interval, which is over what a measurement's is, and to which
            what the method's own cost may be off belongs; unbounded for five rounds or fewer.
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

    measurements: Annotated[Mapping[str, Measurement], msgspec.Meta(min_length=1)]
    margin: float = 0.01

    def __post_init__(self) -> None:
        counts = {name: len(measured.seconds) for name, measured in self.measurements.items()}
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"measurements of one comparison must have as many samples each, got {counts}"
            )

    @property
    def judged_on(self) -> str:
        """In words, which time of the candidates is compared."""
        method = next(iter(self.measurements.values())).method
        return _JUDGED_ON.get(method, f"what the method {method!r} gives")

    def ratio(self, name: str, baseline: str | None = None) -> Ratio:
        """Time of ``name`` over time of ``baseline`` (the first candidate unless given).

        Raises:
            KeyError: for a name that is not in the comparison.
        """
        if baseline is None:
            baseline = next(iter(self.measurements))
        for candidate in (name, baseline):
            if candidate not in self.measurements:
                raise KeyError(
                    f"{candidate!r} was not compared; there are {list(self.measurements)}"
                )
        over, under = self.measurements[name], self.measurements[baseline]
        uncertainty = max(over.overhead_uncertainty, under.overhead_uncertainty)
        return Ratio(
            *_C.paired_ratio(
                over.seconds,
                under.seconds,
                uncertainty,
                tick=max(over.clock_tick, under.clock_tick),
                over_places=over.places,
                under_places=under.places,
                batches=over.batches,
            )
        )

    def verdict(self, name: str, baseline: str | None = None) -> Verdict:
        """What the interval of :meth:`ratio` says, with 95 % confidence.

        Args:
            name: the candidate that is judged.
            baseline: what it is compared with; the first candidate unless given.

        Returns:
            ``same`` if the whole interval lies within 1 ± ``margin``, ``faster`` or ``slower`` if
            all of it lies beyond, and else ``uncertain``: more samples could tell. Where one of the
            two has no GPU work, there are no GPU times to compare, and it is ``uncertain``, too.

        Raises:
            KeyError: for a name that is not in the comparison.
        """
        ratio = self.ratio(name, baseline)
        pair = (name, next(iter(self.measurements)) if baseline is None else baseline)
        if any(self.measurements[candidate].no_gpu_work for candidate in pair):
            return "uncertain"
        return _C.judge(ratio.low, ratio.high, self.margin)

    @property
    def exit_code(self) -> int:
        """For CI: 1 if any candidate is slower than the first by more than the margin, else 0."""
        return int(any(self.verdict(name) == "slower" for name in self.measurements))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, with a schema version."""
        return codec.encode(self, SCHEMA)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Comparison:
        """Reverses :meth:`to_dict`, also after JSON has made lists of the tuples.

        Raises:
            ValueError: for another major schema version, and for fields that are missing or of
                another type.
        """
        return codec.decode(cls, data, SCHEMA)

    def __repr__(self) -> str:
        from convtime.show.measurement import comparison_sheet

        return comparison_sheet(self)
