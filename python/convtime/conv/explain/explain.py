"""Run a convolution in PyTorch and in convtime, and find the plans and kernels of both."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from convtime.conv.advice import measured_advice
from convtime.conv.call import (
    CUDNN_BACKENDS,
    DGRAD,
    FPROP,
    WGRAD,
    ConvCall,
    ConvTensors,
    TensorLayout,
)
from convtime.conv.explain.binding import BoundCall, bind, function_of, prepare
from convtime.conv.explain.differences import differences
from convtime.conv.explain.explanation import Explanation, PassExplanation, Side
from convtime.conv.explain.reasons import why
from convtime.conv.identity import compare_bits, convtime_call
from convtime.conv.plan_cache import plan_cache
from convtime.conv.plan_choice import Plan, PlanChoice
from convtime.conv.plan_oracle import PlanOracle
from convtime.conv.threads import in_fresh_thread
from convtime.core.provenance import provenance
from convtime.timing.candidate import Candidate
from convtime.timing.compare import compare
from convtime.timing.comparison import Comparison
from convtime.timing.signature import options_of, takes_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from convtime.timing.options import ConditionOptions

_NOT_CUDNN = "PyTorch does not give this pass to cuDNN"


@takes_options()
def explain(
    fn: Callable[..., object] | Candidate,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    backward: bool | None = None,
    budget: float = 0.3,
    **options: Unpack[ConditionOptions],
) -> Explanation:
    """Explain which kernels PyTorch runs for a convolution, and which kernels convtime runs.

    A child process finds the cuDNN plan that PyTorch selects (see convtime.conv.plan_oracle). It
    takes some seconds to start.

    Args:
        fn: One of conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d and conv_transpose3d
            from torch.nn.functional or convtime.ops; or a Conv1d, Conv2d, Conv3d, ConvTranspose1d,
            ConvTranspose2d or ConvTranspose3d module from torch.nn or convtime.nn. Parametrized,
            normed and pruned modules are allowed. Subclasses, and layers with a replaced forward
            or with pre-hooks of other kinds, are rejected because they may compute something else.
            A :class:`convtime.Candidate` has its arguments.
        args: Its positional arguments: the input, of shape (N, C, *spatial) or (C, *spatial), and
            for a function also the weight and so on. float16, bfloat16, float32 or float64, on a
            CPU or a GPU.
        kwargs: Its keyword arguments, including convtime's ``policy``.
        backward: Whether to explain the gradient passes too: dgrad and wgrad. None (default): those
            that input and weight request with requires_grad.
        budget: Seconds for timing each pass, and again as many for its alternatives: other layouts,
            dtypes and sizes.
        {options}

    Raises:
        TypeError: fn is not a convolution, or may be more than one.
        ValueError: the device or dtype is unsupported, or backward is not a bool. PyTorch's own
            errors for invalid arguments propagate.
    """
    if backward is not None and not isinstance(backward, bool):
        raise ValueError(f"backward must be True, False or None, got {backward!r}")
    if isinstance(fn, Candidate) and (args or kwargs):
        raise TypeError(
            f"explain got the Candidate {fn.name!r} and arguments; pass these to the Candidate"
        )
    candidate = fn if isinstance(fn, Candidate) else Candidate(fn, *args, kwargs=kwargs)
    timing = {"check": None, "interference": False, **options, "budget": budget}
    options_of("explain", {**options, "budget": budget}).check_ranges()
    function = function_of(candidate.fn)
    candidate.fn(*candidate.args, **candidate.kwargs)  # raise PyTorch's own errors first
    bound = bind(function, candidate.fn, candidate.args, candidate.kwargs)
    tensors, call = prepare(bound)
    device = tensors.x.device
    passes = [FPROP, *_backward_passes(bound, backward)]
    # Like the op outside of autocast: the tensors are already cast.
    with torch.autocast(device.type, enabled=False), PlanOracle(device) as oracle:
        if passes != [FPROP]:
            tensors, call = _with_grad_output(tensors, call)
        found = tuple(
            _explain_pass(name, call, tensors, bound.policy, oracle, timing) for name in passes
        )
    return Explanation(call, str(device), bound.policy, found, provenance(device))


def _backward_passes(bound: BoundCall, backward: bool | None) -> Iterator[str]:
    for name, tensor in ((DGRAD, bound.input), (WGRAD, bound.weight)):
        wanted = torch.is_grad_enabled() and tensor.requires_grad if backward is None else backward
        if wanted:
            yield name


def _with_grad_output(tensors: ConvTensors, call: ConvCall) -> tuple[ConvTensors, ConvCall]:
    with torch.no_grad():
        output = call.pytorch_call(FPROP, tensors)()
        grad_output = torch.randn_like(output)
    return (
        dataclasses.replace(tensors, grad_output=grad_output),
        dataclasses.replace(call, grad_output=TensorLayout.of(grad_output)),
    )


def _explain_pass(
    name: str,
    call: ConvCall,
    tensors: ConvTensors,
    policy: str | None,
    oracle: PlanOracle,
    timing: Mapping[str, Any],
) -> PassExplanation:
    theirs = call.pytorch_call(name, tensors)
    ours = convtime_call(call, name, tensors, policy)
    mode = contextlib.nullcontext() if name == FPROP else torch.no_grad()
    with mode:
        backend = call.backend(name, tensors)
        identical, repeats = compare_bits(theirs, theirs(), ours())
        comparison = compare(
            {"pytorch": theirs, "convtime": ours}, **{"device": tensors.x.device, **timing}
        )
    with torch.no_grad():
        advice = measured_advice(call, name, tensors, timing["budget"])
    pytorch = _side(comparison, "pytorch", *_pytorch_plan(backend, oracle, call, name))
    convtime = _side(comparison, "convtime", *_convtime_plan(backend, ours, call, name, tensors))
    return PassExplanation(
        name=name,
        backend=backend,
        why=why(backend, call, tensors),
        pytorch=pytorch,
        convtime=convtime,
        ratio=comparison.ratio("convtime"),
        verdict=comparison.verdict("convtime"),
        bit_identical=identical,
        pytorch_repeats=repeats,
        differences=tuple(differences(pytorch, convtime, bits_differ=repeats and not identical)),
        advice=advice,
    )


def _side(comparison: Comparison, who: str, plan: Plan | None, no_plan: str) -> Side:
    measurement = comparison.measurements[who]
    return Side(plan, no_plan, measurement.activities, measurement.median, measurement.method.used)


def _pytorch_plan(
    backend: str, oracle: PlanOracle, call: ConvCall, name: str
) -> tuple[Plan | None, str]:
    if backend not in CUDNN_BACKENDS:
        return None, _NOT_CUDNN
    log = oracle.ask(call, [name])[name]
    return log.plan, "" if log.plan is not None else f"not known: {log.unknown}"


def _convtime_plan(
    backend: str,
    ours: Callable[[], torch.Tensor],
    call: ConvCall,
    name: str,
    tensors: ConvTensors,
) -> tuple[Plan | None, str]:
    if backend not in CUDNN_BACKENDS:
        return None, _NOT_CUDNN
    # A new thread has no built plan, so it looks up its choice and makes it the last one used.
    in_fresh_thread(ours, tensors.x.device)
    for choice in reversed(plan_cache()):
        if _is_choice_for(choice, call, name):
            return choice.plan, ""
    return None, "convtime.plan_cache() has no choice for this problem"


def _is_choice_for(choice: PlanChoice, call: ConvCall, name: str) -> bool:
    told = call.problem.cudnn_problem()
    sizes = (choice.x, choice.w, choice.y)
    return (
        choice.pass_name == call.cudnn_pass(name)
        and choice.dtype == call.dtype
        and [tensor and tensor.sizes for tensor in sizes] == [told.x, told.w, told.y]
        and (choice.stride, choice.padding, choice.dilation)
        == (told.stride, told.padding, told.dilation)
    )
