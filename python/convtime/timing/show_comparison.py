"""Render a Comparison as a table with a sentence per verdict, a sheet, and HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from convtime.core import html, svg, text
from convtime.core.units import format_seconds
from convtime.timing.activity import DeviceActivity
from convtime.timing.show import estimate, facts_of, median

if TYPE_CHECKING:
    from convtime.timing.comparison import Comparison
    from convtime.timing.verdict import Judgement

_TIME, _RATIO = "time [95 %]", "ratio [95 %]"
_RESULT = {True: "same", False: "OTHER", None: "not known"}
_SEVERAL_TIMES = 2  # from this ratio on, show the ratio instead of a percentage


def line(compared: Comparison) -> str:
    """Return one line with each candidate's median and verdict."""
    told = []
    for name in _in_order(compared):
        role = "the baseline" if name == compared.baseline else _verdict(compared, name)
        described = f"{name} {median(compared.measurements[name])}"
        told.append(f"{described} ({role})" if role else described)
    return text.printable(", ".join(told))


def brief(compared: Comparison) -> str:
    """Return a table with the meaning of each verdict and further notes below it."""
    headers, rows = _table(compared)
    parts = [text.table(headers, rows, right=(_RATIO,)), text.sentences(_sentences(compared))]
    return "\n\n".join(filter(None, parts))


def sheet(compared: Comparison) -> str:
    """Return :func:`brief` and all other facts, the candidates' common facts first."""
    remarks = [f"judged on {compared.judged_on}", *_remarks(compared)]
    alike, different = _conditions(compared)
    names = _in_order(compared)
    parts = [brief(compared), text.sentences(remarks)]
    if alike:
        parts.append(f"alike in all:\n{text.facts(alike, indent=2)}")
    if different:
        parts.append(text.table(("", *names), different))
    return "\n\n".join(parts)


def html_sheet(compared: Comparison) -> str:
    """Return the comparison as HTML, with all text escaped."""
    headers, rows = _table(compared)
    alike, different = _conditions(compared)
    conditions = html.facts("alike in all", alike) if alike else ""
    if different:
        conditions += html.table(("", *_in_order(compared)), different)
    remarks = [f"judged on {compared.judged_on}", *_remarks(compared)]
    return (
        html.table(headers, rows)
        + _picture(compared)
        + html.items(_sentences(compared))
        + html.hidden("details", html.items(remarks) + conditions)
    )


def _picture(compared: Comparison) -> str:
    """Return a picture of the ratios with their intervals; empty if there are none."""
    rows = [
        svg.Estimate(name, ratio.value, ratio.low, ratio.high)
        for name in _in_order(compared)
        if name != compared.baseline and _verdict(compared, name)
        for ratio in [compared.ratio(name)]
    ]
    return svg.estimates(rows, 1.0, compared.margin) if rows else ""


def _in_order(compared: Comparison) -> list[str]:
    """Return all names, starting with the baseline."""
    return sorted(compared.measurements, key=lambda name: name != compared.baseline)


def _table(compared: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows; results have a column only if they were compared."""
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
    return headers, rows


def _verdict(compared: Comparison, name: str) -> str:
    """Return a candidate's verdict; empty if there is no GPU work to judge."""
    judged = compared.judge(name)
    if judged.reason == "no-gpu-work":
        return ""
    return f"{judged.verdict}, control" if name == compared.control else judged.verdict


def _sentences(compared: Comparison) -> Iterator[str]:
    """Yield the meaning of the verdicts, and reservations about them."""
    names: dict[str, list[str]] = {}
    for name in _in_order(compared):
        if name == compared.baseline:
            continue
        judged = compared.judge(name)
        if judged.reason == "control-differs":  # the same sentence for all candidates
            said = f"against {compared.baseline}: uncertain ({judged.reason}): {judged.sentence}"
            names.setdefault(said, []).append(name)
        elif judged.reason != "no-gpu-work":  # the table shows that
            yield f"{name} {_in_words(judged, compared)}"
    for said, those in names.items():
        yield f"{', '.join(those)} {said}"
    for name, agreement in compared.same_results.items():
        if agreement.same is False:
            yield f"{name}: {agreement}"
    for name, found in compared.interference.items():
        yield f"{name}: {found}"
    yield from _notes_on_inputs(compared)


def _in_words(judged: Judgement, compared: Comparison) -> str:
    ratio, baseline = judged.ratio, compared.baseline
    if judged.verdict == "uncertain":
        return f"against {baseline} is uncertain ({judged.reason}): {judged.sentence}"
    if judged.verdict == "same":
        said = f"takes as long as {baseline}, within {compared.margin:.2%}"
    elif judged.verdict == "faster":
        said = (
            f"is faster than {baseline}: it takes {1 - ratio.value:.2%} less time "
            f"({1 - ratio.high:.2%} to {1 - ratio.low:.2%})"
        )
    elif ratio.value < _SEVERAL_TIMES:
        said = (
            f"is slower than {baseline}: it takes {ratio.value - 1:.2%} more time "
            f"({ratio.low - 1:.2%} to {ratio.high - 1:.2%})"
        )
    else:
        said = (
            f"is slower than {baseline}: it takes {ratio.value:.3f} times as long "
            f"({ratio.low:.3f} to {ratio.high:.3f})"
        )
    return f"{said}; {judged.sentence}" if judged.sentence else said


def _notes_on_inputs(compared: Comparison) -> Iterator[str]:
    """Yield notes on inputs, with the candidates that each note applies to."""
    names: dict[str, list[str]] = {}
    for name, measured in compared.measurements.items():
        for remark in measured.inputs:
            names.setdefault(remark, []).append(name)
    for remark, those in names.items():
        yield f"note on {', '.join(those)}: {remark}"


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
    if compared.interference_reason:
        yield f"interference not checked: {compared.interference_reason}"


def _conditions(compared: Comparison) -> tuple[dict[str, str], list[list[text.Cell]]]:
    """Return the facts that all candidates share, and rows of the other facts."""
    sheets = [facts_of(compared.measurements[name]) for name in _in_order(compared)]
    alike: dict[str, str] = {}
    different: list[list[text.Cell]] = []
    for fact in dict.fromkeys(fact for sheet in sheets for fact in sheet):
        told = [sheet.get(fact, "–") for sheet in sheets]
        if len(set(told)) == 1:
            alike[fact] = told[0]
        else:
            different.append([fact, *told])
    kernels = [compared.measurements[name].activities for name in _in_order(compared)]
    if any(kernels):
        different.append(["kernels", *map(_told, kernels)])
    return alike, different


def _told(activities: Iterable[DeviceActivity]) -> list[str]:
    return [f"{format_seconds(each.median)} {each.short_name}" for each in activities]
