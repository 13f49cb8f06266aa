"""What was seen of an operation in order to diagnose it: numbers, and no judgement."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

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
        load: of a machine without a GPU, its load average for each CPU; None with one.
    """

    spin_expected: float = 0.0
    spin: float = 0.0
    copied_bytes_per_second: float = 0.0
    highest_bytes_per_second: float | None = None
    other_processes: int | None = None
    load: float | None = None


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
