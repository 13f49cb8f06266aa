"""Files that a sweep writes while it runs: a line of JSON for the plan, and one for each visit.

A line is complete once its newline is written. A line without one was interrupted when the process
died, and is ignored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from convtime.core import codec, strict_json
from convtime.core.errors import InputError
from convtime.sweeps.plan import SweepPlan, SweepPoint
from convtime.sweeps.result import Sweep

_KIND = "SweepFile"
# How the first line begins: since files name their type, and before.
_BEGINNINGS = (f'{{"type": "{_KIND}"'.encode(), b'{"kind": "convtime sweep"')


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
    return _line(codec.document(_KIND, {"plan": codec.encode(plan)}))


def visit_line(visit: SweepPoint) -> str:
    """Return the line of a visit."""
    return _line(codec.encode(visit))


def _line(document: dict[str, Any]) -> str:
    return codec.to_json_line(document) + "\n"


def is_one(content: bytes) -> bool:
    """Return whether a file's content, or its start, is a sweep's."""
    return content.startswith(_BEGINNINGS)


def read(
    lines: Iterable[bytes], source: str, renewed: Callable[[Any], Any] | None = None
) -> SweepFile:
    """Parse the lines of a file, each with its line end.

    Args:
        lines: the lines.
        source: name of the file, for errors.
        renewed: converts a line of an earlier version; None refuses such a file, which cannot be
            continued.

    Raises:
        InputError: a line cannot be read; the message says which line and why.
    """
    plan: SweepPlan | None = None
    visits: list[SweepPoint] = []
    length, earlier = 0, False
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            break
        length += len(line)
        where = f"{source}: line {number}"
        document = _parsed(line, where)
        if plan is None:
            earlier = "type" not in document
            if earlier and renewed is None:
                raise InputError(
                    f"{source}: was written by an earlier version of convtime, which reads it but "
                    "does not continue it; name another file"
                )
            plan = _checked(SweepPlan, document, where, None if earlier else _KIND)
            continue
        if earlier and renewed is not None:
            document = renewed(document)
        visit = _decoded(SweepPoint, document, where)
        if not plan.has(visit):
            raise InputError(f"{where}: has a point that is not in the sweep's plan")
        visits.append(visit)
    if plan is None:
        raise InputError(f"{source}: ends in its first line, before any complete data")
    return SweepFile(plan, tuple(visits), length)


def _parsed(line: bytes, where: str) -> Any:
    try:
        return strict_json.parse(line.decode(), where)
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: is not UTF-8") from error


def _checked(kind: type[Any], document: Any, where: str, named: str | None) -> Any:
    try:
        if named is not None:
            codec.check_document(named, document)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error
    return _decoded(kind, document.get("plan"), where)


def _decoded(kind: type[Any], data: Any, where: str) -> Any:
    try:
        return codec.decode(kind, data)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error
