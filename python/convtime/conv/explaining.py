"""Run a convolution in PyTorch and in convtime, and find the plans and kernels of both."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from convtime.conv.advice import measured_advice
from convtime.conv.binding import bound_call, prepare
from convtime.conv.call import (
    CUDNN_BACKENDS,
    FPROP,
    ConvCall,
    ConvTensors,
    TensorLayout,
    is_channels_last,
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
from convtime.timing.candidate import Candidate, with_keywords
from convtime.timing.compare import compare
from convtime.timing.measurement import Measurement
from convtime.timing.options import ExplainOptions, options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


_NOT_CUDNN = "PyTorch does not give this pass to cuDNN"
_NO_CHOICE = "convtime.conv.plan_cache() has no choice for this problem"


@with_keywords(ExplainOptions)
def explain(
    fn: Callable[..., object] | Candidate,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    backward: bool | None = None,
    budget: float = 0.3,
    **options: Unpack[ExplainOptions],
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
        method: ``kernel`` (device time of the kernels, copies and memsets that the call issues on
            any stream, from CUPTI records), ``event`` (time between two CUDA events on the current
            stream, minus the overhead of the events), ``graph`` (time of one of many calls captured
            in CUDA graphs, minus the gap between them), ``sync`` (host time between two idle states
            of the device), ``cpu`` (host time of the call, on an idle device) or ``auto``: for work
            on a GPU kernel, or event if CUPTI is unavailable (sync if the work uses several GPUs);
            for work on the CPU cpu.
        metric: which time of a call's kernels, copies and memsets is the result and is compared:
            ``busy`` (time during which at least one of them ran), ``span`` (from the first start to
            the last end, including gaps) or ``sum`` (sum of their durations, more than busy if they
            overlap). Only for the method ``kernel``; other methods measure the elapsed time.
        queue: ``gate`` blocks the GPU until a batch of calls is issued, so that short calls are not
            timed as gaps between launches; ``sleep`` does the same with a kernel that sleeps for an
            estimated time; ``none`` does not block the GPU. A callable that synchronizes with the
            GPU cannot be queued; the result then says so.
        cache: ``cold`` overwrites the cache before each call, outside the timed region: the L2
            cache of a GPU, or all caches of the CPU, which takes milliseconds. The call then also
            causes the write-back of that data, as after a kernel that writes; ``cold-clean`` reads
            other data into a GPU's L2 cache instead, so that nothing needs to be written back, as
            after a kernel that reads; ``rotate`` (GPU only) gives each call different copies of its
            tensors, enough copies that each is evicted before it is reused; ``warm`` leaves the
            cache in the state after the previous call; ``auto`` is cold on a GPU, and leaves a
            CPU's cache alone.
        placement: ``random`` gives each call different copies of its tensors, at random multiples
            of 512 bytes, so that the times do not represent a single choice of addresses, which
            alone changes them by percents; ``aligned`` does so at multiples of 2 MiB; ``as-is``
            uses the tensors passed by the caller; ``auto`` is random for work on a GPU if all of
            its tensors can be copied and no call after the first modifies them. If the request
            cannot be met, the result says why.
        pages: memory pages of the tensors that calls allocate, for work on the CPU. ``fresh``:
            pages that were never touched, which the operating system maps and zeroes during the
            call, as in a first call; ``retained``: pages of earlier results, which are already
            mapped, as in a program that reuses its memory; ``as-is``: pages from the C library's
            allocator, which depend on earlier allocations of the process; ``auto``: retained on the
            CPU, as-is on a GPU.
        regime: ``burst`` lets the GPU idle between batches of calls, long enough to keep it at the
            highest clock that it reaches with these calls; ``sustained`` runs calls back to back
            until times and clocks stop drifting, for 2.5 s to 8 s, and times some of them without a
            pause; ``as-is`` uses the GPU in its current state; ``auto`` starts like as-is and
            changes to ``burst`` if the calls lower the clock. If the GPU does not reach the
            requested state, the result's ``regime`` is ``as-is``, and the result says why.
            ``budget`` does not count idle time, but counts the calls between the timed ones. After
            10 s of idle time in total, sampling stops as if the budget were used up.
        clocks: ``observe`` does not change the GPU's clocks; ``lock`` locks them during the timing
            (see :func:`convtime.locked_clocks`).
        pin: number of the CPU that the calling thread is pinned to during the timing. Existing
            threads, such as torch's, are not moved; threads that the calls start inherit the pin.
        device: device of the work. Default: the GPU of the first CUDA tensor found in arguments,
            closure or module parameters; the CPU if only CPU tensors are found; the current GPU (if
            there is one) if no tensor is found.
        stream: stream that is current during the calls. Default: the current stream.
        warmup: ``steady``: until times and clocks stop drifting, for 0.01 s to 1 s (or to the
            budget, if that is less), and the steady calls already count as samples; on a GPU with
            ``regime='as-is'`` at least 0.08 s, because its clock may take that long to fall; an
            int: number of calls; a float: seconds. At least one call is always made, and sixteen
            more if a call on the CPU is too short for the host's clock.
        stop: when sampling stops, in addition to ``max_samples`` and ``budget``: ``interval`` (half
            the width of the median's 95 % interval is at most ``tolerance`` times the median),
            ``noise`` (the standard deviation is at most ``tolerance`` times the mean, or no longer
            changes), ``entropy`` (the distribution of the samples no longer changes), ``verdict``
            (``compare`` only: the verdict on each candidate against the first is settled),
            ``count`` (only max_samples) or ``budget`` (only the budget, and max_samples if given).
        tolerance: relative tolerance of ``interval`` and ``noise``.
        margin: relative difference from the baseline's time that counts as equal.
        min_samples: minimum number of samples, even beyond the budget. Five or fewer give no 95 %
            interval.
        max_samples: maximum number of samples, for every ``stop``. Default: 10,000, or unlimited
            with ``stop='budget'``.
        budget: seconds after which sampling stops, not counting warm-up and idle time.
        quick: whether the whole call takes about 10 ms per candidate: one untimed call in place of
            a steady warm-up, fewer placements, no idling (``regime='auto'`` becomes ``as-is``), and
            sampling until the 10 ms are over, if no other limit ends it before. A longer call is
            timed five times, unless ``min_samples`` is given; five give no 95 % interval. For a
            choice among many candidates, such as an autotuner's.
        timeout: seconds after which the whole call ends, including waiting and warm-up: with the
            samples taken so far (the result's ``stop_reason`` is ``timeout``), or with a
            TimeoutError if there are none. It ends every wait for the GPU, which may continue its
            work; it does not interrupt a call that does not return. None: no limit.
        exclusive: whether processes and threads of this user take turns on a GPU: each waits until
            the GPU is free, for at most a minute, and blocks the others while it times. The result
            says how long it waited, and why if it did not have the GPU to itself.
        log: called after each batch with a :class:`convtime.BatchRecord`: ``print``, a logger's
            ``info`` or a list's ``append``. An exception that it raises ends the timing.

    Raises:
        TypeError: fn is not a convolution, or may be more than one.
        ValueError: the device or dtype is unsupported, or backward is not a bool. PyTorch's own
            errors for invalid arguments propagate.
    """
    timing = {"check": None, "interference": False, **options, "budget": budget}
    options_of("explain", ExplainOptions, options, budget=budget).check_ranges()
    bound = bound_call("explain", fn, args, kwargs, backward)
    tensors, call = prepare(bound)
    device = tensors.x.device
    passes = bound.passes(backward)
    # Like the op outside of autocast: the tensors are already cast.
    with torch.autocast(device.type, enabled=False), PlanOracle(device) as oracle:
        if passes != [FPROP]:
            tensors, call = with_grad_output(tensors, call)
        explained = tuple(
            _explain_pass(name, call, tensors, bound.policy, oracle, timing) for name in passes
        )
    return Explanation(call, str(device), bound.policy, explained, provenance(device))


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
    their_plan, our_plan, why_not_theirs, why_not_ours = None, None, _NOT_CUDNN, _NOT_CUDNN
    if backend in CUDNN_BACKENDS:
        log = oracle.ask(call, [name])[name]
        their_plan, why_not_theirs = log.plan, f"not known: {log.unknown}"
        our_plan, why_not_ours = _convtime_plan(ours, call, name, tensors), _NO_CHOICE
    pytorch = _side(comparison.measurements["pytorch"], their_plan, why_not_theirs)
    convtime = _side(comparison.measurements["convtime"], our_plan, why_not_ours)
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


def _side(measurement: Measurement, plan: Plan | None, why_none: str) -> Side:
    return Side(
        plan,
        why_none if plan is None else "",
        measurement.activities,
        measurement.median,
        measurement.method.used,
    )


def _convtime_plan(
    ours: Callable[[], torch.Tensor], call: ConvCall, name: str, tensors: ConvTensors
) -> Plan | None:
    # A new thread has no built plan, so it looks up its choice and makes it the last one used.
    in_fresh_thread(ours, tensors.x.device)
    plans = (each.plan for each in reversed(plan_cache()) if _is_choice_for(each, call, name))
    return next(plans, None)


def _is_choice_for(choice: PlanChoice, call: ConvCall, name: str) -> bool:
    problem = call.problem.cudnn_problem()
    shapes = [tensor and tensor.sizes for tensor in (choice.x, choice.w, choice.y)]
    return (
        choice.pass_name == call.cudnn_pass(name)
        and choice.dtype == call.dtype
        and shapes == [problem.input_shape, problem.weight_shape, problem.output_shape]
        and (choice.stride, choice.padding, choice.dilation)
        == (problem.stride, problem.padding, problem.dilation)
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
    if any(map(is_channels_last, seen)):
        return "with channels_last tensors PyTorch uses cuDNN for depthwise convolutions"
    return (
        "in float16 PyTorch uses cuDNN for depthwise convolutions with this kernel size, width, "
        "stride, channels and batch"
    )
