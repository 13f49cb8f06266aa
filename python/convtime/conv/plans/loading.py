"""The plans of this process: those that were loaded, and those that convolutions selected."""

from __future__ import annotations

import os

import torch

from convtime.conv.plan_choice import PlanChoice
from convtime.conv.plans.plan_set import Plans, StoredPlan, read_plans
from convtime.core import codec
from convtime.core.checks import require
from convtime.core.load import _C
from convtime.device.provenance import cudnn_version

#: Name of the variable with the file of plans that is loaded when convtime is imported.
VARIABLE = "CONVTIME_PLANS"
_used: Plans | None = None


def load_plans(plans: str | os.PathLike[str] | Plans | None) -> Plans | None:
    """Let convtime's convolutions use chosen plans, in place of those that were loaded before.

    They hold for all calls of :mod:`convtime.ops` and :mod:`convtime.nn` in this process without a
    ``policy``, in forward and backward passes. A problem without an entry is computed as PyTorch
    does, and so is one whose plan cannot be used: cuDNN does not support it, torch's settings or
    its errata exclude it, or memory is short. A warning names such an entry once. The environment
    variable ``CONVTIME_PLANS`` loads a file when convtime is imported.

    Args:
        plans: a file that :func:`convtime.conv.tune` or ``convtime tune --save`` wrote, or the
            plans. None: use no plans, as at the start.

    Returns:
        The plans; None for None.

    Raises:
        InputError: the file cannot be read, or its plans are for another version of cuDNN or for
            GPUs that this machine does not have.
    """
    global _used
    if plans is None:
        _used = None
        if hasattr(_C, "clear_stored_plans"):
            _C.clear_stored_plans()
        return None
    where = "" if isinstance(plans, Plans) else f"{os.fspath(plans)}: "
    read = plans if isinstance(plans, Plans) else read_plans(plans)
    _check_gpus(read, where)
    use(read, where)
    return read


def load_named() -> None:
    """Load the file that the environment variable names, if any; CUDA is not initialized."""
    path = os.environ.get(VARIABLE)
    if path:
        use(read_plans(path), f"{VARIABLE}={path}: ")


def use(plans: Plans, where: str = "") -> None:
    """Replace the plans of this process.

    Raises:
        InputError: convtime was built without CUDA, or the plans are for another cuDNN.
    """
    require(
        hasattr(_C, "store_plan"),
        f"{where}this convtime was built without CUDA, and cannot use plans",
    )
    chosen_with, here = plans.provenance.get("cudnn"), cudnn_version()
    require(
        chosen_with == here,
        f"{where}the plans were chosen with cuDNN {chosen_with}, and this is cuDNN {here}; "
        "run convtime tune --revalidate with the file",
    )
    global _used
    _C.clear_stored_plans()
    for entry in plans.entries:
        choice = entry.choice
        if choice.backend != "pytorch":
            _C.store_plan(
                problem=codec.encode(entry.problem),
                architecture=entry.architecture,
                multiprocessors=entry.multiprocessors,
                name=f"{entry.name}, {entry.problem} ({choice})",
                tag=choice.tag,
                channels_last=None if choice.layout is None else choice.layout == "channels_last",
            )
    _used = plans


def plans_in_use() -> Plans | None:
    return _used


def is_in_use(entry: StoredPlan) -> bool:
    """Whether this process uses an entry: it was loaded, and did not fail."""
    return entry.choice.backend == "pytorch" or _C.has_stored_plan(
        codec.encode(entry.problem), entry.architecture, entry.multiprocessors
    )


def gpu_kind(device: torch.device) -> tuple[int, int]:
    """Return the architecture of a GPU, e.g. 90, and the number of its multiprocessors."""
    properties = torch.cuda.get_device_properties(device)
    return 10 * properties.major + properties.minor, properties.multi_processor_count


def _check_gpus(plans: Plans, where: str) -> None:
    wanted = {(entry.architecture, entry.multiprocessors) for entry in plans.entries}
    here = {gpu_kind(torch.device("cuda", index)) for index in range(torch.cuda.device_count())}
    require(
        wanted & here or not wanted,
        f"{where}the plans are for {_listed(wanted)}, but this machine has "
        f"{_listed(here) or 'no GPU'}; tune on this machine",
    )


def _listed(kinds: set[tuple[int, int]]) -> str:
    return " and ".join(
        f"sm_{architecture} with {count} multiprocessors" for architecture, count in sorted(kinds)
    )


def plan_cache() -> tuple[PlanChoice, ...]:
    """Return the plans selected so far in this process, the most recently used last.

    All threads share the choices; each thread builds its own plans from them. The cache holds
    10,000 choices, or TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT if that is larger; the least recently used
    are dropped. A convolution has several choices if one thread could not use the plan of the
    others, most likely because memory ran out.
    """
    return tuple(codec.decode(PlanChoice, record) for record in _C.plan_cache())


def clear_plan_cache() -> None:
    """Drop every choice and every plan: the next call of each convolution selects again.

    CUDA graphs that were captured before keep the plans that they need.
    """
    _C.clear_plan_cache()
