"""Several operations under one condition, and the ratios of their times."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from convtime._load import _C
from convtime.measurement import Measurement, format_seconds
from convtime.timing import Candidate, Options, measure

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
    """

    measurements: Mapping[str, Measurement]

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
        # A clock that ticks in steps can say 0 for both; then there is nothing between them.
        pairs = zip(over, under, strict=True)
        ratios = [a / b if b > 0 else (1.0 if a == b else float("inf")) for a, b in pairs]
        low, high = _C.summarize(ratios)["median_interval"]
        return Ratio(statistics.median(ratios), low, high)

    def verdict(self, name: str, baseline: str | None = None, margin: float = 0.01) -> Verdict:
        """What the interval of :meth:`ratio` says, with 95 % confidence.

        Args:
            name: the candidate that is judged.
            baseline: what it is compared with; the first candidate unless given.
            margin: differences up to this share are none.

        Returns:
            ``same`` if the whole interval lies within 1 ± ``margin``, ``faster`` or ``slower`` if
            it lies on one side of 1, and else ``uncertain``: more samples could tell.

        Raises:
            KeyError: for a name that is not in the comparison.
            ValueError: for a negative margin.
        """
        if not margin >= 0:
            raise ValueError(f"margin must be 0 or more, got {margin!r}")
        ratio = self.ratio(name, baseline)
        if 1 - margin <= ratio.low and ratio.high <= 1 + margin:
            return "same"
        if ratio.high < 1:
            return "faster"
        return "slower" if ratio.low > 1 else "uncertain"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form: each measurement's, in order."""
        return {"measurements": [one.to_dict() for one in self.measurements.values()]}

    def __repr__(self) -> str:
        lines = [
            f"  {name}: {format_seconds(one.median)}, ratio {self.ratio(name)}"
            for name, one in self.measurements.items()
        ]
        return "\n".join(["<convtime.Comparison", *lines]) + ">"


def compare(
    candidates: Mapping[str, Callable[[], object]],
    *,
    method: str = "auto",
    queue: str = "gate",
    cache: str = "cold",
    device: torch.device | str | None = None,
    warmup_calls: int = 3,
    warmup_seconds: float = 0.02,
    min_samples: int = 10,
    max_samples: int = 10_000,
    budget: float = 1.0,
    max_noise: float = 0.005,
) -> Comparison:
    """Times several callables interleaved, so that whatever drifts drifts for all of them alike.

    Each round calls every candidate once, in random order; ``time_op`` is the case of one
    candidate, and the options are the same. ``budget`` is for the whole comparison, warm-up for
    each candidate.

    Args:
        candidates: callables without arguments, by name.

    Raises:
        ValueError: for no candidates, and as ``time_op``.
        TypeError: for something that is not callable.
    """
    if not isinstance(candidates, Mapping):
        raise TypeError(
            f"compare takes callables by name, as a mapping, got {type(candidates).__name__}"
        )
    if not candidates:
        raise ValueError("there must be at least one candidate to compare, got none")
    options = Options(
        method=method,
        queue=queue,
        cache=cache,
        device=device,
        warmup_calls=warmup_calls,
        warmup_seconds=warmup_seconds,
        min_samples=min_samples,
        max_samples=max_samples,
        budget=budget,
        max_noise=max_noise,
    )
    measurements = measure([Candidate(name, fn) for name, fn in candidates.items()], options)
    return Comparison(dict(zip(candidates, measurements, strict=True)))
