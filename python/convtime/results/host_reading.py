"""What the operating system did to calls on the CPU, and for them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class HostReading:
    """Of some consecutive samples, in all; None for what this system does not tell.

    Where a call is long, a reading is of one sample, and of the call alone. Short calls share a
    reading with those before and after, and with what happened between them. Of one that several
    candidates share, each has the share of its time, and so parts of what is counted. The last
    four come from the CPU's performance counters (Linux perf). They cover user space and all
    threads of this process, and are None for a reading that includes other calls.

    Attributes:
        samples: how many samples it is of.
        seconds: from the first reading to the second.
        cpu_seconds: that all threads of this process computed in it. The kernel accounts for other
            threads than the calling one at its ticks, some milliseconds apart, so that this is
            right on average over readings.
        waiting_seconds: that threads which could run waited for a core, all of them added up.
        longest_wait_seconds: likewise, of the thread that waited longest.
        voluntary_switches: how often a thread gave up its core, to sleep or to wait for something.
        involuntary_switches: how often one had to.
        minor_faults: pages that were touched for the first time, or mapped anew.
        major_faults: pages that were read from a disk.
        migrations: how often the calling thread was found on another core than before.
        threads: threads of this process that computed in it, or some milliseconds before.
        throttled_seconds: that a cgroup's quota kept this process from running.
        others_seconds: that other processes computed, on all cores that this one may use.
        stolen_seconds: that the hypervisor kept these cores from running, likewise.
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
