"""Files that a run over axes writes: a line of JSON for the plan, and one for each visit.

A line is complete once its newline is written. A line without one was interrupted when the process
died, and is ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from convtime.core import codec, strict_json
from convtime.core.errors import InputError
from convtime.sweeps.comparison_plan import ComparisonPlan, ComparisonPoint
from convtime.sweeps.plan import Plan, SweepPlan, SweepPoint, Visit
from convtime.sweeps.result import Sweep
from convtime.sweeps.table import ComparisonTable


@dataclasses.dataclass(frozen=True)
class _Kind:
    """What a file of one kind contains.

    Attributes:
        plan: type of its plan.
        visit: type of its visits.
        result: type of its result.
    """

    plan: type[Plan[Any]]
    visit: type[Visit]
    result: type[Sweep | ComparisonTable]


_KINDS = {
    "SweepFile": _Kind(SweepPlan, SweepPoint, Sweep),
    "ComparisonFile": _Kind(ComparisonPlan, ComparisonPoint, ComparisonTable),
}


@dataclasses.dataclass(frozen=True)
class RunFile:
    """The content of a file.

    Attributes:
        plan: plan of the run.
        visits: visits in the order in which they were written.
        length: length of the complete lines, in bytes.
    """

    plan: Plan[Any]
    visits: tuple[Any, ...]
    length: int

    @property
    def result(self) -> Sweep | ComparisonTable:
        """The points that were measured so far."""
        _, kind = _kind_of(self.plan)
        of_visits: Any = kind.result.of_visits  # whose types are those of the kind
        found: Sweep | ComparisonTable = of_visits(self.plan, self.visits)
        return found


def _kind_of(plan: Plan[Any]) -> tuple[str, _Kind]:
    return next((name, kind) for name, kind in _KINDS.items() if isinstance(plan, kind.plan))


def first_line(plan: Plan[Any]) -> str:
    """Return the first line of a file."""
    name, _ = _kind_of(plan)
    return _line(codec.document(name, {"plan": codec.encode(plan)}))


def visit_line(visit: Visit) -> str:
    """Return the line of a visit."""
    return _line(codec.encode(visit))


def _line(document: dict[str, Any]) -> str:
    return codec.to_json_line(document) + "\n"


def read(lines: Iterable[bytes], source: str) -> RunFile:
    """Parse the lines of a file, each with its line end.

    Args:
        lines: the lines.
        source: name of the file, for errors.

    Raises:
        InputError: a line cannot be read; the message says which line and why.
    """
    plan: Plan[Any] | None = None
    visits: list[Visit] = []
    length = 0
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            break
        length += len(line)
        where = f"{source}: line {number}"
        try:
            document = strict_json.parse(line.decode(), where)
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: is not UTF-8") from error
        if plan is None:
            with _told_of(where):
                name = document.get("type")
                if name not in _KINDS:
                    raise ValueError(f"its type must be one of {', '.join(_KINDS)}, got {name!r}")
                codec.check_document(name, document)
                kind = _KINDS[name]
                plan = codec.decode(kind.plan, document.get("plan"))
            continue
        with _told_of(where):
            visit = codec.decode(kind.visit, document)
        if not plan.has(visit):
            raise InputError(f"{where}: has a point that is not in the file's plan")
        visits.append(visit)
    if plan is None:
        raise InputError(f"{source}: ends in its first line, before any complete data")
    return RunFile(plan, tuple(visits), length)


@contextlib.contextmanager
def _told_of(where: str) -> Iterator[None]:
    """Add the place to errors about its content."""
    try:
        yield
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error
