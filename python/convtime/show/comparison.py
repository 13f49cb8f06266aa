"""A Comparison as a table with a sentence for each verdict, as a sheet, and as HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from convtime.results.activity import DeviceActivity
from convtime.results.comparison import Comparison, Judgement
from convtime.results.units import format_seconds
from convtime.show import html, svg, text
from convtime.show.measurement import estimate, facts_of, median

_TIME, _RATIO = "time [95 %]", "ratio [95 %]"
_RESULT = {True: "same", False: "OTHER", None: "not known"}
_SEVERAL_TIMES = 2  # from this ratio on, it is said in place of percents


def line(compared: Comparison) -> str:
    """Every candidate's median, and its verdict."""
    told = []
    for name in _in_order(compared):
        role = "the baseline" if name == compared.baseline else _verdict(compared, name)
        described = f"{name} {median(compared.measurements[name])}"
        told.append(f"{described} ({role})" if role else described)
    return text.printable(", ".join(told))


def brief(compared: Comparison) -> str:
    """A table, and below it what the verdicts mean and what is to be known beside them."""
    headers, rows = _table(compared)
    parts = [text.table(headers, rows, right=(_RATIO,)), text.sentences(_sentences(compared))]
    return "\n\n".join(filter(None, parts))


def sheet(compared: Comparison) -> str:
    """As :func:`brief`, and everything else: first what the candidates have in common."""
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
    """As HTML, with everything escaped."""
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
    """The ratios with their intervals; empty where there are none."""
    rows = [
        svg.Estimate(name, ratio.value, ratio.low, ratio.high)
        for name in _in_order(compared)
        if name != compared.baseline and _verdict(compared, name)
        for ratio in [compared.ratio(name)]
    ]
    return svg.estimates(rows, 1.0, compared.margin) if rows else ""


def _in_order(compared: Comparison) -> list[str]:
    """All names, the baseline's first."""
    return sorted(compared.measurements, key=lambda name: name != compared.baseline)


def _table(compared: Comparison) -> tuple[list[str], list[list[str]]]:
    """Headers and rows; the results' column is left out where results were not looked at."""
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
    """The verdict on one that is not the baseline; empty where there is no GPU work to judge."""
    judged = compared.judge(name)
    if judged.reason == "no-gpu-work":
        return ""
    return f"{judged.verdict}, control" if name == compared.control else judged.verdict


def _sentences(compared: Comparison) -> Iterator[str]:
    """What the verdicts mean, and what whoever relies on them must know."""
    names: dict[str, list[str]] = {}
    for name in _in_order(compared):
        if name == compared.baseline:
            continue
        judged = compared.judge(name)
        if judged.reason == "control-differs":  # says the same of all of them
            said = f"against {compared.baseline}: uncertain ({judged.reason}): {judged.sentence}"
            names.setdefault(said, []).append(name)
        elif judged.reason != "no-gpu-work":  # as the table says
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
    """What is remarkable about inputs, with the candidates that have them in common."""
    names: dict[str, list[str]] = {}
    for name, measured in compared.measurements.items():
        for remark in measured.inputs:
            names.setdefault(remark, []).append(name)
    for remark, those in names.items():
        yield f"note on {', '.join(those)}: {remark}"


def _remarks(compared: Comparison) -> Iterator[str]:
    """What else there is to say of verdicts and results."""
    for name in _in_order(compared):
        if name == compared.baseline:
            continue
        judged = compared.judge(name)
        if math.isfinite(judged.smallest_difference) and judged.reason != "no-gpu-work":
            yield f"{name}: differences from {judged.smallest_difference:.2%} on would be found"
    for name, agreement in compared.same_results.items():
        if agreement.same is not False:
            yield f"{name}: {agreement}"
    if compared.interference_reason:
        yield f"interference not looked for: {compared.interference_reason}"


def _conditions(compared: Comparison) -> tuple[dict[str, str], list[list[text.Cell]]]:
    """The facts that all candidates have in common, and rows of the others."""
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
