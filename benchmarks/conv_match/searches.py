"""PyTorch's timed searches of plans beside convtime's: the row of a call under cudnn.benchmark.

PyTorch's log is that of this process, which child.py starts with the log asked for.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import results
import torch
from common.calls import launches, record
from common.running import first_line

import convtime
from conv_match import CUDNN_BACKENDS, PASSES
from conv_match.passes import describe_plan
from convtime.conv.call import FPROP, ConvCall, ConvTensors, backward_pass
from convtime.conv.identity import compare_bits, convtime_call
from convtime.conv.plan_log import PlanLog, log_of
from convtime.conv.threads import FreshThread, in_fresh_thread
from convtime.core import codec
from convtime.timing.activity import same_launches


def measure_searches(call: ConvCall, device: torch.device, log: Path) -> results.Row:
    call = dataclasses.replace(call, flags=dataclasses.replace(call.flags, benchmark=True))
    row: results.Row = {"problem": codec.encode(call)}
    with call.flags.applied(), torch.no_grad():
        try:
            tensors = call.tensors(device)
            searches = {
                name: _search(call, name, tensors, device, log)
                for name in PASSES
                if call.backend(name, tensors) in CUDNN_BACKENDS
            }
        except RuntimeError as error:
            return row | {"error": f"PyTorch: {first_line(error)}"}
    return row | {"searches": searches}


def _search(
    call: ConvCall, name: str, tensors: ConvTensors, device: torch.device, log: Path
) -> results.Row:
    """A pass; only PyTorch's failures are raised."""
    pytorch = call.pytorch_call(name, tensors)
    # PyTorch's calls are all in a thread that has no plans yet, and keeps what it finds.
    with FreshThread(device) as thread:
        theirs = functools.partial(thread.call, pytorch)
        found = log_of(theirs, log)
        again = log_of(lambda: in_fresh_thread(pytorch, device), log)
        try:
            return _compare(call, name, tensors, theirs, found, again)
        except RuntimeError as error:
            return {"error": f"convtime: {first_line(error)}"}


def _compare(
    call: ConvCall,
    name: str,
    tensors: ConvTensors,
    theirs: Callable[[], torch.Tensor],
    found: PlanLog,
    again: PlanLog,
) -> results.Row:
    """What convtime finds beside what PyTorch found, in this thread and in another."""
    convtime.conv.clear_plan_cache()
    convtime_call(call, name, tensors, "benchmark")()
    (choice,) = convtime.conv.plan_cache()
    row: results.Row = {
        **describe_plan(found),
        "again_tag": again.plan.tag if again.plan else None,
        "convtime_tag": choice.tag,
        "candidates": list(found.timed),
        "convtime_candidates": None if choice.timed == found.timed else list(choice.timed),
    }
    if found.plan is None:
        return row
    forced = _by_engine(call, name, tensors, found.plan.tag)
    identical, repeats = compare_bits(theirs, theirs(), forced())
    recorded = record({"pytorch": theirs, "convtime": forced})
    same = same_launches(recorded["pytorch"], recorded["convtime"])
    return row | {
        "bit_identical": identical,
        "pytorch_repeats": repeats,
        "kernels": launches(recorded["pytorch"]),
        "convtime_kernels": None if same else launches(recorded["convtime"]),
    }


def _by_engine(
    call: ConvCall, name: str, tensors: ConvTensors, tag: str
) -> Callable[[], torch.Tensor]:
    if name == FPROP:
        return convtime_call(call, name, tensors, tag)
    wanted = backward_pass(name)
    arguments = (
        tensors.grad_output, tensors.x, tensors.w, *call.backward_arguments,
        [place == wanted for place in range(3)],
    )  # fmt: skip

    backward = functools.partial(torch.ops.convtime.convolution_backward, *arguments, policy=tag)
    return lambda: backward()[wanted]
