"""Several operations under the same conditions, and the ratios of their times."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from convtime.core import codec
from convtime.core.checks import require
from convtime.core.load import _C
from convtime.timing.measurement import Measurement, Measurements
from convtime.timing.verdict import (
    Failure,
    Finding,
    Judgement,
    Ratio,
    Reason,
    Verdict,
    check_failures,
    contradiction,
    exit_code_of,
    other_metric,
    why_uncertain,
)
from convtime.view.figure import Figure
from convtime.view.shown import Shown
from convtime.view.wording import format_seconds

if TYPE_CHECKING:
    import pandas
    import torch.utils.benchmark


#: What :meth:`Comparison.exit_code` can report.
FINDS = ("slower", "faster", "uncertain", "different", "contradictory")

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


_Pair = tuple[Measurement, Measurement]


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Agreement of a candidate's result with the baseline's.

    Attributes:
        same: whether the results are equal within the tolerance that the sentence names; None if
            this is unknown.
        sentence: by how much the results differ, or why this is unknown.
        largest_error: the largest absolute difference of two elements; None if no difference is a
            number.
    """

    same: bool | None
    sentence: str
    largest_error: float | None = None

    def __str__(self) -> str:
        heading = {True: "same result", False: "OTHER RESULT", None: "same result not known"}
        return f"{heading[self.same]}: {self.sentence}"


@dataclasses.dataclass(frozen=True)
class Interference:
    """A candidate whose time changes when it runs with the others.

    Attributes:
        ratio: its time with the others over its time alone.
        alone_seconds: median of its time alone, in seconds.
        sentence: both in words.
    """

    ratio: float
    alone_seconds: float
    sentence: str

    def __str__(self) -> str:
        return f"interference: {self.sentence}"


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison(codec.Stored, Shown, show="convtime.timing.show_comparison"):
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

    measurements: Annotated[Mapping[str, Measurement], msgspec.Meta(min_length=1)]
    margin: float = 0.01
    baseline: str = ""
    control: str = ""
    same_results: Mapping[str, Agreement] = dataclasses.field(default_factory=dict)
    interference: Mapping[str, Interference] = dataclasses.field(default_factory=dict)
    interference_reason: str = ""
    confirmation: Mapping[str, Ratio] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.measurements, "a comparison must have at least one measurement, got none")
        counts = {name: len(measured.seconds) for name, measured in self.measurements.items()}
        require(
            len(set(counts.values())) == 1,
            "measurements of one comparison must have the same number of samples, got "
            f"{reprlib.repr(counts)}",
        )
        if not self.baseline:
            object.__setattr__(self, "baseline", next(iter(self.measurements)))
        for role, name in (("baseline", self.baseline), ("control", self.control)):
            require(
                not name or name in self.measurements,
                f"{role} must be one of {reprlib.repr(list(self.measurements))}, got "
                f"{reprlib.repr(name)}",
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
        of_method = _JUDGED_ON.get(
            measured.method.used, f"the time that {measured.method.used!r} gives"
        )
        return _JUDGED_ON.get(measured.metric.used, of_method)

    def ratio(self, name: str, baseline: str | None = None) -> Ratio:
        """Return the time of ``name`` over the time of ``baseline``.

        The default baseline is the comparison's baseline.

        Raises:
            KeyError: a name is not in the comparison.
        """
        return _ratio_in_time(self._pair(name, baseline))

    def cycles_ratio(self, name: str, baseline: str | None = None) -> Ratio | None:
        """Return the ratio of SM clock cycles, like :meth:`ratio` for times.

        It covers the rounds in which both clocks are known; None if there are none.

        Raises:
            KeyError: a name is not in the comparison.
        """
        pair = self._pair(name, baseline)
        clocks_hz = [hz for each in pair for hz in each.sm_clocks_hz if hz is not None]
        highest_hz = max(clocks_hz, default=0.0)
        return _paired(pair, "cycles", _uncertainty(pair) * highest_hz, highest_hz)

    def _pair(self, name: str, baseline: str | None) -> _Pair:
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
        pair_of_names = name, self.baseline if baseline is None else baseline
        if pair_of_names not in self._judgements:
            self._judgements[pair_of_names] = self._judged(*pair_of_names)
        return self._judgements[pair_of_names]

    @cached_property
    def _judgements(self) -> dict[tuple[str, str], Judgement]:
        return {}

    def _judged(self, name: str, baseline: str) -> Judgement:
        pair = self._pair(name, baseline)
        ratio = _ratio_in_time(pair)
        reason, why = self._uncertainty(pair, ratio, name, baseline)
        verdict: Verdict = ratio.verdict(self.margin) if reason is None else "uncertain"
        in_cycles = self._verdict_in_cycles(name, baseline, reason)
        contradiction = self._contradiction(verdict, pair)
        sentences = [contradiction]
        if in_cycles not in (None, "uncertain", verdict):
            clock, baseline_clock = ((each.median_sm_clock_hz or 0) / 1e6 for each in pair)
            clocks = f"{clock:.0f} MHz against {baseline_clock:.0f}"
            sentences.append(f"{verdict} in time, {in_cycles} in cycles: clock ({clocks})")
        sentences.append(why)
        return Judgement(
            verdict=verdict,
            ratio=ratio,
            in_cycles=in_cycles,
            reason=reason,
            sentence="; ".join(filter(None, sentences)),
            smallest_difference=ratio.smallest_difference(self.margin + _placement_effect(pair)),
            contradiction=contradiction,
        )

    def _contradiction(self, verdict: Verdict, pair: _Pair) -> str:
        """Describe contradictory verdicts on busy time, span or another metric; empty for none."""
        metric = pair[0].metric.used
        other = other_metric(metric)
        if verdict == "uncertain" or not all(getattr(each, f"{other}_seconds") for each in pair):
            return ""
        ratio = _ratio_in_time(pair, f"{other}_seconds", uncertainty=0.0)
        return contradiction(verdict, metric, ratio.verdict(self.margin), other, ratio)

    def _verdict_in_cycles(self, name: str, baseline: str, reason: Reason | None) -> Verdict | None:
        ratio = self.cycles_ratio(name, baseline)
        if ratio is None or reason == "no-gpu-work":
            return None
        return "uncertain" if reason == "control-differs" else ratio.verdict(self.margin)

    def _uncertainty(
        self, pair: _Pair, ratio: Ratio, name: str, baseline: str
    ) -> tuple[Reason | None, str]:
        """Return why a verdict is uncertain, as a code and a sentence; None if it is certain."""
        for measured in pair:
            if measured.no_gpu_work:
                why = f"{measured.name!r} issues no work to the GPU: method='cpu' times both"
                return "no-gpu-work", why
        if pair[0] is pair[1]:
            return None, ""
        if self.control and name != self.control:
            control = self.ratio(self.control)
            of_control = control.verdict(self.margin, _placement_effect(pair))
            if of_control in ("faster", "slower"):
                return "control-differs", (
                    f"{self.control!r} does the same as the baseline, and was found {of_control} "
                    f"({control}): this run finds differences where there are none"
                )
        verdict = ratio.verdict(self.margin)
        if verdict == "uncertain":
            would_be = _ratio_in_time(pair, uncertainty=0.0).verdict(self.margin)
            if would_be == "uncertain":
                return why_uncertain(ratio.low, ratio.high, self.margin, *pair)
            return "method-cost", (
                f"it would be {would_be} if the method overhead were known more precisely than to "
                f"± {format_seconds(_uncertainty(pair))}; method='kernel' has no overhead"
            )
        fresh = self.confirmation.get(name) if baseline == self.baseline else None
        if fresh is not None:
            by_fresh = fresh.verdict(self.margin)
            if by_fresh == verdict:
                return None, ""
            return "not-confirmed", (
                f"it is {verdict} in this process, but {by_fresh} in a fresh one ({fresh}): the "
                "result depends on properties of the process, such as the state of its memory"
            )
        effect = _placement_effect(pair)
        if ratio.verdict(self.margin, effect) == "uncertain":
            return "placement", (
                f"tensor placement in a CPU's memory can change the ratio by {effect:.0%}, and the "
                "interval does not exceed the margin by that much; a fresh process confirms it "
                "(confirm=True)"
            )
        return None, ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings for a gate, as pairs of name and finding; a candidate can have several."""
        return tuple(
            (name, finding)
            for name in self.others
            for finding in findings_of(self.judge(name), self.same_results.get(name))
        )

    def exit_code(
        self, fail_on: Failure | Collection[Failure] = "slower", uncertain: int = 0
    ) -> int:
        """Return an exit code for CI from the verdicts on the candidates.

        Args:
            fail_on: findings on any candidate that give 1: ``slower`` or ``faster`` than the
                baseline by more than the margin, ``uncertain``, ``different`` (``same_results``
                says that its result differs) or ``contradictory`` (verdicts on busy time and span
                contradict each other; see :class:`Judgement`).
            uncertain: exit code if no such finding occurs but a verdict is uncertain. Default: 0.

        Raises:
            ValueError: ``fail_on`` contains an unknown finding.
        """
        return exit_code_of(self.findings, check_failures(fail_on, FINDS), uncertain)[0]

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
        return Measurements(self.measurements).to_frame()

    def to_torch(self, label: str | None = None) -> list[torch.utils.benchmark.Measurement]:
        """Convert to PyTorch's measurements, which its ``Compare`` prints as rows of one table.

        Args:
            label: title of the table. Default: the device.
        """
        return [
            measured.to_torch(label=label, sub_label=name)
            for name, measured in self.measurements.items()
        ]

    def plot(self) -> Figure:
        """Plot each candidate's times, and its ratio to the baseline with the interval.

        Returns:
            A figure to save or show, e.g. ``compared.plot().save("comparison.png")``.
        """
        figure: Figure = self._drawing().plot(self)
        return figure


def findings_of(judged: Judgement | None, agreement: Agreement | None) -> Iterator[str]:
    """Yield what a gate can report about a candidate: members of :data:`FINDS`, or ``same``.

    Args:
        judged: the judgement against the baseline; None for the baseline itself.
        agreement: whether its result is the reference's; None if it was not compared.
    """
    if judged is not None:
        yield judged.verdict
        if judged.contradiction:
            yield "contradictory"
    if agreement is not None and agreement.same is False:
        yield "different"


def _ratio_in_time(
    pair: _Pair, quantity: str = "seconds", uncertainty: float | None = None
) -> Ratio:
    """Return the ratio of times; the default of ``uncertainty`` is the overhead uncertainty."""
    ratio = _paired(pair, quantity, _uncertainty(pair) if uncertainty is None else uncertainty)
    assert ratio is not None  # a measurement has at least one sample, and every time is known
    return ratio


def _uncertainty(pair: _Pair) -> float:
    return max(measured.overhead_uncertainty for measured in pair)


def _placement_effect(pair: _Pair) -> float:
    """Return the share by which tensor placement in a CPU's memory can change a ratio."""
    return _C.DOUBT_OF_CPU_RATIOS if all(measured.between_runs for measured in pair) else 0.0


def _paired(
    pair: _Pair, quantity: str, uncertainty: float, per_second: float = 1.0
) -> Ratio | None:
    """Return the ratio over the rounds in which both values are known; None if there are none.

    Args:
        pair: the two measurements.
        quantity: the field with a value for each sample.
        uncertainty: error bound of both values.
        per_second: units of the quantity in a second, for the clock's tick.
    """
    series = [getattr(measured, quantity) for measured in pair]
    rounds = [
        index
        for index, both in enumerate(zip(*series, strict=False))  # no clock: no values
        if None not in both
    ]
    if not rounds:
        return None

    def of_rounds(values: Sequence[Any]) -> list[Any]:
        return [values[index] for index in rounds] if values else []

    over, under = pair
    return Ratio(
        *_C.paired_ratio(
            of_rounds(series[0]),
            of_rounds(series[1]),
            uncertainty,
            tick=max(over.clock_tick, under.clock_tick) * per_second,
            over_places=of_rounds(over.places),
            under_places=of_rounds(under.places),
            batches=of_rounds(over.batches),
        )
    )
