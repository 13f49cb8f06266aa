"""The visits of a run over axes in a file: read earlier visits, and append each new visit."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic

from convtime.core.errors import InputError
from convtime.core.files import check_writable, is_run_file
from convtime.sweeps import files as sweeps
from convtime.sweeps.plan import Plan, Point


@dataclasses.dataclass(frozen=True)
class Journal(Generic[Point]):
    """Visits in memory and, optionally, in a file.

    Attributes:
        plan: plan of the run; a resumed run keeps its original seed.
        visits: all visits so far, in order.
        append: writes a line to the file.
    """

    plan: Plan[Point]
    visits: list[Point] = dataclasses.field(default_factory=list)
    append: Callable[[str], None] | None = None

    def add(self, visit: Point) -> None:
        """Add a visit, and write it to disk before returning."""
        if self.append is not None:
            self.append(sweeps.visit_line(visit))
        self.visits.append(visit)


def _append(path: Path, file: int, line: str) -> None:
    rest = line.encode()
    before = os.fstat(file).st_size
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    except OSError as error:
        with contextlib.suppress(OSError):  # a file with a partial first line is not resumed
            os.truncate(file, before)
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); it contains the earlier visits, and "
            "running the same again resumes there"
        ) from error


@contextlib.contextmanager
def opened(path: Path | None, plan: Plan[Point], *, seed_given: bool) -> Iterator[Journal[Point]]:
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
    with contextlib.ExitStack() as stack:
        file = _open(path)
        stack.callback(os.close, file)
        _lock(path, file)
        append = functools.partial(_append, path, file)
        if os.fstat(file).st_size == 0:
            append(sweeps.first_line(plan))
        before = _read(path)
        if not seed_given:
            plan = dataclasses.replace(plan, seed=before.plan.seed)
        _refuse_another(path, before.plan, plan)
        # A partial line from an interrupted process would corrupt the next line.
        os.truncate(file, before.length)
        yield Journal(plan, list(before.visits), append)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error


def _lock(path: Path, file: int) -> None:
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


def _read(path: Path) -> sweeps.RunFile:
    try:
        with path.open("rb") as file:
            if not is_run_file(file.peek()):
                raise InputError(
                    f"{path}: is not the file of a sweep or comparison (unchanged); use another "
                    "file"
                )
            return sweeps.read(file, str(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read as the file of a run ({error})") from error


def _refuse_another(path: Path, before: Plan[Any], now: Plan[Any]) -> None:
    found = "; ".join(_differences(before, now))
    if found:
        raise InputError(
            f"{path}: belongs to a different run: {found}; use another file, or delete this one"
        )


def _differences(before: Plan[Any], now: Plan[Any]) -> Iterator[str]:
    if type(before) is not type(now):
        yield f"{type(before).__name__} in the file, {type(now).__name__} here"
        return
    yield from _of_mapping("application", before.applications, now.applications)
    yield from _of_mapping("axis", before.axes, now.axes)
    if tuple(before.axes) != tuple(now.axes) and set(before.axes) == set(now.axes):
        yield f"axes in the order {', '.join(before.axes)} in the file, {', '.join(now.axes)} here"
    yield from _of_mapping("option", before.options, now.options)
    for what in (field.name for field in dataclasses.fields(now)):
        there, here = getattr(before, what), getattr(now, what)
        if there != here and not isinstance(here, Mapping):
            yield f"{what} {_told(there)} in the file, {_told(here)} here"
    yield from _of_mapping("machine's", before.machine, now.machine)


def _of_mapping(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys((*before, *now)):
        if name not in now:
            yield f"{what} {name} is only in the file"
        elif name not in before:
            yield f"{what} {name} is not in the file"
        elif not _alike(before[name], now[name]):
            yield f"{what} {name} is {_told(before[name])} in the file, {_told(now[name])} here"


def _alike(before: Any, now: Any) -> bool:
    """Return whether values have equal type and value: warm-up 1 (a call) differs from 1.0 (s)."""
    if isinstance(before, tuple) and isinstance(now, tuple):
        return len(before) == len(now) and all(map(_alike, before, now))
    if isinstance(before, int | float) and type(before) is not type(now):
        return False
    return bool(before == now)


def _told(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
