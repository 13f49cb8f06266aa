"""Explain why PyTorch selects a backend for a convolution."""

from __future__ import annotations

from convtime.conv.call import CUDNN_BACKENDS, ConvCall, ConvTensors
from convtime.conv.layouts import memory_format


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
