"""Explain why PyTorch selects a backend for a convolution."""

from __future__ import annotations

import torch

from convtime.conv.call import CUDNN_BACKENDS, ConvCall, ConvTensors


def why(backend: str, call: ConvCall, tensors: ConvTensors) -> str:
    """Explain in one sentence why PyTorch selects this backend.

    The rules follow ATen's native/Convolution.cpp; the backend itself is from PyTorch's own
    function.
    """
    problem, flags, on_gpu = call.problem, call.flags, tensors.x.is_cuda
    depthwise = problem.in_channels == problem.groups > 1 and not problem.transposed
    no_cudnn = "" if flags.enabled else "torch.backends.cudnn.enabled is off"
    if "Empty" in backend:
        return "a tensor without elements leaves nothing to compute"
    if backend.startswith("CudaDepthwise"):
        return f"each channel is its own group, and {no_cudnn or _why_not_depthwise(call)}"
    if backend == "Cudnn" and depthwise:
        return f"each channel is its own group, and {_why_depthwise(call, tensors)}"
    if backend in CUDNN_BACKENDS:
        return "the tensors are on a GPU and nothing rules cuDNN out"
    if on_gpu:
        return f"{no_cudnn or _why_not_cudnn(call)}, so PyTorch's own kernels run"
    if backend.startswith("Mkldnn"):
        return "the tensors are on a CPU and oneDNN takes their dtype and sizes"
    return "the tensors are on a CPU, and PyTorch prefers it over oneDNN for their dtype and sizes"


def _why_not_cudnn(call: ConvCall) -> str:
    problem = call.problem
    for padding, stride in zip(problem.output_padding, problem.stride, strict=True):
        if padding >= stride:
            return f"cuDNN is not used if output_padding ({padding}) is the stride or more"
    return "cuDNN cannot take this problem"


def _why_not_depthwise(call: ConvCall) -> str:
    problem, kernel = call.problem, call.flags.depthwise_kernel
    if kernel not in (None, "auto"):
        return f"torch.backends.cudnn.depthwise_kernel is {kernel!r}"
    beginning = "with contiguous tensors PyTorch uses cuDNN for depthwise convolutions only "
    if problem.rank == 3:
        return f"{beginning}in one or two spatial dimensions"
    if call.dtype != "float16":
        return f"{beginning}in float16, not in {call.dtype}"
    if any(step != 1 for step in problem.dilation):
        return f"{beginning}without dilation, got dilation {problem.dilation}"
    if len(set(problem.stride)) > 1 and problem.size[0] != 1:
        return f"{beginning}with equal strides, got {problem.stride}"
    if problem.in_channels < 32:
        return f"{beginning}with at least 32 channels, got {problem.in_channels}"
    return f"{beginning}for some combinations of kernel size, width, stride, channels and batch"


def _why_depthwise(call: ConvCall, tensors: ConvTensors) -> str:
    problem, kernel = call.problem, call.flags.depthwise_kernel
    if kernel not in (None, "auto"):
        return f"torch.backends.cudnn.depthwise_kernel is {kernel!r}"
    # One spatial dimension becomes two, after the input was made contiguous.
    seen = (tensors.w.unsqueeze(2),) if problem.rank == 1 else (tensors.x, tensors.w)
    memory_format = torch.channels_last_3d if problem.rank == 3 else torch.channels_last
    if any(
        tensor.is_contiguous(memory_format=memory_format) and not tensor.is_contiguous()
        for tensor in seen
    ):
        return "with channels_last tensors PyTorch uses cuDNN for depthwise convolutions"
    return (
        "in float16 PyTorch uses cuDNN for depthwise convolutions with this kernel size, width, "
        "stride, channels and batch"
    )
