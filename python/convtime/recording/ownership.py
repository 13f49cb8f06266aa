"""Assign work to regions, by the thread and time at which it was issued."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence

from convtime.recording.region import OpenEntry, ThreadLog

#: A thread, and the time at which it issued work.
Issue = tuple[int, int]


class Ownership:
    """Finds the region that work was issued in.

    This is the innermost region of the issuing thread, or of the asynchronous task that it ran. A
    thread without regions works for threads or tasks that were in a region at that time. Autograd's
    threads run backward passes for the thread or task that waits for them. Other threads work for
    others unless they also issue work while no thread is in a region: then they work independently.

    Attributes:
        ambiguous: number of issues that may belong to several regions.

    Args:
        logs: logs of the threads that have regions.
        entries: entries into regions.
        autograd: numbers of autograd's threads.
        issues: all issues.
    """

    def __init__(
        self,
        logs: Mapping[int, ThreadLog],
        entries: Sequence[OpenEntry],
        autograd: Collection[int],
        issues: Iterable[Issue],
    ) -> None:
        self.ambiguous = 0
        self._logs = logs
        self._autograd = autograd
        self._open = _OpenEntries(
            entry for entry in entries if entry.log.thread not in self._autograd
        )
        self._unsure = {
            thread: _OpenEntries(entry for entry in entries if entry.log is log)
            for thread, log in logs.items()
            if log.missed_switch
        }
        self._own_account = {
            thread
            for thread, time in issues
            if thread not in autograd and (thread in logs or not self._open.innermost(time))
        }

    def owner(self, thread: int, time: int) -> OpenEntry | None:
        """Return the entry that work belongs to, or None."""
        found = self._of_thread(thread, time)
        if not found and thread not in self._own_account:
            found = self._of_others(thread, time)
        if len(found) > 1:
            self.ambiguous += 1
        return found[0] if len(found) == 1 else None

    def around(self, entry: OpenEntry) -> OpenEntry | None:
        """Return the enclosing entry of an entry, or None."""
        if entry.parent is not None or entry.log.thread not in self._autograd:
            return entry.parent
        found = self._of_others(entry.log.thread, entry.start)
        return found[0] if len(found) == 1 else None

    def _of_thread(self, thread: int, time: int) -> Sequence[OpenEntry]:
        """Return the entry that a thread was in, or all candidates if it is not certain."""
        if thread in self._unsure:
            return self._unsure[thread].innermost(time)
        if thread not in self._logs:
            return ()
        found = _innermost(self._logs[thread], time)
        return () if found is None else (found,)

    def _of_others(self, thread: int, time: int) -> Sequence[OpenEntry]:
        """Return the entries that a thread without regions may have worked for."""
        if thread in self._autograd:
            # A thread that waits for it has not switched to another task.
            others = (each for each in self._logs if each not in self._autograd)
            if found := [entry for each in others for entry in self._of_thread(each, time)]:
                return found
        return self._open.innermost(time)


class _OpenEntries:
    """Entries that were open at a given time, in threads and in waiting tasks.

    Args:
        entries: all entries, in order of entry.
    """

    def __init__(self, entries: Iterable[OpenEntry]) -> None:
        # A profiler that starts during the recording can set the recording's clock back. The times
        # of an entry that seems to end before it begins are then meaningless.
        entries = [entry for entry in entries if not 0 <= entry.end < entry.start]
        changes = [(entry.start, entry, 1) for entry in entries]
        changes += [(entry.end, entry, -1) for entry in entries if entry.end >= 0]
        changes.sort(key=lambda change: change[0])
        self._times = [time for time, _, _ in changes]
        self._innermost: list[tuple[OpenEntry, ...]] = []
        inside: dict[OpenEntry, int] = {}  # number of open entries directly inside each open entry
        for _, entry, change in changes:
            if change > 0:
                inside[entry] = 0
            else:
                del inside[entry]
            if entry.parent in inside:
                inside[entry.parent] += change
            self._innermost.append(tuple(each for each, count in inside.items() if not count))

    def innermost(self, time: int) -> tuple[OpenEntry, ...]:
        """Return the open entries that contain no open entry."""
        place = bisect.bisect_right(self._times, time)
        return self._innermost[place - 1] if place else ()


def _innermost(log: ThreadLog, time: int) -> OpenEntry | None:
    place = bisect.bisect_right(log.times, time)
    entry = log.innermost[place - 1] if place else None
    return None if entry is None else entry.open_at(time)
