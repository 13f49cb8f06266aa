"""Measure calls that communicate, together on all ranks of a process group."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.distributed as dist

from convtime.core.load import _C
from convtime.distributed.calls import BatchAgreement, Calls
from convtime.distributed.checks import check_ranks, check_timeout, refuse_unfinished
from convtime.distributed.clocks import (
    CommonClock,
    EventTimestamps,
    Timestamps,
    offset_of,
)
from convtime.distributed.collectives import Watched, watch
from convtime.distributed.coordination import (
    Coordinator,
    group_of,
    groups_here,
    limiting_operations,
)
from convtime.distributed.coordination import report_error as report_error
from convtime.distributed.results import join_ranks
from convtime.timing.candidate import Candidate, timed_part
from convtime.timing.measurement import Measurement
from convtime.timing.options import Options
from convtime.timing.sampling.measure import (
    TimeLimit,
    WorkDevices,
    find_devices,
    measure,
    on,
    reporting_errors,
)

_TIMEOUT = 60.0  # seconds beyond the budget, if there is no timeout
_SAMPLED = 0.8  # share of the timeout after which the sampling ends with the samples so far


def measure_in_group(
    candidates: Sequence[Candidate], options: Options, group: dist.ProcessGroup | None
) -> list[Measurement]:
    """Time candidates interleaved; every rank of the group has to call this at the same time.

    Args:
        candidates: the candidates.
        options: the timing options.
        group: the process group. Default: that of the calls' operations, or of all ranks if they
            use several; each candidate is called once to find it.

    Returns:
        A measurement for each candidate, the same on all ranks except for the activities and
        readings of this rank's device. A sample is the longest of all ranks.

    Raises:
        InputError: an option cannot be used, or the ranks do not fit.
        RankError: a rank raised an exception, ended, hung or fell behind. On the rank that raised
            an exception, it passes through.
    """
    timeout = float(options.budget) + _TIMEOUT
    if options.timeout is not None:
        timeout = float(options.timeout)
    with reporting_errors(group):
        check_timeout(timeout)
        devices = find_devices(candidates, options.device)
    watched = None
    if group is None:
        watched = _watch(candidates, options, devices)
        groups = {id(group): group for call in watched for group in call.groups}
        group = next(iter(groups.values())) if len(groups) == 1 else None
    group = group_of(group)
    everywhere = groups_here()  # a call that was not watched yet may use any group
    with Coordinator(group, timeout) as coordinator, limiting_operations(everywhere) as limit:
        facts = check_ranks(coordinator, candidates, options, devices)
        first = offset_of(coordinator)
        stamps = _C.CollectiveStamps()
        coordinator.progress = lambda: (0, stamps.count())
        if watched is None:
            coordinator.groups_used = everywhere
            coordinator.calling = True
            limit(coordinator.seconds_left)
            watched = _watch(candidates, options, devices)
        refuse_unfinished(coordinator, candidates, watched)
        coordinator.calling = True
        used = (group for call in watched for group in call.groups)
        coordinator.groups_used = [*{id(each): each for each in (group, *used)}.values()]
        timestamps = EventTimestamps() if devices.on_gpu else Timestamps()
        calls = Calls(candidates, timestamps, stamps, on_gpu=devices.on_gpu)
        coordinator.progress = calls.progress
        agreement = BatchAgreement(
            coordinator,
            CommonClock(first),
            calls,
            limit,
            aligned=not devices.on_gpu,
            timeout=timeout,
        )
        measured = measure(
            calls.candidates,
            dataclasses.replace(options, placement="as-is", regime="as-is", device=devices.device),
            limit=TimeLimit(_SAMPLED * coordinator.seconds_left),
            supervisor=agreement,
        )
        measured = [dataclasses.replace(each, device_reason=devices.reason) for each in measured]
        clock = CommonClock(first, offset_of(coordinator))
        return join_ranks(
            coordinator, facts, clock, timestamps, agreement.batches, measured, watched
        )


def _watch(
    candidates: Sequence[Candidate], options: Options, devices: WorkDevices
) -> list[Watched]:
    with on(devices.device, options.stream):
        watched = [watch(timed_part(candidate)) for candidate in candidates]
        if devices.on_gpu:
            torch.cuda.synchronize(devices.device)
            for each in watched:
                each.unfinished = False  # a GPU's timestamps come after all issued work
    return watched
