"""A baseline: the measurements of several runs of the same tests, and their noise."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from convtime.core import codec
from convtime.regression.noise import Repeats, standard_error
from convtime.timing.measurement import Measurement
from convtime.view.shown import Shown

Run = Mapping[str, Measurement]
_Repeats = Mapping[str, Repeats]
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, repr=False)
class Baseline(codec.Stored, Shown, show="convtime.regression.show_baseline"):
    """Several runs of the same tests, saved by the pytest plugin.

    Attributes:
        measurements: by name, the measurement of the most typical run of its test.
        repeats: by name, the medians of all runs.
        relative: the same relative to the reference operation that ``compare`` interleaved; only
            for names that have one.
    """

    measurements: Mapping[str, Measurement]
    repeats: Mapping[str, Repeats] = dataclasses.field(default_factory=dict)
    relative: Mapping[str, Repeats] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, runs: Sequence[Run], tests: Mapping[str, str], *, calibrated: bool) -> Baseline:
        """Combine the runs of unchanged tests.

        Args:
            runs: the measurements of each run, by name; a run can lack some names.
            tests: for each name of the first run, its test.
            calibrated: whether to derive each name's noise and margin.
        """
        by_name = {name: [run[name] for run in runs if name in run] for name in tests}
        ratios = {name: [*_ratios(name, runs)] for name in tests}
        typical = {test: _most_typical(test, runs, tests) for test in tests.values()}
        return cls(
            {name: typical[test][name] for name, test in tests.items()},
            _repeats(by_name, calibrated),
            _repeats(ratios, calibrated),
        )

    def with_others_of(self, earlier: Baseline, tests: Collection[str]) -> Baseline:
        """Return this baseline with the earlier one's measurements of all other tests."""
        beginnings = tuple(f"{test} " for test in tests)  # of the names of a test's measurements
        others = earlier.only(
            {
                name
                for name in earlier.measurements
                if name not in tests and not name.startswith(beginnings)
            }
        )
        return Baseline(
            {**others.measurements, **self.measurements},
            {**others.repeats, **self.repeats},
            {**others.relative, **self.relative},
        )

    def only(self, names: Collection[str]) -> Baseline:
        """Return this baseline with only these names, as far as it has them."""

        def chosen(by_name: Mapping[str, _T]) -> dict[str, _T]:
            return {name: one for name, one in by_name.items() if name in names}

        return Baseline(chosen(self.measurements), chosen(self.repeats), chosen(self.relative))

    def with_noise_of(self, calibrated: Baseline) -> Baseline:

        def noisy(mine: _Repeats, theirs: _Repeats) -> _Repeats:
            return {
                name: dataclasses.replace(one, noise=theirs[name].noise) if name in theirs else one
                for name, one in mine.items()
            }

        return dataclasses.replace(
            self,
            repeats=noisy(self.repeats, calibrated.repeats),
            relative=noisy(self.relative, calibrated.relative),
        )

    @property
    def outlying(self) -> dict[int, list[str]]:
        """For each run that is outlying for some names, their sentences; runs count from 1.

        A second mode, which counts for a name's noise, is not outlying.
        """
        sentences: dict[int, list[str]] = {}
        second_modes = self.second_modes
        for name, repeats in self.all_repeats().items():
            if name in second_modes:
                continue
            for index in repeats.outlying:
                factor = repeats.medians[index] / math.exp(repeats.log_median)
                sentences.setdefault(index + 1, []).append(f"{name} ({factor:.2f}×)")
        return sentences

    @property
    def second_modes(self) -> dict[str, int]:
        """By name, in how many runs it has a second mode, which counts for its calibrated noise."""
        return {
            name: len(one.outlying)
            for name, one in self.all_repeats().items()
            if one.noise is not None and one.has_second_mode
        }

    def all_repeats(self) -> dict[str, Repeats]:
        """Return the repeats by name, and relative ones, judged instead, as ``NAME, relative``."""
        return {**self.repeats, **{f"{name}, relative": one for name, one in self.relative.items()}}

    @property
    def too_noisy(self) -> tuple[str, ...]:
        """Sentences about tests that find only changes too large to need a test.

        A name with a reference operation counts by its time relative to that.
        """
        references = {reference_of(name, self.measurements) for name in self.measurements}
        repeats = {**self.repeats, **self.relative}
        noises = {name: repeats[name].noise for name in self.measurements if name in repeats}
        return tuple(
            f"too noisy to be worth its time: {name} takes "
            f"{self.measurements[name].sampling_seconds:.2g} s and finds only changes beyond "
            f"{noise.margin:.0%}"
            for name, noise in noises.items()
            if noise is not None and noise.too_noisy and name not in references
        )


def _repeats(by_name: Mapping[str, Sequence[Measurement]], calibrated: bool) -> dict[str, Repeats]:
    """Summarize the measurements of each name, if there are several and all have a time."""
    repeats: dict[str, Repeats] = {}
    for name, runs in by_name.items():
        medians = tuple(run.median for run in runs)
        if len(medians) > 1 and min(medians) > 0:
            repeats[name] = Repeats(medians, tuple(map(standard_error, runs)))
            if calibrated:
                tick = max(run.clock_tick / run.median for run in runs)
                repeats[name] = repeats[name].calibrated(tick)
    return repeats


def _ratios(name: str, runs: Sequence[Run]) -> Iterator[Measurement]:
    """Yield the measurement in each run, in times of the reference operation of the same round."""
    for run in runs:
        reference = reference_of(name, run)
        if reference:
            yield relative_to(run[name], run[reference], 1.0)


def reference_of(name: str, run: Run) -> str:
    """Return the name of the baseline that it was interleaved with; empty if it is unknown.

    A measurement that has a baseline is judged, and therefore cannot be a baseline.
    """
    if name not in run:
        return ""
    baseline = run[name].provenance.get("baseline")
    if not isinstance(baseline, str) or baseline not in run or baseline == name:
        return ""
    if run[baseline].provenance.get("baseline") in run:
        return ""
    seconds = run[baseline].seconds
    same_rounds = len(seconds) == len(run[name].seconds)
    return baseline if same_rounds and min(seconds, default=0) > 0 else ""


def relative_to(measured: Measurement, reference: Measurement, speed: float) -> Measurement:
    """Divide each sample by the reference's of the same round, and multiply it by ``speed``.

    The other metrics are left out, because they are not scaled.
    """
    rounds = zip(measured.seconds, reference.seconds, strict=True)
    return dataclasses.replace(
        measured,
        seconds=tuple(own * speed / other for own, other in rounds),
        busy_seconds=(),
        span_seconds=(),
        sum_seconds=(),
        clock_tick=measured.clock_tick * speed / reference.median,
    )


def _most_typical(test: str, runs: Sequence[Run], tests: Mapping[str, str]) -> Run:
    """Return the run whose times of a test are closest to their medians.

    All of a test's times come from one run: they are judged relative to each other.
    """
    names = [name for name, of in tests.items() if of == test]
    complete = [run for run in runs if all(name in run for name in names)]
    centers = {name: statistics.median(run[name].median for run in complete) for name in names}
    return min(
        complete,
        key=lambda run: max(
            abs(run[name].median - center) / (center or 1.0) for name, center in centers.items()
        ),
    )
