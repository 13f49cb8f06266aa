"""Files that a run over axes writes: a line of JSON for the plan, and one for each visit.

A line is complete once its newline is written. A line without one was interrupted when the process
died, and is ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic

from convtime.core import codec, strict_json
from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.core.files import check_writable, is_run_file, write_errors
from convtime.sweeps.comparison_table import ComparisonTable
from convtime.sweeps.plan import (
    ComparisonPlan,
    ComparisonPoint,
    Plan,
    Point,
    SweepPlan,
    SweepPoint,
    Visit,
)
from convtime.sweeps.sweep_table import Sweep
from convtime.sweeps.table import PointTable

#: The types of the result, the plan and the visits in a file, by the type of its document.
_TYPES: dict[str, tuple[type[PointTable[Any]], type[Plan[Any]], type[Visit]]] = {
    "SweepFile": (Sweep, SweepPlan, SweepPoint),
    "ComparisonFile": (ComparisonTable, ComparisonPlan, ComparisonPoint),
}
# The words for the parts of a plan that are mappings.
_PARTS = {
    "applications": "application",
    "axes": "axis",
    "options": "option",
    "machine": "machine's",
}


@dataclasses.dataclass(frozen=True)
class Journal(Generic[Point]):
    """The plan of a run and its visits in memory and, optionally, in a file.

    Attributes:
        plan: plan of the run; a resumed run keeps its original seed.
        visits: all visits so far, in order.
        length: length of the complete lines that were read, in bytes.
        append: writes a line to the file.
    """

    plan: Plan[Point]
    visits: list[Point] = dataclasses.field(default_factory=list)
    length: int = 0
    append: Callable[[str], None] | None = None

    def add(self, visit: Point) -> None:
        """Add a visit, and write it to disk before returning."""
        if self.append is not None:
            self.append(codec.to_json_line(codec.encode(visit)) + "\n")
        self.visits.append(visit)

    @property
    def result(self) -> PointTable[Any]:
        """The points that were measured so far."""
        result_type, *_ = _TYPES[_kind_of(self.plan)]
        return result_type.of_visits(self.plan, self.visits)


def _kind_of(plan: Plan[Any]) -> str:
    return next(kind for kind, types in _TYPES.items() if isinstance(plan, types[1]))


def read(lines: Iterable[bytes], source: str) -> Journal[Any]:
    """Parse the lines of a file, each with its line end.

    Args:
        lines: the lines.
        source: name of the file, for errors.

    Raises:
        InputError: a line cannot be read; the message says which line and why.
    """
    plan: Plan[Any] | None = None
    visits: list[Any] = []
    length = 0
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            break
        length += len(line)
        where = f"{source}: line {number}"
        try:
            document = strict_json.parse(line.decode(), where)
            if plan is None:
                kind = document.get("type")
                if kind not in _TYPES:
                    raise ValueError(f"its type must be one of {', '.join(_TYPES)}, got {kind!r}")
                codec.check_document(kind, document)
                _, plan_type, visit_type = _TYPES[kind]
                plan = codec.decode(plan_type, document.get("plan"))
                continue
            visits.append(codec.decode(visit_type, document))
            if not plan.has(visits[-1]):
                raise ValueError("has a point that is not in the file's plan")
        except InputError:
            raise
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: is not UTF-8") from error
        except ValueError as error:
            raise InputError(f"{where}: {error}") from error
    if plan is None:
        raise InputError(f"{source}: ends in its first line, before any complete data")
    return Journal(plan, visits, length)


def first_line(plan: Plan[Any]) -> str:
    document = codec.document(_kind_of(plan), {"plan": codec.encode(plan)})
    return codec.to_json_line(document) + "\n"


@contextlib.contextmanager
def open_journal(
    path: Path | None, plan: Plan[Point], *, seed_given: bool
) -> Iterator[Journal[Point]]:
    """Open the journal of a run for appending.

    Args:
        path: file, created if missing; None keeps visits in memory only.
        plan: plan of the run.
        seed_given: whether the plan's seed is required; otherwise the file's seed applies.

    Raises:
        InputError: the file is not that of a run over axes, has a different plan, is in use by
            another process, or cannot be read or written.
    """
    if path is None:
        yield Journal(plan)
        return
    check_writable(path)
    with write_errors(path):
        file = path.open("ab", buffering=0)
    with file:
        _lock(path, file)
        append = functools.partial(_append, path, file)
        if os.fstat(file.fileno()).st_size == 0:
            append(first_line(plan))
        before = _read(path)
        if not seed_given:
            plan = dataclasses.replace(plan, seed=before.plan.seed)
        differences = "; ".join(_differences(before.plan, plan))
        require(
            not differences,
            f"{path}: belongs to a different run: {differences}; use another file, or delete "
            "this one",
        )
        # A partial line from an interrupted process would corrupt the next line.
        file.truncate(before.length)
        yield dataclasses.replace(before, append=append)


def _lock(path: Path, file: io.FileIO) -> None:
    """Lock the file; the system releases the lock when the process ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            f"{path}: another sweep or comparison is writing to it; wait until it ends, or use "
            "another file"
        ) from error
    except OSError as error:
        raise InputError(
            f"{path}: cannot be locked ({error.strerror}); use a file on a local disk"
        ) from error


def _append(path: Path, file: io.FileIO, line: str) -> None:
    rest = line.encode()
    before = os.fstat(file.fileno()).st_size
    try:
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):  # a file with a partial first line is not resumed
            file.truncate(before)
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); it contains the earlier visits, and "
            "running the same again resumes there"
        ) from error


def _read(path: Path) -> Journal[Any]:
    try:
        with path.open("rb") as file:
            require(
                is_run_file(file.peek()),
                f"{path}: is not the file of a sweep or comparison (unchanged); use another file",
            )
            return read(file, str(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read as the file of a run ({error})") from error


def _differences(before: Plan[Any], now: Plan[Any]) -> Iterator[str]:
    if type(before) is not type(now):
        yield f"{type(before).__name__} in the file, {type(now).__name__} here"
        return
    there, here = _facts(before), _facts(now)
    for fact in {**there, **here}:
        if fact not in here:
            yield f"{fact.removesuffix(' is')} is only in the file"
        elif fact not in there:
            yield f"{fact.removesuffix(' is')} is not in the file"
        # As JSON, warm-up 1 (a call) differs from 1.0 (s).
        elif codec.to_json_line(there[fact]) != codec.to_json_line(here[fact]):
            yield f"{fact} {_written(there[fact])} in the file, {_written(here[fact])} here"


def _facts(plan: Plan[Any]) -> dict[str, Any]:
    """Return everything that equal plans share, by the words for it."""
    facts = {"axes in the order": [*plan.axes], **codec.encode(plan)}
    for field, kind in _PARTS.items():
        facts |= {f"{kind} {name} is": part for name, part in facts.pop(field).items()}
    return facts


def _written(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)
