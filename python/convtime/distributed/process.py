"""A process of a group, as the others know it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Process:
    """Identity of a process.

    Attributes:
        host: name of its machine.
        pid: process id.
        started: start time, in ticks since the machine booted: a process id can be reused.
        pids: identifies the machine and the namespace of process ids.
        clock: identifies the monotonic clock that its timestamps are read from.
    """

    host: str
    pid: int
    started: int
    pids: str
    clock: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def state(self) -> str:
        """Return whether it is ``alive``, ``stopped`` or ``ended``; ``unknown`` elsewhere."""
        if self.pids != this_process().pids:
            return "unknown"
        found = _stat(self.pid)
        if found is None or found[0] in ("Z", "X") or found[1] != self.started:
            return "ended"
        return "stopped" if found[0] in ("T", "t") else "alive"


def this_process() -> Process:
    """Return the identity of this process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    _, started = _stat(os.getpid()) or ("", 0)
    return Process(
        host=socket.gethostname(),
        pid=os.getpid(),
        started=started,
        pids=f"{boot} {_namespace('pid')}",
        clock=f"{boot} {_namespace('time')}",
    )


def _namespace(kind: str) -> str:
    with contextlib.suppress(OSError):  # an older Linux, with one namespace for all
        return os.readlink(f"/proc/self/ns/{kind}")
    return ""


def _stat(pid: int) -> tuple[str, int] | None:
    """Return state and start time of a process; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before may contain anything
    return fields[0], int(fields[19])
