"""Which region work belongs to, by when and on which thread it was issued."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Mapping

from convtime.timing.regions import OpenEntry, ThreadLog

#: A thread, and when it issued something.
Issue = tuple[int, int]


class Ownership:
    """Finds the region that work was issued in.

    That is the innermost one that the issuing thread was in. A thread that has no regions works for
    the thread that was in one meanwhile: autograd's, which runs backward passes for whoever waits
    for them, and others unless they also issue work while nobody is in a region, and so on their
    own account.

    Attributes:
        ambiguous: how many issues of such threads there were while several others were in regions.

    Args:
        logs: of the threads that have regions.
        autograd: the numbers of autograd's threads.
        issues: all that there were.
    """

    def __init__(
        self,
        logs: Mapping[int, ThreadLog],
        autograd: Collection[int],
        issues: Iterable[Issue],
    ) -> None:
        self.ambiguous = 0
        self._logs = logs
        self._autograd = autograd
        self._own_account = {
            thread
            for thread, time in issues
            if thread not in autograd and (thread in logs or not self._entered_by_others(time))
        }

    def owner(self, thread: int, time: int) -> OpenEntry | None:
        """The entry that work belongs to; None for none."""
        own = _innermost(self._logs[thread], time) if thread in self._logs else None
        return own or self._employer(thread, time)

    def around(self, entry: OpenEntry) -> OpenEntry | None:
        """The entry that another one lies in; None for none."""
        if entry.parent is not None or entry.log.thread not in self._autograd:
            return entry.parent
        found = self._entered_by_others(entry.start)
        return found[0] if len(found) == 1 else None

    def _employer(self, thread: int, time: int) -> OpenEntry | None:
        if thread in self._own_account:
            return None
        found = self._entered_by_others(time)
        if len(found) > 1:
            self.ambiguous += 1
        return found[0] if len(found) == 1 else None

    def _entered_by_others(self, time: int) -> list[OpenEntry]:
        """The innermost entry of each thread that was in a region, autograd's left out."""
        found = (
            _innermost(log, time)
            for thread, log in self._logs.items()
            if thread not in self._autograd
        )
        return [entry for entry in found if entry is not None]


def _innermost(log: ThreadLog, time: int) -> OpenEntry | None:
    place = bisect.bisect_right(log.times, time)
    return log.innermost[place - 1] if place else None
