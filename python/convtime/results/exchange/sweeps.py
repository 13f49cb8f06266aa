"""Files that a sweep writes while it runs: a line of JSON for the plan, and one for each visit.

A line is complete once its newline is written. A line without one was interrupted when the process
died, and is ignored.
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
    """The content of a file.

    Attributes:
        plan: plan of the sweep.
        visits: visits in the order in which they were written.
        length: length of the complete lines, in bytes.
    """

    plan: SweepPlan
    visits: tuple[SweepPoint, ...]
    length: int

    @property
    def sweep(self) -> Sweep:
        """The points that were measured so far."""
        return Sweep.of_visits(self.plan, self.visits)


def first_line(plan: SweepPlan) -> str:
    """Return the first line of a file."""
    return _line({"kind": _KIND, "plan": codec.encode(plan, Sweep.SCHEMA)})


def visit_line(visit: SweepPoint) -> str:
    """Return the line of a visit."""
    return _line(codec.encode(visit))


def _line(document: dict[str, Any]) -> str:
    return codec.to_json_line(document) + "\n"


def is_one(content: str) -> bool:
    """Return whether a file's content is a sweep's."""
    return content.startswith(f'{{"kind": "{_KIND}"')


def read(content: str, source: str) -> SweepFile:
    """Parse a file's content.

    Raises:
        InputError: a line cannot be read; the message says which line and why.
    """
    whole = content[: content.rfind("\n") + 1]
    first, *others = whole.split("\n")[:-1] or [""]
    if not first:
        raise InputError(f"{source}: ends in its first line, before any complete data")
    where = f"{source}: line 1"
    plan = _decoded(SweepPlan, strict_json.parse(first, where).get("plan"), where, Sweep.SCHEMA)
    visits = []
    for number, line in enumerate(others, start=2):
        where = f"{source}: line {number}"
        visit = _decoded(SweepPoint, strict_json.parse(line, where), where)
        if not plan.has(visit):
            raise InputError(f"{where}: has a point that is not in the sweep's plan")
        visits.append(visit)
    return SweepFile(plan, tuple(visits), len(whole.encode()))


def _decoded(kind: type[Any], data: Any, where: str, schema: str | None = None) -> Any:
    try:
        return codec.decode(kind, data, schema)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error
