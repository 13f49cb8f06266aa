"""Run a convolution in PyTorch and in convtime, and find the plans and kernels of both."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from convtime.conv.advice import measured_advice
from convtime.conv.binding import BoundCall, bound_call, prepare
from convtime.conv.call import (
    CUDNN_BACKENDS,
    DGRAD,
    FPROP,
    WGRAD,
    ConvCall,
    ConvTensors,
    TensorLayout,
    memory_format,
)
from convtime.conv.explanation import Explanation, PassExplanation, Side
from convtime.conv.identity import compare_bits, convtime_call
from convtime.conv.plan_choice import Plan, PlanChoice
from convtime.conv.plan_oracle import PlanOracle
from convtime.conv.plans.loading import plan_cache
from convtime.conv.show_plan import in_words
from convtime.conv.threads import in_fresh_thread
from convtime.device.provenance import provenance
from convtime.timing.activity import same_launches
from convtime.timing.candidate import Candidate
from convtime.timing.compare import compare
from convtime.timing.measurement import Measurement
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
        args: Its positional arguments: the input, of shape ``(N, C, *spatial)`` or
            ``(C, *spatial)``, and for a function also the weight and so on. float16, bfloat16,
            float32 or float64, on a CPU or a GPU.
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
    timing = {"check": None, "interference": False, **options, "budget": budget}
    options_of("explain", {**options, "budget": budget}).check_ranges()
    bound = bound_call("explain", fn, args, kwargs, backward)
    tensors, call = prepare(bound)
    device = tensors.x.device
    passes = [FPROP, *backward_passes(bound, backward)]
    # Like the op outside of autocast: the tensors are already cast.
    with torch.autocast(device.type, enabled=False), PlanOracle(device) as oracle:
        if passes != [FPROP]:
            tensors, call = with_grad_output(tensors, call)
        found = tuple(
            _explain_pass(name, call, tensors, bound.policy, oracle, timing) for name in passes
        )
    return Explanation(call, str(device), bound.policy, found, provenance(device))


def backward_passes(bound: BoundCall, backward: bool | None) -> Iterator[str]:
    """Yield the gradient passes that are requested, or that input and weight request."""
    for name, tensor in ((DGRAD, bound.input), (WGRAD, bound.weight)):
        wanted = torch.is_grad_enabled() and tensor.requires_grad if backward is None else backward
        if wanted:
            yield name


def with_grad_output(tensors: ConvTensors, call: ConvCall) -> tuple[ConvTensors, ConvCall]:
    """Add a random gradient of the output, in the layout of PyTorch's output."""
    with torch.no_grad():
        grad_output = torch.randn_like(call.pytorch_call(FPROP, tensors)())
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
    with contextlib.nullcontext() if name == FPROP else torch.no_grad():
        backend = call.backend(name, tensors)
        identical, repeats = compare_bits(theirs, theirs(), ours())
        comparison = compare(
            {"pytorch": theirs, "convtime": ours}, **{"device": tensors.x.device, **timing}
        )
    with torch.no_grad():
        advice = measured_advice(call, name, tensors, timing["budget"])
    plans: list[tuple[Plan | None, str]] = [(None, _NOT_CUDNN)] * 2
    if backend in CUDNN_BACKENDS:
        plans = [_pytorch_plan(oracle, call, name), _convtime_plan(ours, call, name, tensors)]
    pytorch = _side(comparison.measurements["pytorch"], *plans[0])
    convtime = _side(comparison.measurements["convtime"], *plans[1])
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


def _side(measurement: Measurement, plan: Plan | None, no_plan: str) -> Side:
    return Side(plan, no_plan, measurement.activities, measurement.median, measurement.method.used)


def _pytorch_plan(oracle: PlanOracle, call: ConvCall, name: str) -> tuple[Plan | None, str]:
    log = oracle.ask(call, [name])[name]
    return log.plan, "" if log.plan is not None else f"not known: {log.unknown}"


def _convtime_plan(
    ours: Callable[[], torch.Tensor], call: ConvCall, name: str, tensors: ConvTensors
) -> tuple[Plan | None, str]:
    # A new thread has no built plan, so it looks up its choice and makes it the last one used.
    in_fresh_thread(ours, tensors.x.device)
    for choice in reversed(plan_cache()):
        if _is_choice_for(choice, call, name):
            return choice.plan, ""
    return None, "convtime.conv.plan_cache() has no choice for this problem"


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


def differences(pytorch: Side, convtime: Side, *, bits_differ: bool) -> Iterator[str]:
    """Describe each difference between PyTorch and convtime in one sentence.

    Args:
        pytorch: PyTorch's side.
        convtime: convtime's side.
        bits_differ: Whether the results differ although PyTorch's own result is reproducible.
    """
    theirs, ours = pytorch.plan, convtime.plan
    if theirs is not None and ours is not None:
        for name in (
            "tag", "workspace_bytes", "numerical_notes", "behavior_notes", "x", "w", "y",
            "compute_type", "padding", "stride", "dilation",
        ):  # fmt: skip
            their_value, our_value = getattr(theirs, name), getattr(ours, name)
            if their_value != our_value and None not in (their_value, our_value):
                yield (
                    f"{name}: PyTorch has {in_words(their_value)}, convtime {in_words(our_value)}"
                )
    elif pytorch.no_plan != convtime.no_plan:
        yield (
            f"the plans cannot be compared: PyTorch's is {_tag_or_why(pytorch)}, convtime's "
            f"{_tag_or_why(convtime)}"
        )
    if not same_launches(pytorch.kernels, convtime.kernels):
        yield (
            f"the kernels, {len(pytorch.kernels)} of PyTorch and {len(convtime.kernels)} of "
            "convtime, differ in count, name, grid or block"
        )
    if bits_differ:
        yield "the results differ in their bits, and PyTorch's own do not"


def _tag_or_why(side: Side) -> str:
    return side.plan.tag if side.plan is not None else side.no_plan


def why(backend: str, call: ConvCall, tensors: ConvTensors) -> str:
    """Explain in one sentence why PyTorch selects this backend.

    The rules follow ATen's native/Convolution.cpp; the backend itself is from PyTorch's own
    function.
    """
    problem, flags, on_gpu = call.problem, call.flags, tensors.x.is_cuda
    depthwise = problem.in_channels == problem.groups > 1 and not problem.transposed
    no_cudnn = "" if flags.enabled else "torch.backends.cudnn.enabled is off"
    chosen = ""
    if flags.depthwise_kernel not in (None, "auto"):
        chosen = f"torch.backends.cudnn.depthwise_kernel is {flags.depthwise_kernel!r}"
    if "Empty" in backend:
        return "a tensor without elements leaves nothing to compute"
    if backend.startswith("CudaDepthwise"):
        return (
            f"each channel is its own group, and {no_cudnn or chosen or _why_not_depthwise(call)}"
        )
    if backend == "Cudnn" and depthwise:
        return f"each channel is its own group, and {chosen or _why_depthwise(call, tensors)}"
    if backend in CUDNN_BACKENDS:
        return "the tensors are on a GPU and nothing rules cuDNN out"
    if on_gpu:
        return f"{no_cudnn or _why_not_cudnn(call)}, so PyTorch's own kernels run"
    if backend.startswith("Mkldnn"):
        return "the tensors are on a CPU and oneDNN takes their dtype and sizes"
    return "the tensors are on a CPU, and PyTorch prefers it over oneDNN for their dtype and sizes"


def _why_not_cudnn(call: ConvCall) -> str:
    for padding, stride in zip(call.problem.output_padding, call.problem.stride, strict=True):
        if padding >= stride:
            return f"cuDNN is not used if output_padding ({padding}) is the stride or more"
    return "cuDNN cannot take this problem"


def _why_not_depthwise(call: ConvCall) -> str:
    problem = call.problem
    limits = (
        (problem.rank == 3, "in one or two spatial dimensions"),
        (call.dtype != "float16", f"in float16, not in {call.dtype}"),
        (set(problem.dilation) != {1}, f"without dilation, got dilation {problem.dilation}"),
        (
            len(set(problem.stride)) > 1 and problem.size[0] != 1,
            f"with equal strides, got {problem.stride}",
        ),
        (problem.in_channels < 32, f"with at least 32 channels, got {problem.in_channels}"),
        (True, "for some combinations of kernel size, width, stride, channels and batch"),
    )
    limit = next(text for is_exceeded, text in limits if is_exceeded)
    return f"with contiguous tensors PyTorch uses cuDNN for depthwise convolutions only {limit}"


def _why_depthwise(call: ConvCall, tensors: ConvTensors) -> str:
    rank = call.problem.rank
    # One spatial dimension becomes two, after the input was made contiguous.
    seen = (tensors.w.unsqueeze(2),) if rank == 1 else (tensors.x, tensors.w)
    nhwc = memory_format("nhwc", seen[0].dim())
    if any(
        tensor.is_contiguous(memory_format=nhwc) and not tensor.is_contiguous() for tensor in seen
    ):
        return "with channels_last tensors PyTorch uses cuDNN for depthwise convolutions"
    return (
        "in float16 PyTorch uses cuDNN for depthwise convolutions with this kernel size, width, "
        "stride, channels and batch"
    )
