"""Render a PlanChoice as one line, a sheet of facts, and HTML."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from convtime.core import html, text

if TYPE_CHECKING:
    from convtime.conv.plan_choice import PlanChoice, TensorDescriptor


def line(choice: PlanChoice) -> str:
    """Return one line with the problem, the plan, and the number of uses."""
    sizes = [_sizes(tensor) for tensor in (choice.x, choice.w)]
    told = (
        f"{choice.pass_name} of {' by '.join(sizes)}, {choice.dtype}, {choice.device}: "
        f"{choice.tag}, by {choice.policy} ({choice.source}), used {choice.uses} times"
    )
    return text.printable(told)


def sheet(choice: PlanChoice) -> str:
    """Return one line per fact."""
    return f"{line(choice)}\n{text.facts(_facts(choice), indent=2)}"


def html_sheet(choice: PlanChoice) -> str:
    """Return an HTML table, with all text escaped."""
    return html.facts(line(choice), _facts(choice))


def _sizes(tensor: TensorDescriptor | None) -> str:
    return "unknown" if tensor is None else "×".join(map(str, tensor.sizes))


def _facts(choice: PlanChoice) -> dict[str, text.Cell]:
    absent = [name for name in ("z", "b") if getattr(choice, name) is None]  # no tensor is added
    return {
        field.name.replace("_", " "): in_words(getattr(choice, field.name))
        for field in dataclasses.fields(choice)
        if field.name not in absent
    }


def in_words(value: object) -> str:
    """Format a plan's property for people to read."""
    if isinstance(value, Mapping):
        return ", ".join(f"{knob}={setting}" for knob, setting in value.items()) or "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "not known" if value is None else str(value)
