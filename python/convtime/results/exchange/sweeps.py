"""Files that a sweep is written to while it runs: a line of JSON for the plan, and for each visit.

A line is whole once it ends, so that one that was being written when the process died is known by
its missing end, and left out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from convtime.core import codec
from convtime.core.errors import InputError
from convtime.results.exchange import strict_json
from convtime.results.sweep import Sweep
from convtime.results.sweep_plan import SweepPlan, SweepPoint

_KIND = "convtime sweep"


@dataclasses.dataclass(frozen=True)
class SweepFile:
    """What is in a file.

    Attributes:
        plan: of the sweep.
        visits: in the order in which they were written.
        length: of what is whole in it, in bytes.
    """

    plan: SweepPlan
    visits: tuple[SweepPoint, ...]
    length: int

    @property
    def sweep(self) -> Sweep:
        """What was measured so far."""
        return Sweep.of_visits(self.plan, self.visits)


def first_line(plan: SweepPlan) -> str:
    """The line that a file begins with."""
    return _line({"kind": _KIND, "plan": codec.encode(plan, Sweep.SCHEMA)})


def visit_line(visit: SweepPoint) -> str:
    """The line of a visit."""
    return _line(codec.encode(visit))


def _line(document: dict[str, Any]) -> str:
    return codec.to_json_line(document) + "\n"


def is_one(content: str) -> bool:
    """Whether a file's content is a sweep's."""
    return content.startswith(f'{{"kind": "{_KIND}"')


def read(content: str, source: str) -> SweepFile:
    """Reads what is in a file.

    Raises:
        InputError: says which line cannot be read, and why.
    """
    whole = content[: content.rfind("\n") + 1]
    first, *others = whole.split("\n")[:-1] or [""]
    if not first:
        raise InputError(f"{source}: ends in its first line, so that nothing of it can be read")
    where = f"{source}: line 1"
    plan = _decoded(SweepPlan, strict_json.parse(first, where).get("plan"), where, Sweep.SCHEMA)
    visits = []
    for number, line in enumerate(others, start=2):
        where = f"{source}: line {number}"
        visit = _decoded(SweepPoint, strict_json.parse(line, where), where)
        if not plan.has(visit):
            raise InputError(f"{where} has a point that its plan does not have")
        visits.append(visit)
    return SweepFile(plan, tuple(visits), len(whole.encode()))


def _decoded(kind: type[Any], data: Any, where: str, schema: str | None = None) -> Any:
    try:
        return codec.decode(kind, data, schema)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error
