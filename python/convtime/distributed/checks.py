"""Check that the ranks of a group make the same call, each on a separate device."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from convtime.core.checks import require
from convtime.core.errors import one_line
from convtime.core.load import _build_info
from convtime.device.provenance import gpu_uuid
from convtime.distributed.collectives import Watched
from convtime.distributed.coordination import Coordinator
from convtime.timing.candidate import Candidate
from convtime.timing.options import Options
from convtime.timing.sampling.measure import WorkDevices, check_arguments

#: Options with which a rank would decide by itself how often it calls, or copy its tensors.
_NOT_IN_A_GROUP: Mapping[str, tuple[object, ...]] = {
    "method": ("graph",),
    "cache": ("rotate",),
    "placement": ("random", "aligned"),
    "regime": ("burst", "sustained"),
    "quick": (True,),
}
#: What all ranks must have in common besides options, in words.
_COMPARED = {
    "group": "ranks in the process group",
    "torch": "version of torch",
    "convtime": "version of convtime",
    "names": "candidates",
}
#: Options that may differ between ranks.
_OF_EACH_RANK = ("device", "stream", "pin", "log", "clocks", "exclusive")
_SHARED_OPTIONS = [
    field.name for field in dataclasses.fields(Options) if field.name not in _OF_EACH_RANK
]


def _refusal(options: Options) -> str:
    """Return why options cannot be agreed on; empty if they can."""
    for name, refused in _NOT_IN_A_GROUP.items():
        value = getattr(options, name)
        if value in refused:
            return (
                f"{name}={value!r} cannot be used for calls that communicate with other ranks, "
                f"because each rank would decide by itself how often it calls; leave out {name}"
            )
    if options.queue == "sleep":
        return (
            "queue must be 'auto', 'gate' or 'none' for calls that communicate with other ranks, "
            "got 'sleep', which releases each rank's calls at another time"
        )
    if options.warmup != "steady" and not isinstance(options.warmup, int):
        return (
            "warmup must be 'steady' or a number of calls for calls that communicate with other "
            f"ranks, got {options.warmup!r} seconds, in which each rank makes other calls"
        )
    return ""


def check_timeout(timeout: float) -> None:
    """Raise InputError for a timeout that a timer of Python's threads cannot have."""
    require(
        timeout <= threading.TIMEOUT_MAX,
        f"timeout and budget must be less than {threading.TIMEOUT_MAX:.3g} seconds for calls "
        f"that communicate with other ranks, got a timeout of {timeout:.3g} seconds",
    )


def refuse_unfinished(
    coordinator: Coordinator, candidates: Sequence[Candidate], watched: Sequence[Watched]
) -> None:
    """Refuse calls that do not wait for their communication, which a CPU's time would not contain.

    Raises:
        InputError: for such a call on any rank; all ranks raise it with the same sentence.
    """
    by_rank = coordinator.gather("the first call is checked", [each.unfinished for each in watched])
    for candidate, unfinished in zip(candidates, zip(*by_rank, strict=True), strict=True):
        if any(unfinished):
            coordinator.calling = False  # all ranks have issued the same: nothing has to be aborted
            coordinator.fail(
                "input",
                None,
                f"the timed function must wait for its communication, got {candidate.name!r}, "
                "which returns a torch.distributed.Work or a functional collective's tensor that "
                "is not completed; return what its wait() returns, or leave out async_op",
            )


def check_ranks(
    coordinator: Coordinator,
    candidates: Sequence[Candidate],
    options: Options,
    devices: WorkDevices,
) -> list[dict[str, Any]]:
    """Check that all ranks time the same in a way that they can, and return facts of each.

    Raises:
        InputError: they do not; all ranks raise it with the same sentence.
    """
    everyone = coordinator.gather(
        "the ranks are checked", _facts(coordinator, candidates, options, devices)
    )
    for what in (*_COMPARED, *_SHARED_OPTIONS):
        values = [each["compared"][what] for each in everyone]
        odd = next((rank for rank, each in enumerate(values) if each != values[0]), None)
        if odd is not None:
            subject = _COMPARED.get(what, f"option {what}")
            coordinator.fail(
                "input",
                None,
                f"all ranks must have the same {subject}, got {values[0]!r} on "
                f"{coordinator.names[0]} and {values[odd]!r} on {coordinator.names[odd]}",
            )
    if reason := _refusal(options):
        coordinator.fail("input", None, reason)
    for rank, each in enumerate(everyone):
        if each["problem"]:
            reason = f"{coordinator.names[rank]}: {each['problem']}"
            coordinator.fail("input", None, reason)
    first_on: dict[str, int] = {}
    for rank, each in enumerate(everyone):
        uuid = each["gpu_uuid"]
        first = first_on.setdefault(uuid, rank)
        if uuid is not None and first != rank:
            coordinator.fail(
                "input",
                None,
                f"each rank must have a GPU of its own, got {coordinator.names[first]} and "
                f"{coordinator.names[rank]} on {each['device']} ({uuid}); call "
                "torch.cuda.set_device(local_rank), with as many ranks as GPUs",
            )
    return everyone


def _facts(
    coordinator: Coordinator,
    candidates: Sequence[Candidate],
    options: Options,
    devices: WorkDevices,
) -> dict[str, Any]:
    group, device = coordinator.group, devices.device
    problem = ""
    try:
        check_arguments(candidates, options, devices)
    except ValueError as error:
        problem = one_line(error)
    try:
        group._get_backend(device)
    except RuntimeError:
        problem = (
            f"the process group has no backend for {device.type}, got {dist.get_backend(group)!r}; "
            f"initialize it with one, or move the tensors"
        )
    launched = os.environ.get("WORLD_SIZE", "")
    if launched.isdigit() and int(launched) != dist.get_world_size():
        problem = (
            f"the number of processes must be that of the launcher, WORLD_SIZE={launched}, got "
            f"world_size={dist.get_world_size()}; leave it out in init_process_group"
        )
    shared = {name: repr(getattr(options, name)) for name in _SHARED_OPTIONS}
    return {
        "compared": {
            "group": dist.get_process_group_ranks(group),
            "torch": str(torch.__version__),
            "convtime": _build_info.version,
            "names": [candidate.name for candidate in candidates],
            **shared,
        },
        "problem": problem,
        "global_rank": dist.get_rank(),
        "device": str(device),
        "gpu_uuid": gpu_uuid(device) if device.type == "cuda" else None,
    }
