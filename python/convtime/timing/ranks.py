"""The ranks of a process group that made a measurement together."""

from __future__ import annotations

import dataclasses
import statistics

from convtime.device.clock_trace import ClockReading


def rank_name(rank: int, global_rank: int) -> str:
    """Return what names a rank of a group in a sentence: launchers' logs have global ranks."""
    if rank == global_rank:
        return f"rank {rank}"
    return f"rank {rank} of the group (global rank {global_rank})"


@dataclasses.dataclass(frozen=True)
class Collective:
    """An operation of torch.distributed that a call issues.

    Attributes:
        kind: its name in torch.distributed, such as ``all_reduce``; ``all_gather`` stands for all
            forms of it.
        nbytes: its size as nccl-tests define it: bytes of a rank's tensor, or of the tensors of all
            ranks together for a gather, a scatter or an all-to-all.
        ranks: number of ranks in its process group; 0 if unknown.
    """

    kind: str
    nbytes: int
    ranks: int

    @property
    def bus_factor(self) -> float | None:
        """Bus bandwidth over algorithm bandwidth, by nccl-tests; None for another operation."""
        n = self.ranks
        share = (n - 1) / n if n else None
        return {
            "all_reduce": None if share is None else 2 * share,
            **dict.fromkeys(
                ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"), share
            ),
            **dict.fromkeys(("broadcast", "reduce", "send", "recv"), 1.0),
        }.get(self.kind)


@dataclasses.dataclass(frozen=True)
class Communication:
    """A rank's time for the kernels of its communication, per call; medians in seconds.

    Attributes:
        seconds: time of the communication kernels, including their waiting for other ranks.
        exposed: the part in which nothing else ran on the GPU.
        hidden: the part in which other kernels ran at the same time.
    """

    seconds: float
    exposed: float
    hidden: float


@dataclasses.dataclass(frozen=True)
class RankTimes:
    """One rank's part in a measurement.

    Attributes:
        rank: rank in the process group.
        global_rank: rank among all processes.
        process: host and process id.
        device: its device.
        device_name: name of the GPU or the CPU.
        gpu_uuid: UUID of the GPU; None on a CPU.
        seconds: its own time of each sample, by the measurement's method.
        waiting_seconds: for each sample, the time from its arrival at the collective to the arrival
            of the last rank; empty if arrivals are unknown.
        computing_seconds: for each sample, the time that it computes: on a CPU from the begin of
            the call to its first collective; on a GPU the time of kernels other than communication.
            Empty if unknown.
        clock_uncertainty: bound of the error of its clock against the common one, in seconds.
        state: the GPU's clocks, power and temperature directly after the calls; None on a CPU, or
            if NVML does not report them.
        ecc: whether the GPU's memory corrects errors; None if unknown.
        link_width: PCIe lanes in use; None if unknown.
        max_link_width: PCIe lanes that GPU and slot support; None if unknown.
        communication: exposed and hidden communication; None if unknown.
        communication_reason: why it is unknown; empty if it is known.
    """

    rank: int
    global_rank: int
    process: str
    device: str
    device_name: str
    gpu_uuid: str | None
    seconds: tuple[float, ...]
    waiting_seconds: tuple[float, ...] = ()
    computing_seconds: tuple[float, ...] = ()
    clock_uncertainty: float = 0.0
    state: ClockReading | None = None
    ecc: bool | None = None
    link_width: int | None = None
    max_link_width: int | None = None
    communication: Communication | None = None
    communication_reason: str = ""

    @property
    def median(self) -> float:
        """The median of its own times, in seconds."""
        return statistics.median(self.seconds)

    @property
    def waiting(self) -> float | None:
        """The median of its waiting times, in seconds; None if unknown."""
        return statistics.median(self.waiting_seconds) if self.waiting_seconds else None


@dataclasses.dataclass(frozen=True)
class Ranks:
    """The ranks that made a measurement together, with their arrivals on a common clock.

    Attributes:
        rank: the rank that this measurement was returned to; its activities and readings are the
            measurement's.
        backend: backend of the process group.
        ranks: each rank's part, by rank.
        collectives: operations of torch.distributed that a call issues.
        skew_seconds: for each sample, the time from the first rank's arrival at the collective to
            the last one's; empty if unknown.
        transfer_seconds: for each sample, the time from the last rank's arrival to the last rank's
            end of the call; empty if unknown.
        transfer_interval: 95 % interval of the median of ``transfer_seconds``; None if unknown.
        arrivals_reason: why arrivals or transfers are unknown; empty if they are known.
        clock_uncertainty: bound of the error of a time between two ranks, in seconds.
        clock_reason: how the clocks were compared.
        algorithm_bandwidth: bytes per second, as nccl-tests define it: size over the median
            transfer time. None if unknown.
        bus_bandwidth: the algorithm bandwidth times a factor of the operation and the number of
            ranks, to be compared with the speed of a link. None if unknown.
        bandwidth_reason: why they are unknown; empty if they are known.
        slower: a sentence for each rank whose device is slower than all others.
    """

    rank: int
    backend: str
    ranks: tuple[RankTimes, ...]
    collectives: tuple[Collective, ...] = ()
    skew_seconds: tuple[float, ...] = ()
    transfer_seconds: tuple[float, ...] = ()
    transfer_interval: tuple[float, float] | None = None
    arrivals_reason: str = ""
    clock_uncertainty: float = 0.0
    clock_reason: str = ""
    algorithm_bandwidth: float | None = None
    bus_bandwidth: float | None = None
    bandwidth_reason: str = ""
    slower: tuple[str, ...] = ()

    @property
    def skew(self) -> float | None:
        """The median arrival skew in seconds; None if unknown."""
        return statistics.median(self.skew_seconds) if self.skew_seconds else None

    @property
    def transfer(self) -> float | None:
        """The median transfer time in seconds; None if unknown."""
        return statistics.median(self.transfer_seconds) if self.transfer_seconds else None
