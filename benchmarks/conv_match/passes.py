"""The row of a call: PyTorch's and convtime's call of each pass, and how they compare."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import results
import torch
from common.calls import compare_launches, launches, record
from common.cuda import seconds_per_call
from common.running import Call, first_line

import convtime
from conv_match import AUTOGRAD, CUDNN_BACKENDS, GRADIENTS, PASSES, is_outside
from convtime import ops
from convtime.conv.call import FPROP, ConvCall, ConvTensors
from convtime.conv.identity import Results, as_tuple, compare_bits, convtime_call
from convtime.conv.plan_log import PlanLog
from convtime.conv.plan_oracle import PlanOracle
from convtime.conv.threads import FreshThread
from convtime.core import codec
from convtime.timing.activity import same_launches
from convtime.timing.measurement import Measurement

_ROUNDS = (6, 25)  # at least, at most
_ROUND_SECONDS = 0.03  # that all rounds of a problem may take on the GPU, above the least
_SURE_ROUNDS = 200  # where a ratio is outside of its limits

_Sides = tuple[Callable[[], Results], Callable[[], Results]]  # PyTorch's call, and convtime's


_oracle_of = functools.cache(PlanOracle)  # which runs until this process ends


def measure_call(call: ConvCall, device: torch.device) -> results.Row:
    row = {"problem": codec.encode(call)}
    with call.flags.applied(), torch.no_grad():
        try:
            tensors = call.tensors(device)
            sides = _sides(call, tensors)
            for theirs, _ in sides.values():
                theirs()
            torch.cuda.synchronize()  # or a kernel that fails would look like convtime's
            torch.cuda.empty_cache()  # the oracle's child needs memory, too
        except RuntimeError as error:
            return row | {"error": f"PyTorch: {first_line(error)}{_of_the_gpu()}"}
        backends = {
            name: call.backend(name if name in PASSES else FPROP, tensors) for name in sides
        }
        to_cudnn = [name for name in PASSES if backends[name] in CUDNN_BACKENDS]
        logs = _oracle_of(device).ask(call, to_cudnn) if to_cudnn else {}
        passes: dict[str, results.Row] = {}
        ran: dict[str, _Sides] = {}
        for name, both in sides.items():
            passes[name] = {"backend": backends[name]}
            if name in logs:
                passes[name] |= describe_plan(logs[name])
            try:
                passes[name] |= _first_calls(call, name, both, device)
                ran[name] = both
            except RuntimeError as error:
                passes[name]["error"] = f"convtime: {first_line(error)}"
        try:
            _time(passes, ran)
        except RuntimeError as error:
            for name in ran:
                passes[name]["error"] = f"timing: {first_line(error)}"
        planned = {name: both for name, both in ran.items() if name in to_cudnn}
        for name, found in measure_second_thread(planned, device).items():
            passes[name]["second_thread"] = found
    return row | {"passes": passes}


def describe_plan(log: PlanLog) -> results.Row:
    """PyTorch's plan by its log, or why that does not tell it."""
    return {"pytorch_tag": log.plan.tag if log.plan else None, "pytorch_unknown": log.unknown}


def _of_the_gpu() -> str:
    """What has become of the GPU meanwhile, after an error that may say nothing of it."""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return f"; {first_line(error)}"
    return ""


def _sides(call: ConvCall, tensors: ConvTensors) -> dict[str, _Sides]:
    kind, outputs = call.problem.kind.function, call.problem.out_channels
    backward = torch.ops.aten.convolution_backward, torch.ops.convtime.convolution_backward
    sizes = [outputs] if call.problem.bias else None  # which PyTorch's backward pass takes, too
    return {
        **{
            name: (call.pytorch_call(name, tensors), convtime_call(call, name, tensors))
            for name in PASSES
        },
        GRADIENTS: (
            _all_gradients(backward[0], call, tensors, sizes),
            _all_gradients(backward[1], call, tensors),
        ),
        AUTOGRAD: (
            _through_autograd(getattr(torch, kind), call, tensors),
            _through_autograd(getattr(ops, kind), call, tensors),
        ),
    }


def _first_calls(call: ConvCall, name: str, both: _Sides, device: torch.device) -> results.Row:
    theirs, ours = both
    convtime.conv.clear_plan_cache()
    ours()
    choices = convtime.conv.plan_cache()
    peaks = [_peak_bytes(theirs), _peak_bytes(ours)]
    poison(device, max(peaks))
    first = theirs()
    poison(device, max(peaks))
    result = ours()
    identical, repeats = compare_bits(theirs, first, result)
    facts = {
        "bit_identical": identical,
        "pytorch_repeats": repeats,
        "same_strides": [tensor.stride() for tensor in as_tuple(first)]
        == [tensor.stride() for tensor in as_tuple(result)],
        "peak_bytes": peaks,
    }
    if name in PASSES:
        expected = call.cudnn_pass(name)
        tags = [choice.tag for choice in choices if choice.pass_name == expected]
        facts["convtime_tag"] = tags[-1] if tags else None
    return facts


def _peak_bytes(call: Call) -> int:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


def _time(passes: dict[str, results.Row], ran: Mapping[str, _Sides]) -> None:
    if not ran:
        return
    candidates: dict[tuple[str, str], Call] = {
        (who, name): call
        for name, both in ran.items()
        for who, call in zip(("pytorch", "convtime"), both, strict=True)
    }
    convtime.conv.clear_plan_cache()  # autograd's thread may have selected the last ones
    _add_samples(passes, candidates, _rounds(candidates.values()))
    for name in ran:
        if is_outside(passes[name]):
            again = {key: call for key, call in candidates.items() if key[1] == name}
            _add_samples(passes, again, _SURE_ROUNDS)


def _rounds(calls: Iterable[Call]) -> int:
    """How many rounds of all calls fit into the time that a problem has."""
    seconds = seconds_per_call(lambda: [call() for call in calls])
    return max(_ROUNDS[0], min(_ROUNDS[1], int(_ROUND_SECONDS / seconds)))


def _add_samples(
    passes: dict[str, results.Row], candidates: Mapping[tuple[str, str], Call], rounds: int
) -> None:
    calls = {" ".join(key): call for key, call in candidates.items()}
    found = compare_launches(calls, rounds).measurements
    for name in dict.fromkeys(name for _, name in candidates):
        theirs, ours = found[f"pytorch {name}"], found[f"convtime {name}"]
        same = same_launches(theirs.activities, ours.activities)
        passes[name] |= {
            "kernels": launches(theirs.activities),
            "convtime_kernels": None if same else launches(ours.activities),
            "ns": {"pytorch": _nanoseconds(theirs), "convtime": _nanoseconds(ours)},
        }


def _nanoseconds(measurement: Measurement) -> list[int]:
    return [round(1e9 * seconds) for seconds in measurement.seconds]


def _all_gradients(
    backward: Callable[..., Any], call: ConvCall, tensors: ConvTensors, *sizes: list[int] | None
) -> Callable[[], Results]:
    arguments = (
        tensors.grad_output, tensors.x, tensors.w, *sizes, *call.backward_arguments,
        [True, True, call.problem.bias],
    )  # fmt: skip
    return lambda: tuple(each for each in backward(*arguments) if each is not None)


def _through_autograd(
    function: Callable[..., torch.Tensor], call: ConvCall, tensors: ConvTensors
) -> Callable[[], Results]:
    """The output, and the gradients of all that goes in."""
    operands = [tensors.x, tensors.w, *([] if tensors.bias is None else [tensors.bias])]
    leaves = [tensor.detach().requires_grad_() for tensor in operands]
    x, w, *bias = leaves
    arguments: tuple[Any, ...] = (x, w, bias[0] if bias else None, *call.arguments)

    def run() -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            output = function(*arguments)
        gradients = torch.autograd.grad(output, leaves, tensors.grad_output)
        return output.detach(), *gradients

    return run


_ALL_ONES = 0xFF
_SMALL = 2**20  # PyTorch cuts what is at most this large from segments of 2 MiB
_ROOM = 2**25  # of a large allocation, for what is rounded up


def poison(device: torch.device, peak_bytes: int) -> None:
    """Fills the memory that the next allocations, of so many bytes at most, come from with NaN."""
    torch.cuda.empty_cache()
    sizes = [*sorted(_gaps(device)), peak_bytes + _ROOM, _SMALL, _SMALL]
    # Held at the same time, so that each is memory of its own; given back when all are filled.
    blocks = [torch.full((size,), _ALL_ONES, dtype=torch.uint8, device=device) for size in sizes]
    del blocks


def _gaps(device: torch.device) -> Iterator[int]:
    """Bytes between tensors in use, as allocations that fill them.

    Not those that only another stream or a CUDA graph can allocate from: what is meant for them
    would be cut from a larger gap, and leave the rest of it.
    """
    stream = torch.cuda.current_stream(device).cuda_stream
    segments: list[dict[str, Any]] = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    for segment in segments:
        place = segment["device"], segment["stream"], segment["segment_pool_id"]
        if place != (device.index, stream, (0, 0)):
            continue
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                continue
            most = _SMALL if segment["segment_type"] == "small" else block["size"]
            for start in range(0, block["size"], most):
                yield min(most, block["size"] - start)


def measure_second_thread(
    sides: Mapping[str, _Sides], device: torch.device
) -> dict[str, results.Row]:
    """By pass: whether the second thread gives PyTorch's bits, by the first thread's kernels."""
    found: dict[str, results.Row] = {}
    calls: dict[str, Call] = {}
    if not sides:
        return found
    try:
        with FreshThread(device) as second:
            for name, (theirs, ours) in sides.items():
                before = _rebuilds()
                result = second.call(ours)
                rebuilt = _rebuilds() == before + 1
                identical, repeats = compare_bits(theirs, theirs(), result)
                found[name] = {
                    "bit_identical": identical, "pytorch_repeats": repeats, "rebuilt": rebuilt
                }  # fmt: skip
                calls[f"first {name}"] = ours
                calls[f"second {name}"] = functools.partial(second.call, ours)
            recorded = record(calls)
    except RuntimeError as error:
        return {name: {"error": f"convtime: {first_line(error)}"} for name in sides}
    for name, row in found.items():
        first, other = (recorded[f"{which} {name}"] for which in ("first", "second"))
        row["convtime_kernels"] = None if same_launches(first, other) else launches(other)
    return found


def _rebuilds() -> int:
    return sum(choice.rebuilds for choice in convtime.conv.plan_cache())
