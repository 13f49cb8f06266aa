"""Show an Explanation: whether both run the same, where the time goes, then all details."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Sequence

from convtime.conv.explanation import Explanation, PassExplanation, Side
from convtime.conv.kernels import MAIN, Part, parts, role_of
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

_Rows = list[list[str]]


def line(explanation: Explanation) -> str:
    differing = [found.name for found in explanation.passes if found.differences]
    found = f"DIFFER in {', '.join(differing)}" if differing else "run the same"
    return printable(f"{_title(explanation)}: PyTorch and convtime {found}")


def printed(explanation: Explanation) -> Iterator[Block]:
    yield Line(line(explanation), role="answer")
    for explained in explanation.passes:
        found = "DIFFER" if explained.differences else "run the same"
        yield Facts(_gist(explained), title=f"{explained.name}: PyTorch and convtime {found}")
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
    told = [f"{problem.kind.function} of {shapes}", call.dtype, explanation.device]
    for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0)):
        numbers = getattr(problem, name)
        if any(number != usual for number in numbers):
            told.append(f"{name.replace('_', ' ')} {'×'.join(map(str, numbers))}")
    if problem.groups > 1:
        told.append(f"groups {problem.groups}")
    if problem.bias:
        told.append("bias")
    if explanation.policy:
        told.append(f"policy {explanation.policy}")
    return ", ".join(told)


def _gist(explained: PassExplanation) -> dict[str, Cell]:
    theirs, ours = explained.pytorch, explained.convtime
    gist: dict[str, Cell] = {}
    if explained.differences:
        gist["differences"] = explained.differences
    if not explained.pytorch_repeats:
        gist["bits"] = "PyTorch's own results are not bit-identical between calls"
    gist["backend"] = f"{explained.backend}: {explained.why}"
    gist["plan"] = _both(_plan(theirs), _plan(ours))
    ratio = "–" if math.isnan(explained.ratio.value) else str(explained.ratio)
    gist["time"] = (
        f"PyTorch {format_seconds(theirs.seconds)}, convtime {format_seconds(ours.seconds)} "
        f"({theirs.method}); convtime/PyTorch {ratio}, {explained.verdict}"
    )
    if _alike(explained):
        spent = [*_spent(theirs)]
    else:
        spent = [f"PyTorch: {said}" for said in _spent(theirs)]
        spent += [f"convtime: {said}" for said in _spent(ours)]
    if spent:
        gist["of it"] = spent
    if explained.advice:
        gist["PyTorch, if you"] = [str(each) for each in explained.advice]
    return gist


def _alike(explained: PassExplanation) -> bool:
    return same_launches(explained.pytorch.kernels, explained.convtime.kernels)


def _both(theirs: str, ours: str) -> str:
    return theirs if theirs == ours else f"PyTorch {theirs}, convtime {ours}"


def _plan(side: Side) -> str:
    return f"none: {side.no_plan}" if side.plan is None else side.plan.tag


def _spent(side: Side) -> Iterator[str]:
    """Yield a sentence per significant part of the time other than the main kernel."""
    for part in parts(side.kernels):
        if part.role == MAIN or part.seconds < _WORTH_SAYING * side.seconds:
            continue
        told = format_share(part.seconds, side.seconds)
        if part.between_nchw_and_nhwc:
            yield f"{told} are conversions between NCHW and NHWC"
        else:
            yield f"{told} go into {part.role}"


def _parts(explained: PassExplanation) -> Table:
    """Return the parts of the time, largest first; per side if the sides differ."""
    theirs, ours = ({part.role: part for part in parts(side.kernels)} for side in _sides(explained))
    if _alike(explained):
        rows = [[role, *_cells(part, explained.pytorch)] for role, part in theirs.items()]
        return Table(("goes into", "time", "kernels"), rows, right=_TIMES, indent=2)
    rows = [
        [
            role,
            *_cells(theirs.get(role), explained.pytorch),
            *_cells(ours.get(role), explained.convtime),
        ]
        for role in dict.fromkeys((*theirs, *ours))
    ]
    headers = ("goes into", "PyTorch", "kernels", "convtime", "kernels")
    return Table(headers, rows, right=_TIMES, indent=2)


def _cells(part: Part | None, side: Side) -> tuple[str, str]:
    """Return the time with its share, and the short names of the kernels."""
    if part is None:
        return "–", ""
    names = [
        name if count == 1 else f"{count} × {name}"
        for name, count in collections.Counter(part.names).items()
    ]
    whole = math.fsum(kernel.median for kernel in side.kernels)
    share = part.seconds / whole if whole else 0.0
    return f"{format_seconds(part.seconds)}, {share:4.0%}", ", ".join(names)


def facts_of(explained: PassExplanation) -> tuple[dict[str, Cell], _Rows]:
    """Return the common facts, and rows of the others; "≠" marks unexpected differences."""
    theirs, ours = map(_facts, _sides(explained))
    alike: dict[str, Cell] = {}
    others, unknown = [], []
    for name in theirs | ours:
        (their_text, their_value), (our_text, our_value) = (
            facts.get(name, ("–", "")) for facts in (theirs, ours)
        )
        differs = None not in (their_value, our_value) and their_value != our_value
        if their_text == our_text == _UNKNOWN:
            unknown.append(name)
        elif their_text == our_text and not differs:
            alike[name] = their_text
        else:
            others.append([name, their_text, "≠" if differs else "", our_text])
    if unknown:
        alike[_UNKNOWN] = ", ".join(unknown)
    return alike, others


def _sides(explained: PassExplanation) -> tuple[Side, Side]:
    return explained.pytorch, explained.convtime


def _facts(side: Side) -> dict[str, tuple[str, object]]:
    """Return the text of each fact, and the value that both sides must have (None: any)."""

    def required(value: object) -> tuple[str, object]:
        return in_words(value), value

    plan, time = side.plan, {f"median time ({side.method})": (format_seconds(side.seconds), None)}
    if plan is None:
        return {"plan": required(f"none: {side.no_plan}"), **time}
    described = ("x", "w", "y", "compute_type", "padding", "stride", "dilation")
    return {
        "plan": required(plan.tag),
        "engine": required(plan.engine),
        "knobs": required(plan.knobs),
        "selected by": (plan.source, None),
        "numerical notes": required(plan.numerical_notes),
        "behavior notes": required(plan.behavior_notes),
        "workspace": (f"{plan.workspace_bytes:,} bytes", plan.workspace_bytes),
        "refused plans": (in_words(plan.refused), None),
        **{name.replace("_", " "): required(getattr(plan, name)) for name in described},
        **time,
    }


def _kernels(explained: PassExplanation) -> Iterator[Table]:
    theirs, ours = explained.pytorch.kernels, explained.convtime.kernels
    if not theirs and not ours:
        return
    if _alike(explained):
        # In each side's order: groups run on several streams, so the order varies.
        of_ours: dict[object, list[DeviceActivity]] = {}
        for kernel in ours:
            of_ours.setdefault(kernel.launch, []).append(kernel)
        pairs = [(kernel, of_ours[kernel.launch].pop(0)) for kernel in theirs]
        rows = [
            [format_seconds(kernel.median), format_seconds(our_kernel.median), *_launch(kernel)]
            for kernel, our_kernel in pairs
        ]
        yield _launches(("PyTorch", "convtime"), rows, "both")
        return
    for who, kernels in (("PyTorch", theirs), ("convtime", ours)):
        rows = [[format_seconds(kernel.median), *_launch(kernel)] for kernel in kernels]
        yield _launches(("time",), rows, who)


def _launches(times: Sequence[str], rows: _Rows, who: str) -> Table:
    headers = (*times, "goes into", "grid", "block", "kernel")
    return Table(headers, rows, right=times, title=f"kernels of {who}:", indent=0)


def _launch(kernel: DeviceActivity) -> list[str]:
    return [role_of(kernel), *launch_cells(kernel, kernel.name)]


def figures(explanation: Explanation) -> Iterator[Figure]:
    bars = [
        (f"{found.name}, {who}", part.role, part.seconds)
        for found in explanation.passes
        for who, side in (("PyTorch", found.pytorch), ("convtime", found.convtime))
        for part in parts(side.kernels)
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
