"""Show a Comparison: a table with a sentence per verdict, and all facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from convtime.timing import show_measurements
from convtime.timing.activity import DeviceActivity
from convtime.timing.plot import comparison_figure as plot
from convtime.timing.plot import distributions_figure
from convtime.timing.roofline import rooflines
from convtime.timing.show import estimate, facts_of, grouped, median, reservations
from convtime.view.figure import Figure
from convtime.view.page import Block, Cell, Details, Facts, Sentences, Table
from convtime.view.wording import format_seconds, printable

if TYPE_CHECKING:
    from convtime.timing.comparison import Comparison
    from convtime.timing.verdict import Judgement

_TIME, _RATIO = "time [95 %]", "ratio [95 %]"
_RESULT = {True: "same", False: "OTHER", None: "not known"}
_SEVERAL_TIMES = 2  # from this ratio on, show the ratio instead of a percentage


def line(compared: Comparison) -> str:
    """Return one line with each candidate's median and verdict."""
    parts = []
    for name in _in_order(compared):
        role = "the baseline" if name == compared.baseline else _verdict(compared, name)
        described = f"{name} {median(compared.measurements[name])}"
        parts.append(f"{described} ({role})" if role else described)
    return printable(", ".join(parts))


def printed(compared: Comparison) -> Iterator[Block]:
    """Yield a table with the meaning of each verdict and further notes below it."""
    yield _table(compared)
    yield Sentences(_sentences(compared), role="answer")
    yield Sentences(_notes_on_inputs(compared), tight=True, role="caution")


def details(compared: Comparison) -> Iterator[Block]:
    """Yield :func:`printed` and all other facts, the candidates' common facts first."""
    yield from printed(compared)
    yield Sentences(_cautions(compared), role="caution")
    remarks = [f"judged on {compared.judged_on}", *_remarks(compared)]
    yield Details([Sentences(remarks), *_conditions(compared)])


def _in_order(compared: Comparison) -> list[str]:
    """Return all names, starting with the baseline."""
    return sorted(compared.measurements, key=lambda name: name != compared.baseline)


def _table(compared: Comparison) -> Table:
    """Return a table in which results have a column only if they were compared."""
    headers = ["", _TIME, _RATIO, "verdict"]
    if compared.same_results:
        headers.append("result")
    rows = []
    for name in _in_order(compared):
        measured = compared.measurements[name]
        if name == compared.baseline:
            row = [name, estimate(measured), "", "the baseline"]
        else:
            verdict = _verdict(compared, name)
            row = [name, estimate(measured), str(compared.ratio(name)) if verdict else "", verdict]
        if compared.same_results:
            agreement = compared.same_results.get(name)
            row.append("" if agreement is None else _RESULT[agreement.same])
        rows.append(row)
    return Table(headers, rows, right=(_RATIO,))


def _verdict(compared: Comparison, name: str) -> str:
    """Return a candidate's verdict; empty if there is no GPU work to judge."""
    judged = compared.judge(name)
    if judged.reason == "no-gpu-work":
        return ""
    return f"{judged.verdict}, control" if name == compared.control else judged.verdict


def _sentences(compared: Comparison) -> Iterator[str]:
    """Yield the meaning of the verdicts, and reservations about them."""
    uncontrolled = []  # the same sentence for all candidates
    for name in _in_order(compared):
        if name == compared.baseline:
            continue
        judged = compared.judge(name)
        if judged.reason == "control-differs":
            sentence = (
                f"against {compared.baseline}: uncertain ({judged.reason}): {judged.sentence}"
            )
            uncontrolled.append((sentence, name))
        elif judged.reason != "no-gpu-work":  # the table shows that
            yield f"{name} {_in_words(judged, compared)}"
    for sentence, those in grouped(uncontrolled).items():
        yield f"{', '.join(those)} {sentence}"
    for name, agreement in compared.same_results.items():
        if agreement.same is False:
            yield f"{name}: {agreement}"
    for name, interference in compared.interference.items():
        yield f"{name}: {interference}"


def _in_words(judged: Judgement, compared: Comparison) -> str:
    ratio, baseline = judged.ratio, compared.baseline
    if judged.verdict == "uncertain":
        return f"against {baseline} is uncertain ({judged.reason}): {judged.sentence}"
    if judged.verdict == "same":
        sentence = f"takes as long as {baseline}, within {compared.margin:.2%}"
    elif judged.verdict == "faster":
        sentence = (
            f"is faster than {baseline}: it takes {1 - ratio.value:.2%} less time "
            f"({1 - ratio.high:.2%} to {1 - ratio.low:.2%})"
        )
    elif ratio.value < _SEVERAL_TIMES:
        sentence = (
            f"is slower than {baseline}: it takes {ratio.value - 1:.2%} more time "
            f"({ratio.low - 1:.2%} to {ratio.high - 1:.2%})"
        )
    else:
        sentence = (
            f"is slower than {baseline}: it takes {ratio.value:.3f} times as long "
            f"({ratio.low:.3f} to {ratio.high:.3f})"
        )
    return f"{sentence}; {judged.sentence}" if judged.sentence else sentence


def _notes_on_inputs(compared: Comparison) -> Iterator[str]:
    """Yield notes on inputs, with the candidates that each note applies to."""
    remarks = (
        (remark, name)
        for name, measured in compared.measurements.items()
        for remark in measured.inputs
    )
    for remark, those in grouped(remarks).items():
        yield f"note on {', '.join(those)}: {remark}"


def _cautions(compared: Comparison) -> Iterator[str]:
    """Yield requests that were not met, and limits of the measurements."""
    reserved = (
        (reservation, name)
        for name, measured in compared.measurements.items()
        for reservation in reservations(measured)
    )
    for reservation, those in grouped(reserved).items():
        yield f"{', '.join(those)}: {reservation}"
    if compared.interference_reason:
        yield f"interference not checked: {compared.interference_reason}"


def _remarks(compared: Comparison) -> Iterator[str]:
    """Yield further remarks on verdicts and results."""
    for name in _in_order(compared):
        if name == compared.baseline:
            continue
        judged = compared.judge(name)
        if math.isfinite(judged.smallest_difference) and judged.reason != "no-gpu-work":
            yield f"{name}: smallest detectable difference {judged.smallest_difference:.2%}"
    for name, agreement in compared.same_results.items():
        if agreement.same is not False:
            yield f"{name}: {agreement}"


def _conditions(compared: Comparison) -> Iterator[Block]:
    """Yield the facts that all candidates share, and a table of the other facts."""
    sheets = [facts_of(compared.measurements[name]) for name in _in_order(compared)]
    alike: dict[str, str] = {}
    different: list[list[Cell]] = []
    for fact in dict.fromkeys(fact for sheet in sheets for fact in sheet):
        texts = [sheet.get(fact, "–") for sheet in sheets]
        if len(set(texts)) == 1:
            alike[fact] = texts[0]
        else:
            different.append([fact, *texts])
    kernels = [compared.measurements[name].activities for name in _in_order(compared)]
    if any(kernels):
        different.append(["kernels", *map(_kernels, kernels)])
    if alike:
        yield Facts(alike, title="alike in all:")
    yield Table(("", *_in_order(compared)), different)


def _kernels(activities: Iterable[DeviceActivity]) -> list[str]:
    return [f"{format_seconds(each.median)} {each.short_name}" for each in activities]


def figures(compared: Comparison) -> Iterator[Figure]:
    """Yield the figures, the most informative first."""
    yield plot(compared)
    yield distributions_figure(compared)
    yield from rooflines(
        ", ".join(compared.measurements),
        ((name, name, measured) for name, measured in compared.measurements.items()),
    )


def appendix(compared: Comparison) -> Iterator[Block]:
    """Yield the measurements, for a page."""
    yield from show_measurements.each_of(compared.measurements)
