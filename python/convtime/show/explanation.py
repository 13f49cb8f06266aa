"""An Explanation as text and HTML: the two sides next to each other, a line for each fact."""

from __future__ import annotations

import dataclasses
import html as escaping
import math
import textwrap
from collections.abc import Iterator

from tabulate import tabulate

from convtime.conv.explain.differences import in_words
from convtime.conv.explain.types import Explanation, PassExplanation, Side
from convtime.results.units import format_seconds

_HEADINGS = ("", "PyTorch", "", "convtime")


def text(explanation: Explanation) -> str:
    """As plain text."""
    parts = [f"<convtime.Explanation {_title(explanation)}"]
    for explained in explanation.passes:
        table = tabulate(
            rows(explained),
            _HEADINGS,
            tablefmt="plain",
            disable_numparse=True,
            maxcolwidths=[None, 60, None, 60],
        )
        parts.append(f"  {_caption(explained)}")
        parts.append(textwrap.indent(table, "    "))
        parts += [f"    {line}" for line in _verdict_lines(explained)]
    return "\n".join(parts) + ">"


def html(explanation: Explanation) -> str:
    """As HTML, with everything escaped."""

    def cell(kind: str, content: str) -> str:
        escaped = escaping.escape(content).replace("\n", "<br>")
        return f"<{kind} style='text-align:left'>{escaped}</{kind}>"

    def line(kind: str, contents: tuple[str, ...]) -> str:
        return f"<tr>{''.join(cell(kind, content) for content in contents)}</tr>"

    parts = [f"<p>{escaping.escape(_title(explanation))}</p>"]
    for explained in explanation.passes:
        body = "".join(line("td", row) for row in rows(explained))
        caption = escaping.escape(_caption(explained))
        items = "".join(f"<li>{escaping.escape(said)}</li>" for said in _verdict_lines(explained))
        parts.append(
            f"<table><caption>{caption}</caption>{line('th', _HEADINGS)}{body}</table>"
            f"<ul>{items}</ul>"
        )
    return "".join(parts)


def rows(explained: PassExplanation) -> list[tuple[str, str, str, str]]:
    """What is shown of the two sides: (what, PyTorch's, "≠" where that differs, convtime's)."""
    theirs, ours = (
        {fact.name: fact for fact in _facts(side)}
        for side in (explained.pytorch, explained.convtime)
    )
    lines = []
    for name in dict.fromkeys((*theirs, *ours)):
        their_fact, our_fact = theirs.get(name, _NO_FACT), ours.get(name, _NO_FACT)
        compared = (their_fact.compared, our_fact.compared)
        differs = None not in compared and compared[0] != compared[1]
        lines.append((name, their_fact.text, "≠" if differs else "", our_fact.text))
    return lines


@dataclasses.dataclass(frozen=True)
class _Fact:
    """A line of a side: its text, and what has to be the same on the other; None: nothing."""

    name: str
    text: str
    compared: object = None


_NO_FACT = _Fact("", "–", "")


def _facts(side: Side) -> Iterator[_Fact]:
    def shown(name: str, value: object) -> _Fact:
        return _Fact(name, in_words(value), value)

    plan = side.plan
    if plan is None:
        yield shown("plan", f"none: {side.no_plan}")
    else:
        yield shown("plan", plan.tag)
        yield shown("engine", plan.engine)
        yield shown("knobs", plan.knobs)
        yield _Fact("selected by", plan.source)
        yield shown("numerical notes", plan.numerical_notes)
        yield shown("behavior notes", plan.behavior_notes)
        yield _Fact("workspace", f"{plan.workspace_bytes:,} bytes", plan.workspace_bytes)
        yield _Fact("refused plans", in_words(plan.refused))
        for name in ("x", "w", "y", "compute_type", "padding", "stride", "dilation"):
            yield shown(name.replace("_", " "), getattr(plan, name))
    for index, kernel in enumerate(side.kernels, start=1):
        yield _Fact(f"kernel {index}", str(kernel), kernel.launch)
    yield _Fact(f"median time ({side.method})", format_seconds(side.seconds))


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


def _caption(explained: PassExplanation) -> str:
    return f"{explained.name}: {explained.backend}: {explained.why}"


def _verdict_lines(explained: PassExplanation) -> list[str]:
    lines = [f"≠ {difference}" for difference in explained.differences]
    if not lines:
        lines = ["= PyTorch and convtime run the same"]
    ratio = "–" if math.isnan(explained.ratio.value) else str(explained.ratio)
    lines.append(f"time convtime/PyTorch: {ratio}, {explained.verdict}")
    if not explained.pytorch_repeats:
        lines.append("PyTorch's own results differ in their bits from call to call")
    return lines
