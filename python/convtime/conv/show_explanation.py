"""Show an Explanation: whether both run the same, where the time goes, then all details."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Sequence

from convtime.conv.explanation import Explanation, PassExplanation, Side
from convtime.conv.kernels import MAIN, RoleShare, role_of, shares_by_role
from convtime.conv.show_plan import in_words
from convtime.timing.activity import DeviceActivity, same_launches
from convtime.timing.show import launch_cells
from convtime.view.figure import Figure, columns, microseconds, quantity, series_color
from convtime.view.page import Block, Cell, Details, Facts, Line, Table
from convtime.view.wording import format_seconds, format_share, printable

_WORTH_SAYING = 0.02  # share of the time; smaller parts appear only in the tables

_TIMES = ("time", "PyTorch", "convtime")  # columns that contain only times

_WIDTH, _ROW = 440, 24  # pixels of the figure

_UNKNOWN = in_words(None)
_MAY_DIFFER = ("selected by", "refused plans", "median time")  # beginnings of facts' names

_Rows = list[list[str]]


def line(explanation: Explanation) -> str:
    differing = [each.name for each in explanation.passes if each.differences]
    verdict = f"DIFFER in {', '.join(differing)}" if differing else "run the same"
    return printable(f"{_title(explanation)}: PyTorch and convtime {verdict}")


def printed(explanation: Explanation) -> Iterator[Block]:
    yield Line(line(explanation), role="answer")
    for explained in explanation.passes:
        verdict = "DIFFER" if explained.differences else "run the same"
        yield Facts(_gist(explained), title=f"{explained.name}: PyTorch and convtime {verdict}")
        yield _parts(explained)


def details(explanation: Explanation) -> Iterator[Block]:
    yield from printed(explanation)
    for explained in explanation.passes:
        alike, others = facts_of(explained)
        compared = Table(("", "PyTorch", "", "convtime"), others, tight=True)
        full: list[Block] = [Facts(alike), compared, *_kernels(explained)]
        yield Details(full, title=f"{explained.name} in full")


def _title(explanation: Explanation) -> str:
    call, problem = explanation.call, explanation.call.problem
    shapes = " by ".join("×".join(map(str, layout.sizes)) for layout in (call.x, call.w))
    parts = [f"{problem.kind.function} of {shapes}", call.dtype, explanation.device]
    for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0)):
        numbers = getattr(problem, name)
        if {*numbers} != {usual}:
            parts.append(f"{name.replace('_', ' ')} {'×'.join(map(str, numbers))}")
    others = {
        f"groups {problem.groups}": problem.groups > 1,
        "bias": problem.bias,
        f"policy {explanation.policy}": explanation.policy,
    }
    return ", ".join([*parts, *(text for text, holds in others.items() if holds)])


def _gist(explained: PassExplanation) -> dict[str, Cell]:
    theirs, ours = explained.pytorch, explained.convtime
    gist: dict[str, Cell] = {}
    if explained.differences:
        gist["differences"] = explained.differences
    if not explained.pytorch_repeats:
        gist["bits"] = "PyTorch's own results are not bit-identical between calls"
    gist["backend"] = f"{explained.backend}: {explained.why}"
    their_plan, our_plan = map(_plan, (theirs, ours))
    both = f"PyTorch {their_plan}, convtime {our_plan}"
    gist["plan"] = their_plan if their_plan == our_plan else both
    ratio = "–" if math.isnan(explained.ratio.value) else str(explained.ratio)
    gist["time"] = (
        f"PyTorch {format_seconds(theirs.seconds)}, convtime {format_seconds(ours.seconds)} "
        f"({theirs.method}); convtime/PyTorch {ratio}, {explained.verdict}"
    )
    spent = [
        f"{who}: {sentence}" if who else sentence
        for who, side in _distinct_sides(explained).items()
        for sentence in _spent(side)
    ]
    if spent:
        gist["of it"] = spent
    if explained.advice:
        gist["PyTorch, if you"] = [str(each) for each in explained.advice]
    return gist


def _distinct_sides(explained: PassExplanation) -> dict[str, Side]:
    """Return the sides by name; only PyTorch's, without a name, if both launch the same kernels."""
    if same_launches(explained.pytorch.kernels, explained.convtime.kernels):
        return {"": explained.pytorch}
    return {"PyTorch": explained.pytorch, "convtime": explained.convtime}


def _plan(side: Side) -> str:
    return f"none: {side.no_plan}" if side.plan is None else side.plan.tag


def _spent(side: Side) -> list[str]:
    """Return a sentence per significant part of the time other than the main kernel."""
    return [
        f"{format_share(share.seconds, side.seconds)} "
        + (
            "are conversions between NCHW and NHWC"
            if share.between_nchw_and_nhwc
            else f"go into {share.role}"
        )
        for share in shares_by_role(side.kernels)
        if share.role != MAIN and share.seconds >= _WORTH_SAYING * side.seconds
    ]


def _parts(explained: PassExplanation) -> Table:
    """Return the parts of the time, largest first; per side if the sides differ."""
    sides = [
        {share.role: _cells(share, side) for share in shares_by_role(side.kernels)}
        for side in _distinct_sides(explained).values()
    ]
    rows = [
        [role, *(cell for cells in sides for cell in cells.get(role, ("–", "")))]
        for role in dict.fromkeys(role for cells in sides for role in cells)
    ]
    headers = [
        header for who in _distinct_sides(explained) for header in (who or "time", "kernels")
    ]
    return Table(("goes into", *headers), rows, right=_TIMES, indent=2)


def _cells(share: RoleShare, side: Side) -> tuple[str, str]:
    """Return the time with its share, and the short names of the kernels."""
    names = [
        name if count == 1 else f"{count} × {name}"
        for name, count in collections.Counter(share.names).items()
    ]
    whole = math.fsum(kernel.median for kernel in side.kernels)
    part = share.seconds / whole if whole else 0.0
    return f"{format_seconds(share.seconds)}, {part:4.0%}", ", ".join(names)


def facts_of(explained: PassExplanation) -> tuple[dict[str, Cell], _Rows]:
    """Return the common facts, and rows of the others; "≠" marks unexpected differences."""
    theirs, ours = _facts(explained.pytorch), _facts(explained.convtime)
    alike: dict[str, Cell] = {}
    others, unknown = [], []
    for name in theirs | ours:
        pair = their_text, our_text = theirs.get(name, "–"), ours.get(name, "–")
        if their_text == our_text == _UNKNOWN:
            unknown.append(name)
        elif their_text == our_text:
            alike[name] = their_text
        else:
            is_expected = name.startswith(_MAY_DIFFER) or _UNKNOWN in pair
            others.append([name, their_text, "" if is_expected else "≠", our_text])
    if unknown:
        alike[_UNKNOWN] = ", ".join(unknown)
    return alike, others


def _facts(side: Side) -> dict[str, str]:
    plan, time = side.plan, {f"median time ({side.method})": format_seconds(side.seconds)}
    if plan is None:
        return {"plan": f"none: {side.no_plan}", **time}
    facts = {
        "plan": plan.tag,
        "engine": plan.engine,
        "knobs": plan.knobs,
        "selected by": plan.source,
        "numerical notes": plan.numerical_notes,
        "behavior notes": plan.behavior_notes,
        "workspace": f"{plan.workspace_bytes:,} bytes",
        "refused plans": plan.refused,
    }
    for name in ("x", "w", "y", "compute_type", "padding", "stride", "dilation"):
        facts[name.replace("_", " ")] = getattr(plan, name)
    return {name: in_words(value) for name, value in facts.items()} | time


def _kernels(explained: PassExplanation) -> Iterator[Table]:
    sides = _distinct_sides(explained)
    if len(sides) == 1:
        # In each side's order: groups run on several streams, so the order varies.
        ours: dict[object, list[DeviceActivity]] = {}
        for kernel in explained.convtime.kernels:
            ours.setdefault(kernel.launch, []).append(kernel)
        rows = [
            [
                format_seconds(kernel.median),
                format_seconds(ours[kernel.launch].pop(0).median),
                *_launch(kernel),
            ]
            for kernel in explained.pytorch.kernels
        ]
        yield _launches(("PyTorch", "convtime"), rows, "both")
        return
    for who, side in sides.items():
        rows = [[format_seconds(kernel.median), *_launch(kernel)] for kernel in side.kernels]
        yield _launches(("time",), rows, who)


def _launches(times: Sequence[str], rows: _Rows, who: str) -> Table:
    headers = (*times, "goes into", "grid", "block", "kernel")
    return Table(headers, rows, right=times, title=f"kernels of {who}:", indent=0)


def _launch(kernel: DeviceActivity) -> list[str]:
    return [role_of(kernel), *launch_cells(kernel, kernel.name)]


def figures(explanation: Explanation) -> Iterator[Figure]:
    bars = [
        (f"{explained.name}, {who}", share.role, share.seconds)
        for explained in explanation.passes
        for who, side in (("PyTorch", explained.pytorch), ("convtime", explained.convtime))
        for share in shares_by_role(side.kernels)
    ]
    if not bars:
        return
    rows = list(dict.fromkeys(row for row, _, _ in bars))
    roles = list(dict.fromkeys(role for _, role, _ in bars))
    yield Figure(
        title=f"{explanation.call.problem.label}, {explanation.call.dtype}: kernels by role",
        description=(
            f"Times of the kernels of {', '.join(rows)}, divided by role: {', '.join(roles)}."
        ),
        view={
            **columns(
                row=[row for row, _, _ in bars],
                series=[role for _, role, _ in bars],
                time=microseconds([seconds for _, _, seconds in bars]),
            ),
            "width": _WIDTH,
            "height": _ROW * len(rows),
            "mark": "bar",
            "encoding": {
                "x": quantity("time", "time (µs): sum of medians") | {"stack": "zero"},
                "y": {"field": "row", "type": "nominal", "title": None, "sort": None},
                "color": series_color(roles),
            },
        },
    )
