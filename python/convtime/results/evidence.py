"""What was seen of an operation in order to diagnose it: numbers, and no judgement."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from convtime.results.measurement import Measurement

#: A quartile distance of normally distributed numbers, in standard deviations.
_QUARTILES_APART = 1.349


@dataclasses.dataclass(frozen=True)
class Timing:
    """The times that an operation takes under one condition, in seconds.

    Attributes:
        median: of the samples.
        low: lower end of the median's 95 % interval; None where there is none.
        high: its upper end, likewise.
        spread: the quartiles' distance over the median.
        count: of the samples.
        clock_hz: the median rate of the GPU's multiprocessor clock; None where it is not known.
    """

    median: float
    low: float | None = None
    high: float | None = None
    spread: float = 0.0
    count: int = 1
    clock_hz: float | None = None

    @classmethod
    def of(cls, measured: Measurement) -> Timing:
        """What a measurement says."""
        low, high = measured.median_interval
        clocks_hz = sorted(hz for hz in measured.sm_clocks_hz if hz is not None)
        return cls(
            median=measured.median,
            low=low if math.isfinite(low) else None,
            high=high if math.isfinite(high) else None,
            spread=measured.iqr / measured.median if measured.median > 0 else 0.0,
            count=len(measured.seconds),
            clock_hz=clocks_hz[len(clocks_hz) // 2] if clocks_hz else None,
        )

    @classmethod
    def joined(cls, parts: Sequence[Timing]) -> Timing:
        """Of several timings under one condition; the interval holds all of theirs."""
        lows, highs = [each.low for each in parts], [each.high for each in parts]
        return cls(
            median=statistics.median(each.median for each in parts),
            low=None if None in lows else min(low for low in lows if low is not None),
            high=None if None in highs else max(high for high in highs if high is not None),
            spread=max(each.spread for each in parts),
            count=sum(each.count for each in parts),
        )

    @property
    def cycles(self) -> float | None:
        """The median in cycles of the clock; None where that is not known."""
        return None if self.clock_hz is None else self.median * self.clock_hz

    @property
    def deviation(self) -> float:
        """The samples' standard deviation over their median, as their quartiles have it."""
        return self.spread / _QUARTILES_APART

    def surely_above(self, other: Timing) -> bool:
        """Whether the two intervals, which both must have, do not meet."""
        return self.low is not None and other.high is not None and self.low > other.high


@dataclasses.dataclass(frozen=True)
class Calls:
    """An operation as a program calls it, by the host's clock; seconds of a call.

    Attributes:
        first: of the first calls of all, each until its work was done.
        loop: in a loop that waits at its end alone.
        waiting: in a loop that waits after each call.
        issuing: what a call takes to return while the device is idle.
        mean: of the loop's samples.
        fewest: of the loop's samples, the smallest.
        running: the share of the loop's time in which this process ran on a CPU, or waited for one
            to run on; added up over its threads.
        allocations: blocks that PyTorch's allocator asked CUDA for.
        frees: blocks that it gave back to CUDA.
    """

    first: tuple[float, ...]
    loop: Timing
    waiting: Timing
    issuing: float
    mean: float
    fewest: float
    running: float = 1.0
    allocations: float = 0.0
    frees: float = 0.0


@dataclasses.dataclass(frozen=True)
class Work:
    """What the device does in a call, by the method that ``method="auto"`` takes; seconds.

    Attributes:
        seconds: in which at least one kernel, copy or memset ran; of the host's time on a CPU.
        span: from the first start to the last end, while the queue was held.
        mean: of the samples that ``seconds`` is the median of.
        fewest: of these, the smallest.
        kernels: how many.
        copies: how many.
        copied_bytes: by these copies.
        conversion: of ``seconds``, what converts between layouts, by the kernels' names.
        held: whether the queue could be held until calls were issued; None on a CPU.
        other_launches: kernels, copies and memsets that other threads gave the GPU, for each call.
        place_share: the share of the samples' variance that is between places; None where unknown.
        place_spread: what the medians of the places are apart, from the tenth to the last but a
            tenth, over the median; None where there are too few.
        highest_clock_hz: that the GPU can have; None on a CPU.
        tensor_bytes: of the numbers in its tensors; 0 where not all of them are known.
        remarkable_inputs: tensors that are constant, or largely NaN or denormal.
        mapped_bytes: of its GPU's tensors, what lies in the host's memory.
    """

    seconds: float
    span: float
    mean: float
    fewest: float
    kernels: int = 0
    copies: int = 0
    copied_bytes: int = 0
    conversion: float = 0.0
    held: bool | None = None
    other_launches: float = 0.0
    place_share: float | None = None
    place_spread: float | None = None
    highest_clock_hz: float | None = None
    tensor_bytes: int = 0
    remarkable_inputs: int = 0
    mapped_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Trace:
    """A few calls as torch.profiler saw them; numbers and seconds for each call.

    Attributes:
        calls: how many were traced.
        busy: seconds in which the device did anything.
        kernels: in which a kernel ran.
        copies: in which a copy between host and device ran.
        hidden_copies: of these, in which a kernel ran, too.
        pageable: seconds of copies from or to pageable memory.
        pinned: of copies from or to pinned memory.
        launches: kernels, copies, memsets and graphs that the host launched.
        waits: times that the host waited for the device.
        waiting: seconds in which it did.
        allocations: times that it asked CUDA for memory, or gave some back.
        allocating: seconds in which it did.
        copying: seconds that it spent in calls that copy.
        issuing: seconds of the host, less these three.
    """

    calls: int
    busy: float
    kernels: float
    copies: float
    hidden_copies: float
    pageable: float
    pinned: float
    launches: float
    waits: float
    waiting: float
    allocations: float
    allocating: float
    copying: float
    issuing: float


@dataclasses.dataclass(frozen=True)
class Serialised:
    """Results of calls that wait after each operation, and of calls as they are.

    Attributes:
        repeats: whether the former give the same result each time.
        calls: how many calls were made as they are, on memory that holds other numbers than before.
        differing: how many of these gave another result.
        largest_error: of any number; None where none differs by a number.
    """

    repeats: bool
    calls: int
    differing: int
    largest_error: float | None = None


@dataclasses.dataclass(frozen=True)
class Held:
    """One call that was issued after a kernel that kept the stream busy.

    Attributes:
        held: seconds for which the kernel kept it.
        returned: seconds after which the call returned.
    """

    held: float
    returned: float


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """What work of known duration took here, which shows others that use the GPU.

    Attributes:
        spin_expected: seconds of kernels of one thread, by its own clock.
        spin: what they took on the stream, back to back.
        copied_bytes_per_second: that a large copy reached, read and written.
        highest_bytes_per_second: that the memory can have, by its clock and width; None where the
            driver does not say.
        other_processes: that compute on the GPU, as far as NVML knows; None where it does not.
    """

    spin_expected: float = 0.0
    spin: float = 0.0
    copied_bytes_per_second: float = 0.0
    highest_bytes_per_second: float | None = None
    other_processes: int | None = None


@dataclasses.dataclass(frozen=True)
class Waits:
    """How often the calling thread was found to do what, while it made calls.

    Attributes:
        seconds: of a call, by one of PyTorch's threads.
        looks: at it, in all.
        ready: it ran, or waited for a core.
        sleeping: it slept until some time.
        files: it waited for a file, a pipe or a socket.
        pages: it waited for a page that is read from a disk.
        processes: it waited for another process to start or to end.
        locks: it waited for a lock, while no other thread of its process was ready to run.
        other_threads: likewise, while another one was: that of PyTorch's pool, say.
        elsewhere: it waited for something else.
    """

    seconds: float
    looks: int
    ready: int
    sleeping: int = 0
    files: int = 0
    pages: int = 0
    processes: int = 0
    locks: int = 0
    other_threads: int = 0
    elsewhere: int = 0

    def share(self, *names: str) -> float:
        """Of all looks, those of these fields."""
        return sum(getattr(self, name) for name in names) / self.looks if self.looks else 0.0


@dataclasses.dataclass(frozen=True)
class Host:
    """What the operating system did to calls on a CPU, in a loop; None for what it does not tell.

    Seconds and numbers are those of one call, on average.

    Attributes:
        seconds: of a call.
        cpu: that all threads of the process computed.
        kernel: of ``cpu``, what the system's kernel took.
        waiting: that threads which could run waited for a core, added up.
        longest_wait: likewise, of the thread that waited longest.
        threads: that computed.
        cores: that the process may run on.
        others: cores that other processes used meanwhile.
        background: cores that this process used while its calling thread slept.
        throttled: seconds that a cgroup's quota kept the process from running.
        stolen: seconds that the hypervisor kept cores from running.
        minor_faults: pages that were touched for the first time.
        major_faults: pages that were read from a disk.
        fault_seconds: what one minor fault takes here.
        waits: what the calling thread was found to do.
        rested_hz: the clock of the calling thread's core after a rest.
        loaded_hz: likewise, right after calls.
        remote_share: of the tensors' pages, those on another NUMA node than the calling thread;
            None on machines with one.
        missing: what could not be seen, and why; empty where all was.
    """

    seconds: float
    cpu: float
    kernel: float
    cores: float
    waiting: float | None = None
    longest_wait: float | None = None
    threads: float | None = None
    others: float | None = None
    background: float = 0.0
    throttled: float | None = None
    stolen: float | None = None
    minor_faults: float = 0.0
    major_faults: float = 0.0
    fault_seconds: float = 0.0
    waits: Waits | None = None
    rested_hz: float | None = None
    loaded_hz: float | None = None
    remote_share: float | None = None
    missing: str = ""


@dataclasses.dataclass(frozen=True)
class Operators:
    """PyTorch's operators in a call on a CPU; numbers and seconds of one call.

    Attributes:
        count: how many are called, those inside of others included.
        outermost: how many of them are inside of no other.
        seconds: in these.
        dispatching: in all operators, of each no more than ``smallest``.
        loop: what the call took in the loop in which they were clocked.
        smallest: what PyTorch's smallest operator takes, most of which is dispatching.
    """

    count: float
    outermost: float
    seconds: float
    dispatching: float
    loop: float
    smallest: float


@dataclasses.dataclass(frozen=True)
class Evidence:
    """All that was seen; what was not looked at is None, or not among the contrasts.

    Attributes:
        on_gpu: whether the work runs on a GPU.
        calls: as a program makes them.
        work: what the device does.
        contrasts: by what is varied, and then by the condition, the times.
        trace: a few calls as torch.profiler saw them.
        serialised: results with and without waiting after each operation.
        held: a call after a kernel that keeps the stream busy.
        neighbours: known work, which shows others.
        smallest_launch: seconds that the host takes to issue PyTorch's smallest operation.
        event_cost: seconds that a pair of events adds to one kernel; None where it is not known.
        counters: hardware counters of a call by metric; empty where they may not be read.
        host: what the operating system did, for work on a CPU.
        operators: where a call on a CPU is inside of PyTorch.
    """

    on_gpu: bool
    calls: Calls
    work: Work
    contrasts: Mapping[str, Mapping[str, Timing]] = dataclasses.field(default_factory=dict)
    trace: Trace | None = None
    serialised: Serialised | None = None
    held: Held | None = None
    neighbours: Neighbours | None = None
    smallest_launch: float | None = None
    event_cost: float | None = None
    counters: Mapping[str, float] = dataclasses.field(default_factory=dict)
    host: Host | None = None
    operators: Operators | None = None

    def with_contrast(self, name: str, times: Mapping[str, Timing]) -> Evidence:
        """The same, with the times under the conditions of one contrast."""
        return dataclasses.replace(self, contrasts={**self.contrasts, name: dict(times)})

    def timing(self, contrast: str, condition: str) -> Timing | None:
        """The times under a condition; None where it was not looked at."""
        return self.contrasts.get(contrast, {}).get(condition)

    def seconds(self, contrast: str, condition: str) -> float | None:
        """The median of :meth:`timing`."""
        found = self.timing(contrast, condition)
        return None if found is None else found.median

    def without_counters(self) -> Evidence:
        """The same, as where counters may not be read."""
        return dataclasses.replace(self, counters={})
