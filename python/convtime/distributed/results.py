"""Join the times of all ranks in measurements."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from convtime.core import codec
from convtime.core.load import _C
from convtime.device import nvml
from convtime.device.clock_trace import ClockReading
from convtime.device.clocks import read_clocks
from convtime.device.provenance import cpu_name
from convtime.distributed.calls import OwnBatch, kernels_communicate
from convtime.distributed.clocks import CommonClock, Timestamps, is_shared
from convtime.distributed.collectives import Watched
from convtime.distributed.coordination import Coordinator
from convtime.timing.measurement import Measurement
from convtime.timing.ranks import Collective, Communication, Ranks, RankTimes, rank_name
from convtime.view.wording import format_seconds

#: Ranks that arrive further apart than this share of the transfer may transfer before the last
#: arrival, and the transfer time would be too short for a bandwidth.
_MOST_SKEW = 0.1
_FEWEST = 6  # samples for an interval
_MATTERS = 0.01  # share of the call's time by which a slower device is reported
_MATTERS_SECONDS = 2e-6

#: Fields of a Measurement that each rank estimates for itself.
_SHARED = ("overhead", "overhead_uncertainty", "clock_tick", "between_runs")


def join_ranks(
    coordinator: Coordinator,
    facts: Sequence[dict[str, Any]],
    clock: CommonClock,
    timestamps: Timestamps,
    batches: Sequence[OwnBatch],
    measured: Sequence[Measurement],
    watched: Sequence[Watched],
) -> list[Measurement]:
    """Return the measurements with the times of all ranks; every rank has to call this.

    Args:
        coordinator: the ranks.
        facts: facts of each rank (:func:`convtime.distributed.checks.check_ranks`).
        clock: this rank's clock against the common one.
        timestamps: how its calls were stamped.
        batches: its batches.
        measured: the measurements by the sampler.
        watched: communication of each candidate's call on this rank.
    """
    device = torch.device(facts[coordinator.rank]["device"])
    on_gpu = device.type == "cuda"
    part = {
        "method": measured[0].method.used,
        "state": _device_state(device),
        "device_name": torch.cuda.get_device_name(device) if on_gpu else cpu_name(),
        "uncertainty": clock.uncertainty + timestamps.uncertainty,
        "shared": [{name: getattr(each, name) for name in _SHARED} for each in measured],
        "candidates": [
            _own_candidate(each, _sample_times(index, each, clock, batches), watched[index], on_gpu)
            for index, each in enumerate(measured)
        ],
    }
    parts = coordinator.gather("the results are joined", part)
    methods = [each["method"] for each in parts]
    if len(set(methods)) > 1:
        coordinator.fail("raised", None, f"used another method than the others ({methods} by rank)")
    # Of the time between two ranks' stamps.
    uncertainty = sum(sorted((each["uncertainty"] for each in parts), reverse=True)[:2])
    clock_reason = (
        "all ranks read the clock of one machine"
        if is_shared(coordinator)
        else "time stamps were exchanged with rank 0 before and after the calls"
    )
    joined = []
    for index, each in enumerate(measured):
        common = _share_overhead(each, parts[0]["shared"][index])
        ranks = _ranks(coordinator, facts, parts, index, common, uncertainty, clock_reason)
        joined.append(dataclasses.replace(common, ranks=ranks))
    return joined


def _share_overhead(measured: Measurement, shared: Mapping[str, Any]) -> Measurement:
    """Return the measurement with rank 0's overhead and precision, on which verdicts depend."""
    change = measured.overhead - shared["overhead"]
    return dataclasses.replace(
        measured, seconds=tuple(each + change for each in measured.seconds), **shared
    )


def _own_candidate(
    measured: Measurement, times: Mapping[str, list[float]], watched: Watched, on_gpu: bool
) -> dict[str, Any]:
    communication, communicating, computing, reason = _communication(measured, on_gpu)
    if not on_gpu and len(watched.collectives) <= 1:  # or it also computes after the first
        computing = [
            arrival - begin for begin, arrival in zip(times["begin"], times["arrival"], strict=True)
        ]
    return {
        "times": codec.finite(times),
        "collectives": [dataclasses.asdict(each) for each in watched.collectives],
        "communication": None if communication is None else dataclasses.asdict(communication),
        "communication_reason": reason,
        "communicating": communicating,
        "computing": codec.finite(computing),
        # The GPU's mark before a call is that of its communication if the call does not compute,
        # which records tell, and if the GPU does not wait for the host there.
        "stamped": not on_gpu
        or (bool(measured.busy_seconds) and measured.queue.used != "none" and not any(computing)),
    }


def _sample_times(
    index: int, measured: Measurement, clock: CommonClock, batches: Sequence[OwnBatch]
) -> dict[str, list[float]]:
    """Return the times of a candidate's samples on this rank: the last rounds of each batch.

    ``begin``, ``arrival`` and ``end`` are in seconds of the common clock.
    """
    times: dict[str, list[float]] = {"seconds": [], "begin": [], "arrival": [], "end": []}
    for number, rounds in sorted(Counter(measured.batches).items()):
        batch = batches[number]
        times["seconds"] += batch.seconds[index][-rounds:]
        for name, series in vars(batch.stamps[index]).items():
            times[name] += [1e-9 * clock.common(each) for each in series[-rounds:]]
    return times


def _communication(
    measured: Measurement, on_gpu: bool
) -> tuple[Communication | None, list[float], list[float], str]:
    """Return a rank's communication, by the records of its kernels.

    Returns:
        Exposed and hidden communication, or None; the time of communication and of other kernels in
        each sample, empty if unknown; and why something is unknown.
    """
    if not on_gpu:
        why = "the work is on the CPU, which has no records of what ran at the same time"
        return None, [], [], why
    if not measured.busy_seconds:
        return None, [], [], f"method {measured.method.used!r} has no records of kernels"
    groups = [
        [each for each in measured.activities if kernels_communicate(each.name) is communicates]
        for communicates in (True, False)
    ]
    samples = range(len(measured.seconds))
    own, others = (
        [sum(each.seconds[sample] or 0.0 for each in group) for sample in samples]
        for group in groups
    )
    if not groups[0]:
        return None, [], others, "no kernel of NCCL was recorded"
    for group in groups:
        if len({stream for each in group for stream in each.streams}) > 1:
            return None, own, others, "the kernels of one kind ran on several streams"
    hidden = [
        max(0.0, communicating + computing - busy)
        for communicating, computing, busy in zip(own, others, measured.busy_seconds, strict=True)
    ]
    exposed = [max(0.0, each - part) for each, part in zip(own, hidden, strict=True)]
    communication = Communication(*map(statistics.median, (own, exposed, hidden)))
    return communication, own, others, ""


def _device_state(device: torch.device) -> dict[str, Any]:
    """Return the state of the device directly after the calls."""
    if device.type != "cuda":
        return {}
    try:
        with nvml.session(device) as gpu:
            ecc = gpu.ask("EccMode")
            return {
                "state": dataclasses.asdict(read_clocks(gpu, 0.0)),
                "ecc": None if ecc is None else bool(ecc[0]),
                "link_width": gpu.ask("CurrPcieLinkWidth"),
                "max_link_width": gpu.ask("MaxPcieLinkWidth"),
            }
    except nvml.NvmlUnavailableError:  # the fields of RankTimes are None
        return {}


def _ranks(
    coordinator: Coordinator,
    facts: Sequence[dict[str, Any]],
    parts: Sequence[dict[str, Any]],
    index: int,
    measured: Measurement,
    uncertainty: float,
    clock_reason: str,
) -> Ranks:
    own = [part["candidates"][index] for part in parts]
    by_rank = [[Collective(**one) for one in each["collectives"]] for each in own]
    # The size of an operation is the largest of all ranks.
    collectives = [
        dataclasses.replace(each[0], nbytes=max(one.nbytes for one in each))
        for each in zip(*by_rank, strict=False)
    ]
    waiting, transfer, needs_clocks = _divide_calls(own, collectives)
    if not needs_clocks:
        uncertainty, clock_reason = 0.0, "by the durations of the communication kernels"
    reason = _arrivals_reason(bool(waiting.size), own, coordinator.size)
    if reason:
        waiting, transfer = np.empty((coordinator.size, 0)), np.empty(0)
    skew = waiting.max(axis=0) if waiting.size else np.empty(0)
    times = tuple(
        _rank_times(coordinator, rank, facts[rank], parts[rank], own[rank], waiting[rank])
        for rank in range(coordinator.size)
    )
    bandwidth, why_not = _bandwidth(collectives, skew, transfer, uncertainty)
    factor = collectives[0].bus_factor if bandwidth is not None else None
    return Ranks(
        rank=coordinator.rank,
        backend=coordinator.group._get_backend(
            torch.device(facts[coordinator.rank]["device"])
        ).name(),
        ranks=times,
        collectives=tuple(collectives),
        skew_seconds=tuple(skew.tolist()),
        transfer_seconds=tuple(transfer.tolist()),
        transfer_interval=_interval(transfer.tolist(), measured, uncertainty),
        arrivals_reason=reason,
        clock_uncertainty=uncertainty,
        clock_reason=clock_reason,
        algorithm_bandwidth=bandwidth,
        bus_bandwidth=None if bandwidth is None or factor is None else factor * bandwidth,
        bandwidth_reason=why_not,
        slower=tuple(_slower(times, measured)),
    )


def _divide_calls(
    own: Sequence[dict[str, Any]], collectives: Sequence[Collective]
) -> tuple[Any, Any, bool]:
    """Divide the calls' communication into waiting for the last rank, and the transfer.

    Returns:
        Seconds that each rank waits in each call, seconds of each transfer, both empty if they are
        unknown, and whether the ranks' clocks were needed.
    """
    arrival, end = (
        np.array([each["times"][what] for each in own], dtype=float) for what in ("arrival", "end")
    )
    stamped = all(each["stamped"] for each in own) and bool(np.isfinite(arrival).all())
    # A GPU's mark before a call is there even if the call does not communicate. Records tell.
    communicates = all(all(each["communicating"]) for each in own)
    # With unequal splits, an all-to-all may end sooner on a rank that gets little.
    by_marks = stamped and any(each.kind == "all_to_all" for each in collectives)
    if communicates and _all_wait(own, collectives) and not by_marks:
        # All kernels end together, and begin as their rank arrives. Timestamps would be related by
        # the hosts' clocks, to some microseconds.
        communicating = np.array([each["communicating"] for each in own])
        transfer = communicating.min(axis=0)
        return communicating - transfer, transfer, False
    if communicates and stamped:
        last = arrival.max(axis=0)
        return last - arrival, end.max(axis=0) - last, True
    return np.empty((len(own), 0)), np.empty(0), True


def _arrivals_reason(known: bool, own: Sequence[dict[str, Any]], size: int) -> str:
    counts = sorted({len(each["collectives"]) for each in own})
    if counts == [1]:
        operations = [Collective(**one) for each in own for one in each["collectives"]]
        ranks = {2 if each.kind in ("send", "recv") else each.ranks for each in operations}
        some = ranks - {0, size}
        if some:
            return (
                f"the operation joins {min(some)} of the {size} ranks, which wait for each other "
                "only"
            )
        if known:
            return ""
    if not known and counts[-1] <= 1:
        return (
            "some calls do not communicate on every rank, or the begin of their communication on "
            "the GPU was not recorded: that needs method 'kernel', or a held queue and a call that "
            "does not compute"
        )
    return (
        f"a call has {' or '.join(map(str, counts))} operations of torch.distributed, and only one "
        "can be divided into waiting and transfer"
    )


def _all_wait(own: Sequence[dict[str, Any]], collectives: Sequence[Collective]) -> bool:
    """Whether each rank's communication lasts until the last rank has arrived, on record."""
    symmetric = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    # With several, a rank may wait for others in one, and they for it in the next.
    return (
        all(each["communicating"] for each in own)
        and len(collectives) <= 1
        and all(each.kind in symmetric for each in collectives)
    )


def _rank_times(
    coordinator: Coordinator,
    rank: int,
    facts: dict[str, Any],
    part: dict[str, Any],
    own: dict[str, Any],
    waiting: Any,
) -> RankTimes:
    state = dict(part["state"])
    reading = state.pop("state", None)
    communication = own["communication"]
    computing = own["computing"]
    return RankTimes(
        rank=rank,
        global_rank=facts["global_rank"],
        process=str(coordinator.processes[rank]),
        device=facts["device"],
        device_name=part["device_name"],
        gpu_uuid=facts["gpu_uuid"],
        seconds=tuple(own["times"]["seconds"]),
        waiting_seconds=tuple(waiting.tolist()),
        computing_seconds=() if None in computing else tuple(computing),
        clock_uncertainty=part["uncertainty"],
        state=None if reading is None else codec.decode(ClockReading, reading),
        communication=None if communication is None else Communication(**communication),
        communication_reason=own["communication_reason"],
        **state,
    )


def _bandwidth(
    collectives: Sequence[Collective], skew: Any, transfer: Any, uncertainty: float
) -> tuple[float | None, str]:
    if not transfer.size:
        return None, "the transfer time is unknown"
    (collective,) = collectives
    if collective.bus_factor is None:
        return None, f"{collective.kind} has no defined bandwidth"
    # Of the median: a share of each sample's own transfer would keep the slow samples alone.
    together = transfer[skew <= _MOST_SKEW * np.median(transfer) + uncertainty]
    if 2 * together.size < transfer.size:
        return None, (
            f"the ranks arrived {format_seconds(np.median(skew))} apart, more than "
            f"{_MOST_SKEW:.0%} of the transfer time: data may have been transferred before the "
            "last arrival"
        )
    if together.size < _FEWEST:
        return None, (
            f"the ranks arrived together in {together.size} samples, and at least {_FEWEST} are "
            "needed"
        )
    return float(collective.nbytes / np.median(together)), ""


def _interval(
    seconds: Sequence[float], measured: Measurement, uncertainty: float
) -> tuple[float, float] | None:
    if len(seconds) < _FEWEST:
        return None
    low, high, _, _ = _C.median_interval(
        seconds, (), measured.batches, measured.clock_tick, uncertainty
    )
    return low, high


def _slower(times: Sequence[RankTimes], measured: Measurement) -> Iterator[str]:
    """Yield a sentence for each rank that computes longer than all others, beyond intervals."""
    if len(times) < 2 or not all(each.computing_seconds for each in times):
        return
    intervals = [_interval(each.computing_seconds, measured, 0.0) for each in times]
    least = max(_MATTERS * measured.median, _MATTERS_SECONDS)
    for each, interval in zip(times, intervals, strict=True):
        others = [other for other in times if other is not each]
        highest = max(statistics.median(other.computing_seconds) for other in others)
        highs = [other[1] for other in intervals if other is not None and other is not interval]
        own = statistics.median(each.computing_seconds)
        if interval is not None and interval[0] > max(highs, default=highest) + least:
            differing = "".join(_differences(each, others))
            yield (
                f"{rank_name(each.rank, each.global_rank)} ({each.device} of {each.process}) "
                f"computes for {format_seconds(own)} per call, all others for at most "
                f"{format_seconds(highest)}{differing}"
            )


def _differences(slow: RankTimes, others: Sequence[RankTimes]) -> Iterator[str]:
    """Yield how the device of a slower rank differs from all others, as parts of a sentence."""
    if all(other.device_name != slow.device_name for other in others):
        yield f"; it is {slow.device_name}"
    if slow.state is not None and slow.state.sm_clock_hz is not None:
        clocks = [other.state.sm_clock_hz for other in others if other.state is not None]
        known = [clock for clock in clocks if clock is not None]
        if known and slow.state.sm_clock_hz < 0.98 * min(known):
            yield (
                f"; its SM clock is {slow.state.sm_clock_hz / 1e6:.0f} MHz, the others' at least "
                f"{min(known) / 1e6:.0f} MHz"
            )
    if slow.state is not None and slow.state.throttle_reasons:
        yield f"; it is throttled by {', '.join(slow.state.throttle_reasons)}"
    widths = [other.link_width for other in others if other.link_width is not None]
    if slow.link_width is not None and widths and slow.link_width < min(widths):
        yield f"; its PCIe link has {slow.link_width} lanes, the others' {min(widths)}"
