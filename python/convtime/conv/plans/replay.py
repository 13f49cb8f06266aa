"""Run a file's plans by convtime's ops in a fresh process, and compare engines and bits."""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from pathlib import Path

import torch

from convtime.conv.call import FPROP
from convtime.conv.identity import convtime_call
from convtime.conv.plan_choice import PlanChoice
from convtime.conv.plans.loading import is_in_use, load_plans, plan_cache, plans_in_use, use
from convtime.conv.plans.passes import pass_of
from convtime.conv.plans.plan_set import Plans, StoredPlan, read_plans
from convtime.core.child import Child, ChildError, job
from convtime.core.errors import InputError

_SECONDS = 600.0


@dataclasses.dataclass(frozen=True)
class ReplayResult:
    """The result of a plan after its file was loaded.

    Attributes:
        tag: The engine that computed; empty if that was PyTorch's choice.
        bits: A digest of its result on random values.
        why: Why the plan could not be used; empty if it was.
    """

    tag: str
    bits: str
    why: str = ""


def replay(plans: Plans, device: torch.device) -> list[ReplayResult]:
    """Run each plan once in this process, on random values, with the plans loaded."""
    before = plans_in_use()
    load_plans(plans)
    try:
        return [
            _replay_entry(entry, device)
            if entry.choice.backend == "cudnn"
            else ReplayResult("", "")
            for entry in plans.entries
        ]
    finally:
        load_plans(None)
        if before is not None:
            use(before)


def replay_elsewhere(plans: Plans, device: torch.device) -> list[ReplayResult]:
    """Do the same in a fresh process, which reads the plans from a file.

    Raises:
        InputError: the process failed.
    """
    with tempfile.TemporaryDirectory() as folder, Child() as child:
        path = Path(folder) / "plans.json"
        plans.save(path)
        try:
            there: list[ReplayResult] = child.call(job(_replay_file, path, device), _SECONDS)
        except ChildError as error:
            raise InputError(f"the fresh process that ran the chosen plans {error}") from error
    return there


def _replay_file(path: Path, device: torch.device) -> list[ReplayResult]:
    return replay(read_plans(path), device)


def _replay_entry(entry: StoredPlan, device: torch.device) -> ReplayResult:
    conv_pass = pass_of(entry.problem)
    call, name = conv_pass.call, conv_pass.pass_name
    tensors = call.tensors(device, backward=name != FPROP)
    before = {_without_counts(choice): choice.uses for choice in plan_cache()}
    with torch.cuda.device(device), call.flags.applied(), torch.no_grad():
        result = convtime_call(call, name, tensors)()
    used = [
        choice
        for choice in plan_cache()
        if choice.uses > before.get(_without_counts(choice), 0) and choice.source == "explicit"
    ]
    return ReplayResult(
        tag=used[0].tag if used else "",
        bits=digest_of(result),
        why="" if is_in_use(entry) else "it could not be used",
    )


def _without_counts(choice: PlanChoice) -> PlanChoice:
    return dataclasses.replace(choice, uses=0, rebuilds=0)


def digest_of(result: torch.Tensor) -> str:
    """Return a digest of a tensor's values, whatever its strides are."""
    # A tensor whose sizes end in 1 counts as contiguous whatever its last stride is, but is viewed
    # as bytes only if that is 1, as it is for a new, flat tensor.
    flat = torch.empty(result.numel(), dtype=result.dtype)
    flat.copy_(result.detach().reshape(-1))
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()
