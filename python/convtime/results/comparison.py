"""Several operations under the same conditions, and the ratios of their times."""

from __future__ import annotations

import dataclasses
import math
import reprlib
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

import msgspec

from convtime.core import codec
from convtime.core.load import _C
from convtime.results import doubt, forms
from convtime.results.agreement import Agreement
from convtime.results.doubt import Doubt, Reason
from convtime.results.interference import Interference
from convtime.results.measurement import Measurement

if TYPE_CHECKING:
    import pandas
    import torch.utils.benchmark
    from matplotlib.figure import Figure


#: Description of the compared time, by metric of kernel times or else by timing method.
_JUDGED_ON = {
    "busy": "busy time: that in which at least one of a call's kernels, copies and memsets ran",
    "span": "span: from the start of a call's first kernel, copy or memset to the end of its last",
    "sum": "sum: the durations of a call's kernels, copies and memsets, added up",
    "event": "the time between two events around a call, less their own cost",
    "graph": "the time of a call in a CUDA graph, less the gap to the next",
    "sync": "the host's time from an idle device to an idle device",
    "cpu": "the host's time around a call",
}

Verdict = Literal["faster", "slower", "same", "uncertain"]

#: Findings that an exit code can report as a failure: a verdict, a result that differs from the
#: baseline's, or contradictory verdicts on busy time and span.
Failure = Literal["faster", "slower", "uncertain", "different", "contradictory"]


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Ratio of two operations' times; below 1, the first one is faster.

    Attributes:
        value: median over the rounds of the ratio of the two times in a round.
        low: lower end of the value's interval. It covers the same variation as a measurement's
            interval and includes the overhead uncertainty. Unbounded for five rounds or fewer.
        high: upper end of the interval.
        confidence: confidence of the interval.
    """

    value: float
    low: float
    high: float
    confidence: float = _C.CONFIDENCE

    def verdict(self, margin: float, doubt: float = 0.0) -> Verdict:
        """Return the verdict of the interval; see :meth:`Comparison.verdict`.

        Args:
            margin: relative difference that counts as equal.
            doubt: share by which the interval must exceed the margin for faster or slower.
        """
        return _C.judge(self.low, self.high, margin, doubt)

    def smallest_difference(self, margin: float) -> float:
        """Return the smallest difference that this interval can show, as a share of the baseline.

        It is the margin plus half the interval's width: the interval of a candidate that differs by
        less would reach into the margin. Infinite if there is no interval.
        """
        half_width = (self.high - self.low) / 2
        known = math.isfinite(half_width) and 0 < self.value < math.inf
        return margin + half_width / self.value if known else math.inf

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Comparison of one operation with another: the verdict and its reasons.

    Attributes:
        verdict: see :meth:`Comparison.verdict`.
        ratio: ratio of the times.
        in_cycles: verdict on SM clock cycles instead of times; None if the clock is unknown.
        reason: code for why the verdict is ``uncertain``; None if it is certain.
        contradiction: for kernel times, the verdicts on busy time and span if both are certain and
            contradict each other; empty otherwise.
        sentence: the reasons in words; empty if there are none.
        smallest_difference: smallest difference, as a share of the baseline's time, that the
            comparison would have found; see :meth:`Ratio.smallest_difference`.
    """

    verdict: Verdict
    ratio: Ratio
    in_cycles: Verdict | None
    reason: Reason | None
    sentence: str
    smallest_difference: float
    contradiction: str = ""

    def __str__(self) -> str:
        told = f"{self.verdict}: ratio {self.ratio}"
        return f"{told}; {self.sentence}" if self.sentence else told


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison(codec.Stored):
    """Measurements that were taken together, round by round.

    Attributes:
        measurements: measurements by name, in the order given; sample i of each comes from the same
            round.
        margin: relative difference that counts as equal.
        baseline: name of the measurement that the others are compared with. Default: the first.
        control: name of a duplicate of the baseline; empty for none. If it is found to differ,
            every verdict is ``uncertain``.
        same_results: whether each candidate's result agrees with the baseline's; empty if the
            results were not compared. Disagreement does not affect a candidate's verdict.
        interference: candidates whose time changes when they run with the others.
        interference_reason: why interference was not checked, for all or some candidates; empty if
            it was checked.
        confirmation: ratio to the baseline in a fresh process, by name, if one was requested. If
            its verdict differs, the verdict is ``uncertain``.
    """

    SCHEMA: ClassVar[str] = "1.2"

    measurements: Annotated[Mapping[str, Measurement], msgspec.Meta(min_length=1)]
    margin: float = 0.01
    baseline: str = ""
    control: str = ""
    same_results: Mapping[str, Agreement] = dataclasses.field(default_factory=dict)
    interference: Mapping[str, Interference] = dataclasses.field(default_factory=dict)
    interference_reason: str = ""
    confirmation: Mapping[str, Ratio] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.measurements:
            raise ValueError("a comparison must have at least one measurement, got none")
        counts = {name: len(measured.seconds) for name, measured in self.measurements.items()}
        if len(set(counts.values())) > 1:
            raise ValueError(
                "measurements of one comparison must have the same number of samples, got "
                f"{reprlib.repr(counts)}"
            )
        if not self.baseline:
            object.__setattr__(self, "baseline", next(iter(self.measurements)))
        for role, name in (("baseline", self.baseline), ("control", self.control)):
            if name and name not in self.measurements:
                raise ValueError(
                    f"{role} must be one of {reprlib.repr(list(self.measurements))}, "
                    f"got {reprlib.repr(name)}"
                )

    @property
    def others(self) -> tuple[str, ...]:
        """The names that are compared with the baseline, without the control."""
        return tuple(
            name for name in self.measurements if name not in (self.baseline, self.control)
        )

    @property
    def judged_on(self) -> str:
        """Description of the time that the verdicts are about."""
        measured = next(iter(self.measurements.values()))
        of_method = _JUDGED_ON.get(measured.method, f"the time that {measured.method!r} gives")
        return _JUDGED_ON.get(measured.metric, of_method)

    def ratio(self, name: str, baseline: str | None = None) -> Ratio:
        """Return the time of ``name`` over the time of ``baseline``.

        The default baseline is the comparison's baseline.

        Raises:
            KeyError: a name is not in the comparison.
        """
        return _ratio_in_time(*self._pair(name, baseline))

    def cycles_ratio(self, name: str, baseline: str | None = None) -> Ratio | None:
        """Return the ratio of SM clock cycles, like :meth:`ratio` for times.

        It covers the rounds in which both clocks are known; None if there are none.

        Raises:
            KeyError: a name is not in the comparison.
        """
        over, under = self._pair(name, baseline)
        clocks_hz = [hz for hz in (*over.sm_clocks_hz, *under.sm_clocks_hz) if hz is not None]
        highest_hz = max(clocks_hz, default=0.0)
        return _paired(
            (over, over.cycles),
            (under, under.cycles),
            uncertainty=_uncertainty(over, under) * highest_hz,
            tick=_tick(over, under) * highest_hz,
        )

    def _pair(self, name: str, baseline: str | None) -> tuple[Measurement, Measurement]:
        baseline = self.baseline if baseline is None else baseline
        for candidate in (name, baseline):
            if candidate not in self.measurements:
                raise KeyError(
                    f"candidate must be one of {list(self.measurements)}, got {candidate!r}"
                )
        return self.measurements[name], self.measurements[baseline]

    def verdict(self, name: str, baseline: str | None = None) -> Verdict:
        """Return the verdict of the interval of :meth:`ratio`, with 95 % confidence.

        Args:
            name: the candidate to judge.
            baseline: the candidate to compare it with. Default: the comparison's baseline.

        Returns:
            ``same`` if the whole interval is within 1 ± ``margin``, ``faster`` or ``slower`` if the
            whole interval is beyond it, and otherwise ``uncertain``; :meth:`judge` gives the
            reason.

        Raises:
            KeyError: a name is not in the comparison.
        """
        return self.judge(name, baseline).verdict

    def judge(self, name: str, baseline: str | None = None) -> Judgement:
        """Return the verdict with its reasons, in time and in cycles.

        Raises:
            KeyError: a name is not in the comparison.
        """
        ratio = self.ratio(name, baseline)
        found = self._doubt(ratio, name, baseline)
        verdict: Verdict = ratio.verdict(self.margin) if found is None else "uncertain"
        in_cycles = self._verdict_in_cycles(name, baseline, found)
        sentence = "" if found is None else found.sentence
        if in_cycles not in (None, "uncertain", verdict):
            clocks = _clocks(*self._pair(name, baseline))
            told = f"{verdict} in time, {in_cycles} in cycles: clock ({clocks})"
            sentence = "; ".join(filter(None, (told, sentence)))
        contradiction = self._contradiction(verdict, name, baseline)
        sentence = "; ".join(filter(None, (contradiction, sentence)))
        return Judgement(
            verdict=verdict,
            ratio=ratio,
            in_cycles=in_cycles,
            reason=None if found is None else found.reason,
            sentence=sentence,
            smallest_difference=ratio.smallest_difference(
                self.margin + _doubt_of_places(*self._pair(name, baseline))
            ),
            contradiction=contradiction,
        )

    def _contradiction(self, verdict: Verdict, name: str, baseline: str | None) -> str:
        """Describe contradictory verdicts on busy time, span or another metric; empty for none."""
        over, under = self._pair(name, baseline)
        other = other_metric(over.metric)
        series = [getattr(each, f"{other}_seconds") for each in (over, under)]
        if not all(series) or verdict == "uncertain":
            return ""
        ratio = _paired((over, series[0]), (under, series[1]), 0.0, _tick(over, under))
        assert ratio is not None  # kernel times have these for every sample
        by_other = ratio.verdict(self.margin)
        return contradiction(verdict, over.metric, by_other, other, ratio)

    def _verdict_in_cycles(
        self, name: str, baseline: str | None, found: Doubt | None
    ) -> Verdict | None:
        ratio = self.cycles_ratio(name, baseline)
        if ratio is None or (found is not None and found.reason == "no-gpu-work"):
            return None
        if found is not None and found.reason == "control-differs":
            return "uncertain"
        return ratio.verdict(self.margin)

    def _doubt(self, ratio: Ratio, name: str, baseline: str | None) -> Doubt | None:
        """Return the reason why a verdict is uncertain; None if it is certain."""
        over, under = pair = self._pair(name, baseline)
        found = doubt.of_idle(*pair)
        if found is not None or over is under:
            return found
        if self.control and name != self.control:
            control = self.ratio(self.control)
            of_control = control.verdict(self.margin, _doubt_of_places(*pair))
            if of_control in ("faster", "slower"):
                return doubt.of_control(self.control, of_control, str(control))
        verdict = ratio.verdict(self.margin)
        if verdict != "uncertain":
            fresh = self.confirmation.get(name) if baseline in (None, self.baseline) else None
            by_fresh = verdict if fresh is None else fresh.verdict(self.margin)
            if by_fresh != verdict:
                return doubt.of_fresh_process(verdict, by_fresh, str(fresh))
            of_places = _doubt_of_places(*pair)
            if fresh is None and ratio.verdict(self.margin, of_places) == "uncertain":
                return doubt.of_places(of_places)
            return None
        would_be = _ratio_in_time(*pair, cost_known=True).verdict(self.margin)
        if would_be != "uncertain":
            return doubt.of_cost(would_be, _uncertainty(*pair))
        return doubt.of_interval(ratio.low, ratio.high, self.margin, *pair)

    def exit_code(
        self, fail_on: Failure | Collection[Failure] = "slower", uncertain: int = 0
    ) -> int:
        """Return an exit code for CI from the verdicts on the candidates.

        Args:
            fail_on: findings on any candidate that give 1: ``slower`` or ``faster`` than the
                baseline by more than the margin, ``uncertain``, ``different`` (``same_results``
                says that its result differs) or ``contradictory`` (verdicts on busy time and span
                contradict each other; see :class:`Judgement`).
            uncertain: exit code if none of these occurs but a verdict is uncertain. Default: 0.

        Raises:
            ValueError: ``fail_on`` contains an unknown finding.
        """
        different = (self.same_results.get(name) for name in self.others)
        found: list[Failure | Verdict] = [
            "different" for each in different if each is not None and each.same is False
        ]
        for judged in map(self.judge, self.others):
            found.append(judged.verdict)
            found += ["contradictory"] if judged.contradiction else []
        return exit_code_of(found, fail_on, uncertain)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable dict with schema version and the candidates' judgements."""
        judged = {
            name: codec.finite(codec.encode(self.judge(name)))
            for name in self.measurements
            if name != self.baseline
        }
        return super().to_dict() | {"judgements": judged}

    def to_frame(self) -> pandas.DataFrame:
        """Return all samples as one data frame; see :meth:`Measurement.to_frame`.

        Rows with the same number belong to the same round.

        Raises:
            ImportError: pandas is not installed.
        """
        return forms.to_frame(
            dataclasses.replace(measured, name=name) for name, measured in self.measurements.items()
        )

    def to_torch(self, label: str | None = None) -> list[torch.utils.benchmark.Measurement]:
        """Convert to PyTorch's measurements, which its ``Compare`` prints as rows of one table.

        Args:
            label: title of the table. Default: the device.
        """
        return [
            measured.to_torch(label=label, sub_label=name)
            for name, measured in self.measurements.items()
        ]

    def __str__(self) -> str:
        """Return a table, and a sentence for each verdict."""
        from convtime.show.comparison import brief

        return brief(self)

    def __repr__(self) -> str:
        from convtime.show.comparison import line

        return f"<convtime.Comparison {line(self)}>"

    def details(self) -> str:
        """Return the printed text with all remarks, and all details of each candidate."""
        from convtime.show.comparison import sheet

        return sheet(self)

    def plot(self) -> Figure:
        """Plot each candidate's times, and its ratio to the baseline with the interval.

        Returns:
            A figure to save or show, e.g. ``compared.plot().savefig("comparison.png")``.

        Raises:
            ValueError: matplotlib is missing.
        """
        from convtime.show.plot import comparison_figure

        return comparison_figure(self)

    def _repr_html_(self) -> str:
        from convtime.show.comparison import html_sheet

        return html_sheet(self)


def _ratio_in_time(over: Measurement, under: Measurement, *, cost_known: bool = False) -> Ratio:
    """Return the ratio of times; ``cost_known`` leaves out the overhead uncertainty."""
    uncertainty = 0.0 if cost_known else _uncertainty(over, under)
    ratio = _paired(
        (over, over.seconds),
        (under, under.seconds),
        uncertainty=uncertainty,
        tick=_tick(over, under),
    )
    assert ratio is not None  # a measurement has at least one sample, and every time is known
    return ratio


def _uncertainty(over: Measurement, under: Measurement) -> float:
    return max(over.overhead_uncertainty, under.overhead_uncertainty)


def _doubt_of_places(over: Measurement, under: Measurement) -> float:
    """Return the share by which tensor placement in a CPU's memory can change a ratio."""
    return _C.DOUBT_OF_CPU_RATIOS if over.between_runs and under.between_runs else 0.0


def _tick(over: Measurement, under: Measurement) -> float:
    return max(over.clock_tick, under.clock_tick)


_Series = tuple[Measurement, Sequence[float | None]]  # with a value for each sample, if known


def other_metric(metric: str) -> str:
    """Return the metric whose verdict is checked against this metric's verdict."""
    return "span" if metric == "busy" else "busy"


def contradiction(verdict: str, metric: str, other: str, other_metric: str, ratio: Ratio) -> str:
    """Describe two certain verdicts that differ between metrics; empty for any others."""
    if "uncertain" in (verdict, other) or verdict == other:
        return ""
    names = {"busy": "busy time"}
    return (
        f"{verdict} in {names.get(metric, metric)}, but {other} in "
        f"{names.get(other_metric, other_metric)} ({ratio})"
    )


def _paired(over: _Series, under: _Series, uncertainty: float, tick: float) -> Ratio | None:
    """Return the ratio over the rounds in which both values are known; None if there are none."""
    rounds = [
        index
        for index, both in enumerate(zip(over[1], under[1], strict=False))  # no clock: no values
        if None not in both
    ]
    if not rounds:
        return None

    def of_rounds(values: Sequence[Any]) -> list[Any]:
        return [values[index] for index in rounds] if values else []

    return Ratio(
        *_C.paired_ratio(
            of_rounds(over[1]),
            of_rounds(under[1]),
            uncertainty,
            tick=tick,
            over_places=of_rounds(over[0].places),
            under_places=of_rounds(under[0].places),
            batches=of_rounds(over[0].batches),
        )
    )


def _clocks(over: Measurement, under: Measurement) -> str:
    medians = [
        statistics.median(hz for hz in measured.sm_clocks_hz if hz is not None) / 1e6
        for measured in (over, under)
    ]
    return "{:.0f} MHz against {:.0f}".format(*medians)


def exit_code_of(
    found: Iterable[Failure | Verdict], fail_on: Failure | Collection[Failure], uncertain: int
) -> int:
    """Return 1 for a finding in ``fail_on``, else ``uncertain`` for an uncertain verdict, else 0.

    Raises:
        ValueError: ``fail_on`` contains a value that is not a :data:`Failure`.
    """
    failures = {fail_on} if isinstance(fail_on, str) else set(fail_on)
    if not failures <= set(get_args(Failure)):
        raise ValueError(f"fail_on must be some of {get_args(Failure)}, got {fail_on!r}")
    found = set(found)
    if found & failures:
        return 1
    return uncertain if "uncertain" in found else 0
