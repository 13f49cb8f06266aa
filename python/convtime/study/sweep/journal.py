"""The visits of a sweep, in a file: those of before are read, and each is written as it is made."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from convtime.core.errors import InputError
from convtime.core.files import check_writable, write_file
from convtime.results.exchange import sweeps
from convtime.results.sweep_plan import SweepPlan, SweepPoint


class Journal:
    """What was visited, in memory and in a file where there is one.

    Attributes:
        plan: of the sweep; of one that goes on, with the seed that it began with.
        visits: all so far, in the order in which they were made.
    """

    def __init__(self, plan: SweepPlan, visits: list[SweepPoint], file: _File | None) -> None:
        self.plan = plan
        self.visits = visits
        self._file = file

    def add(self, visit: SweepPoint) -> None:
        """Keeps a visit; it is on the disk when this returns."""
        if self._file is not None:
            self._file.append(sweeps.visit_line(visit))
        self.visits.append(visit)


@dataclasses.dataclass(frozen=True)
class _File:
    path: Path
    descriptor: int

    def append(self, line: str) -> None:
        rest = line.encode()
        try:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
            os.fsync(self.descriptor)
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be written ({error.strerror}); what was measured before is "
                "in it, and the same sweep goes on from there"
            ) from error


@contextlib.contextmanager
def opened(path: Path | None, plan: SweepPlan, *, seed_given: bool) -> Iterator[Journal]:
    """The visits of a sweep, to be added to.

    Args:
        path: the file, which is made where there is none; None to keep visits in memory alone.
        plan: what the sweep is to be of.
        seed_given: whether the order must be that of the plan's seed, or may be the file's.

    Raises:
        InputError: for a file that is no sweep's, of another plan, used by another process, or that
            cannot be read or written.
    """
    if path is None:
        yield Journal(plan, [], None)
        return
    check_writable(path)
    if not path.exists() or path.stat().st_size == 0:
        write_file(path, sweeps.first_line(plan))
    with contextlib.ExitStack() as stack:
        file = _File(path, _open(path))
        stack.callback(os.close, file.descriptor)
        _lock(file)
        before = _read(path)
        if not seed_given:
            plan = dataclasses.replace(plan, seed=before.plan.seed)
        _refuse_another(path, before.plan, plan)
        # A line that was being written when the process ended would spoil the next one.
        os.truncate(file.descriptor, before.length)
        yield Journal(plan, list(before.visits), file)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error


def _lock(file: _File) -> None:
    """Keeps others out; the system lets go of the lock when the process ends."""
    try:
        fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            f"{file.path}: another sweep is being written to it; wait for it, or name another file"
        ) from error
    except OSError as error:
        raise InputError(
            f"{file.path}: cannot be locked ({error.strerror}); name a file on a local disk"
        ) from error


def _read(path: Path) -> sweeps.SweepFile:
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as the file of a sweep ({error})") from error
    if not sweeps.is_one(content):
        raise InputError(f"{path}: is not the file of a sweep, and stays as it is; name another")
    return sweeps.read(content, str(path))


def _refuse_another(path: Path, before: SweepPlan, now: SweepPlan) -> None:
    found = list(_differences(before, now))
    if found:
        raise InputError(
            f"{path}: is of another sweep: {'; '.join(found)}; name another file, or delete it"
        )


def _differences(before: SweepPlan, now: SweepPlan) -> Iterator[str]:
    yield from _of_mapping("application", before.applications, now.applications)
    yield from _of_mapping("axis", before.axes, now.axes)
    if tuple(before.axes) != tuple(now.axes) and set(before.axes) == set(now.axes):
        yield f"axes in the order {', '.join(before.axes)} there, {', '.join(now.axes)} here"
    yield from _of_mapping("option", before.options, now.options)
    for what in ("counters", "rest", "seed"):
        there, here = getattr(before, what), getattr(now, what)
        if there != here:
            yield f"{what} {_told(there)} there, {_told(here)} here"
    yield from _of_mapping("machine's", before.machine, now.machine)


def _of_mapping(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys((*before, *now)):
        if name not in now:
            yield f"{what} {name} is there, and not here"
        elif name not in before:
            yield f"{what} {name} is here, and not there"
        elif not _alike(before[name], now[name]):
            yield f"{what} {name} is {_told(before[name])} there, {_told(now[name])} here"


def _alike(before: Any, now: Any) -> bool:
    """Whether values are the same, and not just equal, as one call and 1.0 s of warm-up are."""
    if isinstance(before, tuple) and isinstance(now, tuple):
        return len(before) == len(now) and all(map(_alike, before, now))
    if isinstance(before, int | float) and type(before) is not type(now):
        return False
    return bool(before == now)


def _told(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
