"""Effects of the operating system on calls on the CPU, and the groups that they form."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

# Criteria for samples that form two groups.
_FEWEST_OF_GROUPS = 20
_SHARE_OF_GROUP = 0.2
_GAP_OF_GROUPS = 0.2


@dataclasses.dataclass(frozen=True)
class HostReading:
    """Totals over some consecutive samples; None for values that this system does not report.

    A reading of a long call covers one sample, and only the call. Short calls share a reading with
    the calls before and after, and with everything between them. If several candidates share a
    reading, each gets a share in proportion to its time, so counts can be fractions. The
    last four come from the CPU's performance counters (Linux perf). They cover user space and all
    threads of this process, and are None for a reading that includes other calls.

    Attributes:
        samples: number of samples that it covers.
        seconds: time from its start to its end.
        cpu_seconds: CPU time of all threads of this process. The kernel accounts for threads other
            than the calling one at its ticks, some milliseconds apart. The value is therefore
            correct only on average over readings.
        waiting_seconds: time for which runnable threads waited for a core, summed over threads.
        longest_wait_seconds: the same for the thread that waited longest.
        voluntary_switches: how often a thread gave up its core, to sleep or to wait for something.
        involuntary_switches: how often a thread was preempted.
        minor_faults: number of pages that were touched for the first time, or mapped anew.
        major_faults: number of pages that were read from a disk.
        migrations: how often the calling thread was found on another core than before.
        threads: count of threads of this process that computed in it, or some milliseconds before.
        throttled_seconds: time for which a cgroup's quota stopped this process.
        others_seconds: CPU time of other processes, on all cores that this process may use.
        stolen_seconds: time for which the hypervisor kept these cores from running.
        instructions: executed instructions.
        cycles: clock cycles of the cores.
        cache_misses: misses of the last-level cache.
        tlb_misses: misses of loads in the data TLB.
    """

    samples: int
    seconds: float
    cpu_seconds: float
    waiting_seconds: float | None = None
    longest_wait_seconds: float | None = None
    voluntary_switches: float = 0.0
    involuntary_switches: float = 0.0
    minor_faults: float = 0.0
    major_faults: float = 0.0
    migrations: int = 0
    threads: float | None = None
    throttled_seconds: float | None = None
    others_seconds: float | None = None
    stolen_seconds: float | None = None
    instructions: float | None = None
    cycles: float | None = None
    cache_misses: float | None = None
    tlb_misses: float | None = None


def two_groups(seconds: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Return shares and medians of the two groups that samples form; usually empty."""
    if len(seconds) < _FEWEST_OF_GROUPS:
        return ()
    ordered = sorted(seconds)
    fewest = math.ceil(_SHARE_OF_GROUP * len(ordered))
    split = max(
        range(fewest, len(ordered) - fewest + 1),
        key=lambda index: ordered[index] - ordered[index - 1],
    )
    if ordered[split] - ordered[split - 1] < _GAP_OF_GROUPS * ordered[split - 1]:
        return ()
    return tuple(
        (len(group) / len(ordered), statistics.median(group))
        for group in (ordered[:split], ordered[split:])
    )
