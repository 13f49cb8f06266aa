"""One run of a suite in a history, and its file.

A file is written once, under a name that no other writer chooses, and never changed. Writers
therefore need no lock, and branches merge in git without a conflict.
"""

from __future__ import annotations

import dataclasses
import math
import os
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path

from convtime.core import codec
from convtime.core.checks import require
from convtime.core.errors import InputError, shown, why
from convtime.core.files import check_writable, write_file
from convtime.regression.differences import git_of, on_host
from convtime.timing.measurement import CONDITIONS, Measurement

#: Properties of the machine and its software that a run keeps, in the order of their importance.
_MACHINE = ("gpu", "cpu", "driver", "cuda", "cudnn", "torch", "convtime", "threads")
_DIGITS = 7  # of a stored time


@dataclasses.dataclass(frozen=True)
class Kind:
    """What makes times comparable.

    Attributes:
        hardware: name of the GPU or CPU.
        conditions: the conditions of the timing, in words.
    """

    hardware: str
    conditions: str


#: Name, median, interval's ends (None if unknown) and index of the kind.
Row = tuple[str, float, float | None, float | None, int]


@dataclasses.dataclass(frozen=True)
class HistoryRun(codec.Stored):
    """The times of one run.

    Attributes:
        date: when it ran, in ISO 8601.
        commit: the code's commit; empty if unknown.
        dirty: whether the code had uncommitted changes; None if unknown.
        tool: the tool that measured it.
        machine: properties of the machine and its software.
        kinds: the kinds of times in it.
        times: the times, in seconds.
        file: the file that it was read from, relative to the history's folder.
    """

    date: str
    commit: str
    dirty: bool | None
    tool: str
    machine: Mapping[str, str]
    kinds: tuple[Kind, ...]
    times: tuple[Row, ...]
    file: str = ""

    def __post_init__(self) -> None:
        try:
            moment(self.date)
        except ValueError as error:
            raise InputError(f"its date must be in ISO 8601, got {shown(self.date)}") from error
        for name, *_, kind in self.times:
            require(
                0 <= kind < len(self.kinds), f"its time of {name!r} has the unknown kind {kind}"
            )

    @property
    def label(self) -> str:
        """The commit in short, or the date if it is unknown; with a + for uncommitted changes."""
        return (self.commit[:12] or self.version) + ("+" if self.dirty else "")

    @property
    def version(self) -> str:
        """What identifies the code: the commit, or the date if it is unknown."""
        return self.commit or self.date[:19]

    @property
    def seconds_since_1970(self) -> float:
        """The date as a number."""
        return moment(self.date).timestamp()


def moment(date: str) -> datetime:
    """Parse a date in ISO 8601; one without a time zone is in UTC.

    Raises:
        ValueError: it is no such date.
    """
    parsed = datetime.fromisoformat(date.replace("Z", "+00:00"))
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)


def run_of(measurements: Mapping[str, Measurement]) -> HistoryRun:
    """Return the run that gave some measurements; there must be at least one."""
    first = next(iter(measurements.values()))
    provenance, git = first.provenance, git_of(first)
    return make_run(
        date=str(provenance.get("date") or ""),
        commit=str(git.get("commit") or ""),
        dirty=git.get("dirty"),
        tool=str(provenance.get("tool", "convtime")),
        machine={what: provenance.get(what) for what in _MACHINE},
        times=(
            ((name, measured.median, *measured.median_interval), _kind_of(measured))
            for name, measured in measurements.items()
        ),
    )


def make_run(
    *,
    date: str,
    commit: str,
    dirty: bool | None,
    tool: str,
    machine: Mapping[str, object],
    times: Iterable[tuple[tuple[str, float, float, float], Kind]],
) -> HistoryRun:
    """Build a run.

    Args:
        date: when it ran, in ISO 8601.
        commit: the code's commit; empty if unknown.
        dirty: whether the code had uncommitted changes.
        tool: the tool that measured it.
        machine: properties of the machine; unknown ones are None.
        times: name, median and interval of each time, with its kind.
    """
    kinds: dict[Kind, int] = {}
    rows = tuple(
        (name, _rounded(median), _known(low), _known(high), kinds.setdefault(kind, len(kinds)))
        for (name, median, low, high), kind in times
    )
    known = {what: str(value) for what, value in machine.items() if value is not None}
    return HistoryRun(date, commit, dirty, tool, known, tuple(kinds), rows)


def _kind_of(measured: Measurement) -> Kind:
    gpu, cpu = (str(measured.provenance.get(what) or "unknown") for what in ("gpu", "cpu"))
    if measured.device == "cpu":
        hardware = cpu
    else:
        hardware = f"{gpu} with {cpu}" if on_host(measured) else gpu
    used = ((what, getattr(measured, what).used) for what in CONDITIONS if what != "queue")
    return Kind(hardware, ", ".join(f"{what} {value}" for what, value in used))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _known(value: float) -> float | None:
    return _rounded(value) if math.isfinite(value) else None


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Create the folder if it is missing, and check that a run can be written there.

    Raises:
        InputError: it cannot be created or written.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: is not a folder for a history ({why(error)})") from error
    check_writable(Path(folder) / _new_name("check", ""))


def append_run(folder: str | os.PathLike[str], measurements: Mapping[str, Measurement]) -> Path:
    """Add a run to a history, and return its file.

    Args:
        folder: the history's folder.
        measurements: at least one measurement, by name.

    Raises:
        InputError: the file cannot be written.
    """
    run = run_of(measurements)
    path = Path(folder) / _new_name(f"{moment(run.date):%Y%m%dT%H%M%SZ}", run.commit)
    fields = {name: value for name, value in run.to_dict().items() if name != "file"}
    write_file(path, codec.to_json(fields))
    return path


def _new_name(start: str, commit: str) -> str:
    return "-".join(filter(None, (start, commit[:8], secrets.token_hex(4)))) + ".json"
