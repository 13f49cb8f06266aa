"""Show a PlanChoice: one line, and all facts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from convtime.conv.plan_choice import PlanChoice
from convtime.view.page import Block, Facts
from convtime.view.wording import printable


def line(choice: PlanChoice) -> str:
    sizes = [
        "unknown" if tensor is None else "×".join(map(str, tensor.sizes))
        for tensor in (choice.x, choice.w)
    ]
    return printable(
        f"{choice.pass_name} of {' by '.join(sizes)}, {choice.dtype}, {choice.device}: "
        f"{choice.tag}, by {choice.policy} ({choice.source}), used {choice.uses} times"
    )


def details(choice: PlanChoice) -> Iterator[Block]:
    absent = [name for name in ("z", "b") if getattr(choice, name) is None]  # no tensor is added
    facts = {
        field.name.replace("_", " "): in_words(getattr(choice, field.name))
        for field in dataclasses.fields(choice)
        if field.name not in absent
    }
    yield Facts(facts, title=line(choice))


def in_words(value: object) -> str:
    """Format a plan's property for people to read."""
    if isinstance(value, Mapping):
        return ", ".join(f"{knob}={setting}" for knob, setting in value.items()) or "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "not known" if value is None else str(value)
