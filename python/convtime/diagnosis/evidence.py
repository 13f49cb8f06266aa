"""Measured values behind a diagnosis, without any judgment."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from convtime.timing.measurement import Measurement

#: Interquartile range of a normal distribution, in standard deviations.
_QUARTILES_APART = 1.349


@dataclasses.dataclass(frozen=True)
class Timing:
    """The times of an operation under one condition, in seconds.

    Attributes:
        median: median of the samples.
        low: lower end of the median's 95 % interval; None if there is none.
        high: upper end of that interval; None if there is none.
        spread: interquartile range over the median.
        count: number of samples.
        clock_hz: median SM clock of the GPU; None if it is unknown.
    """

    median: float
    low: float | None = None
    high: float | None = None
    spread: float = 0.0
    count: int = 1
    clock_hz: float | None = None

    @classmethod
    def of(cls, measured: Measurement) -> Timing:
        """Summarize a measurement."""
        low, high = measured.median_interval
        return cls(
            median=measured.median,
            low=low if math.isfinite(low) else None,
            high=high if math.isfinite(high) else None,
            spread=measured.iqr / measured.median if measured.median > 0 else 0.0,
            count=len(measured.seconds),
            clock_hz=measured.median_sm_clock_hz,
        )

    @classmethod
    def joined(cls, parts: Sequence[Timing]) -> Timing:
        """Merge timings under one condition; the interval contains all their intervals."""
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
        """The median in clock cycles; None if the clock is unknown."""
        return None if self.clock_hz is None else self.median * self.clock_hz

    @property
    def deviation(self) -> float:
        """The samples' relative standard deviation, estimated from their quartiles."""
        return self.spread / _QUARTILES_APART


@dataclasses.dataclass(frozen=True)
class Calls:
    """Host times of an operation that is called like in a program; seconds per call.

    Attributes:
        first: times of the first calls of all, each until its work was done.
        loop: time in a loop that waits only at its end.
        waiting: time in a loop that waits after each call.
        issuing: time until a call returns, on an idle device.
        mean: mean of the loop's samples.
        fewest: smallest of the loop's samples.
        running: share of the loop's time in which this process ran on a CPU or waited for one;
            summed over its threads.
        allocations: blocks that PyTorch's allocator requested from CUDA.
        frees: blocks that it returned to CUDA.
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
    """Device work of a call, measured with the method that ``method="auto"`` selects; seconds.

    Attributes:
        seconds: time in which at least one kernel, copy or memset ran; on a CPU, the host time.
        span: time from the first start to the last end, while the queue was held.
        mean: mean of the samples whose median is ``seconds``.
        fewest: the smallest sample.
        kernels: number of kernels.
        copies: number of copies.
        copied_bytes: bytes that these copies moved.
        conversion: part of ``seconds`` for layout conversions, identified by kernel name.
        held: whether the queue could be held until calls were issued; None on a CPU.
        other_launches: kernels, copies and memsets per call that other threads launched on the GPU.
        place_share: share of the samples' variance that is between placements; None if unknown.
        place_spread: spread (10th to 90th percentile) of the per-placement medians, over the
            median; None if there are too few placements.
        highest_clock_hz: the GPU's maximum SM clock; None on a CPU.
        tensor_bytes: bytes of the values in its tensors; 0 if some are unknown.
        remarkable_inputs: number of tensors that are constant, or largely NaN or denormal.
        mapped_bytes: bytes of its GPU tensors that are in host memory.
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
    """A few calls as recorded by torch.profiler; counts and seconds per call.

    Attributes:
        calls: number of traced calls.
        busy: seconds in which the device did anything.
        kernels: seconds in which a kernel ran.
        copies: seconds in which a copy between host and device ran.
        hidden_copies: part of ``copies`` in which a kernel also ran.
        pageable: seconds of copies from or to pageable memory.
        pinned: seconds of copies from or to pinned memory.
        launches: number of kernels, copies, memsets and graphs that the host launched.
        waits: number of times that the host waited for the device.
        waiting: seconds in waits.
        allocations: number of times that the host requested memory from CUDA or returned it.
        allocating: seconds in requests.
        copying: seconds that the host spent in copy calls.
        issuing: host seconds without ``waiting``, ``allocating`` and ``copying``.
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
class Serialized:
    """Results of calls that wait after each operation, compared with results of normal calls.

    Attributes:
        repeats: whether the waiting calls give the same result each time.
        calls: number of normal calls, made on memory that held other values before.
        differing: number of normal calls with a different result.
        largest_error: largest error of any element; None if no difference is a number.
    """

    repeats: bool
    calls: int
    differing: int
    largest_error: float | None = None


@dataclasses.dataclass(frozen=True)
class Held:
    """One call that was issued after a kernel that kept the stream busy.

    Attributes:
        held: seconds for which the kernel delayed it.
        returned: seconds after which the call returned.
    """

    held: float
    returned: float


@dataclasses.dataclass(frozen=True)
class Neighbors:
    """Measured duration of work whose duration is known, which reveals other users of the GPU.

    Attributes:
        spin_expected: seconds of single-thread kernels, by their internal clock.
        spin: seconds that they took on the stream, back to back.
        copied_bytes_per_second: rate of a large copy, read plus written bytes.
        highest_bytes_per_second: peak memory bandwidth from clock and bus width; None if the driver
            does not report them.
        other_processes: number of processes that compute on the GPU, according to NVML; None if
            NVML does not report it.
    """

    spin_expected: float = 0.0
    spin: float = 0.0
    copied_bytes_per_second: float = 0.0
    highest_bytes_per_second: float | None = None
    other_processes: int | None = None


@dataclasses.dataclass(frozen=True)
class Waits:
    """Observed states of the calling thread while it made calls, as counts of observations.

    Attributes:
        seconds: time of a call with one of PyTorch's threads.
        looks: number of all observations.
        ready: it ran, or waited for a core.
        sleeping: it slept until a set time.
        files: it waited for a file, a pipe or a socket.
        pages: it waited for a page to be read from a disk.
        processes: it waited for another process to start or to end.
        locks: it waited for a lock, while no other thread of its process was ready to run.
        other_threads: it waited for a lock, while another thread was ready, e.g. of PyTorch's pool.
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
        """Return these fields' share of all observations."""
        return sum(getattr(self, name) for name in names) / self.looks if self.looks else 0.0


@dataclasses.dataclass(frozen=True)
class Host:
    """Effects of the operating system on calls on a CPU, in a loop; None if they are unknown.

    Seconds and counts are per call, on average.

    Attributes:
        seconds: time of a call.
        cpu: CPU time of all threads of the process.
        kernel: part of ``cpu`` in the system's kernel.
        waiting: time for which runnable threads waited for a core, summed over threads.
        longest_wait: the same for the thread that waited longest.
        threads: number of threads that computed.
        cores: number of cores that the process may run on.
        others: number of cores that other processes used during the loop.
        background: number of cores that this process used while its calling thread slept.
        throttled: seconds for which a cgroup's quota stopped the process.
        stolen: seconds for which the hypervisor kept cores from running.
        minor_faults: number of pages that were touched for the first time.
        major_faults: number of pages that were read from a disk.
        fault_seconds: time of one minor fault on this machine.
        waits: observed states of the calling thread.
        rested_hz: clock of the calling thread's core after a rest.
        loaded_hz: clock of that core right after calls.
        remote_share: share of the tensors' pages on another NUMA node than the calling thread's;
            None on machines with one node.
        missing: values that could not be read, and why; empty for none.
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
    """PyTorch's operators in a call on a CPU; counts and seconds per call.

    Attributes:
        count: number of operators called, including nested ones.
        outermost: number of operators that are not nested in another.
        seconds: time in the outermost operators.
        dispatching: time in all operators, each limited to ``smallest``.
        loop: time of a call in the loop in which the operators were timed.
        smallest: time of PyTorch's smallest operator, most of it dispatching.
    """

    count: float
    outermost: float
    seconds: float
    dispatching: float
    loop: float
    smallest: float


@dataclasses.dataclass(frozen=True)
class Evidence:
    """All observations; a skipped one is None, or is missing from the contrasts.

    Attributes:
        on_gpu: whether the work runs on a GPU.
        calls: host times of calls.
        work: device work of a call.
        contrasts: times by varied property, and then by condition.
        trace: a few calls as recorded by torch.profiler.
        serialized: results with and without waiting after each operation.
        held: a call after a kernel that keeps the stream busy.
        neighbors: work of known duration, which reveals other users of the GPU.
        smallest_launch: host seconds to issue PyTorch's smallest operation.
        event_cost: seconds that a pair of events adds to one kernel; None if unknown.
        counters: hardware counters of a call, by metric; empty if they cannot be read.
        host: effects of the operating system, for work on a CPU.
        operators: share of PyTorch's operators in a call on a CPU.
    """

    on_gpu: bool
    calls: Calls
    work: Work
    contrasts: Mapping[str, Mapping[str, Timing]] = dataclasses.field(default_factory=dict)
    trace: Trace | None = None
    serialized: Serialized | None = None
    held: Held | None = None
    neighbors: Neighbors | None = None
    smallest_launch: float | None = None
    event_cost: float | None = None
    counters: Mapping[str, float] = dataclasses.field(default_factory=dict)
    host: Host | None = None
    operators: Operators | None = None

    def with_contrast(self, name: str, times: Mapping[str, Timing]) -> Evidence:
        """Return a copy that includes these times of a contrast."""
        joined = {**self.contrasts.get(name, {}), **times}
        return dataclasses.replace(self, contrasts={**self.contrasts, name: joined})

    def timing(self, contrast: str, condition: str) -> Timing | None:
        """Return the times under a condition; None if it was not examined."""
        return self.contrasts.get(contrast, {}).get(condition)

    def seconds(self, contrast: str, condition: str) -> float | None:
        """Return the median of :meth:`timing`."""
        found = self.timing(contrast, condition)
        return None if found is None else found.median
