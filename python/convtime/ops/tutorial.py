"""Kernels for learning: ReLU with max-pooling, and activations, optimized step by step.

All steps compute the same result and differ in their times; each is available with several compiler
options. They run only on a GPU, and have no gradients. For real use, call
`convtime.ops.relu_max_pool2d`.

Attributes:
    POOL_STEPS: steps of `relu_max_pool2d`. ``naive``: one output per thread, with neighboring
        threads far apart in memory; ``coalesced``: neighboring threads are adjacent in memory;
        ``constant_memory``: reads the geometry from constant memory; ``unrolled``: the window is a
        compile-time constant; ``shared_memory``: a block loads the input of its outputs once;
        ``vectorised``: a thread loads 16 bytes at a time.
    POOL_BUILDS: ``plain``; ``launch_bounds``: the compiler knows the number of threads per block;
        ``min_blocks``: also requires as many resident blocks as the thread limit allows;
        ``max_registers``: at most 24 registers per thread; ``fast_math``: ``--use_fast_math``.
    ACTIVATIONS: names for `activation`.
    ACTIVATION_STEPS: ``naive``: one element per thread; ``vectorised``: 16 bytes per thread.
    ACTIVATION_BUILDS: the builds that are available for activations.
"""

from __future__ import annotations

import dataclasses

import torch

from convtime.core.load import _C as _C  # registers the ops
from convtime.ops.arguments import check_tensors

POOL_STEPS = ("naive", "coalesced", "constant_memory", "unrolled", "shared_memory", "vectorised")
POOL_BUILDS = ("plain", "launch_bounds", "min_blocks", "max_registers", "fast_math")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh")
ACTIVATION_STEPS = ("naive", "vectorised")
ACTIVATION_BUILDS = ("plain", "fast_math")


@dataclasses.dataclass(frozen=True)
class KernelFacts:
    """The resources that a kernel uses on a GPU's multiprocessor.

    Attributes:
        registers: registers per thread.
        local_bytes: local memory per thread, for spilled registers.
        shared_bytes: shared memory per block.
        threads: threads per block.
        blocks: blocks that fit on a multiprocessor at a time.
        occupancy: resident threads relative to the multiprocessor's maximum.
    """

    registers: int
    local_bytes: int
    shared_bytes: int
    threads: int
    blocks: int
    occupancy: float

    def __str__(self) -> str:
        spilled = f", {self.local_bytes} bytes of local memory" if self.local_bytes else ""
        shared = (
            f", {self.shared_bytes} bytes of shared memory a block" if self.shared_bytes else ""
        )
        return (
            f"{self.registers} registers{spilled}{shared}: {self.blocks} blocks of {self.threads} "
            f"threads, {100 * self.occupancy:.0f} % of a multiprocessor's threads"
        )


def relu_max_pool2d(
    input: torch.Tensor,
    kernel_size: int,
    stride: int,
    padding: int,
    *,
    step: str,
    build: str = "plain",
) -> torch.Tensor:
    """2-D max-pooling of the input's ReLU, by one optimization step of the kernel.

    Args:
        input: shape (N, C, H, W), on a CUDA device, at most 2³⁰ elements; float16 or float32.
        kernel_size: height and width of the window, at least 1.
        stride: steps of the window, at least 1.
        padding: rows and columns around the input that are never the maximum, at most half of
            ``kernel_size``.
        step: a member of `POOL_STEPS`; ``unrolled`` and ``vectorised`` support 3×3 windows with a
            stride of 2 and a padding of 1, and 2×2 windows with a stride of 2 and no padding.
        build: a member of `POOL_BUILDS`.

    Returns:
        Shape (N, C, P, Q), with the memory layout of the input.

    Raises:
        TypeError: ``input`` is not a tensor.
        RuntimeError: step or build is unknown, or shapes, dtypes, devices or numbers are invalid.
    """
    check_tensors("tutorial_relu_max_pool2d", input=input)
    output: torch.Tensor = torch.ops.convtime.tutorial_relu_max_pool2d(
        input, kernel_size, stride, padding, step=step, build=build
    )
    return output


def relu_max_pool2d_facts(
    input: torch.Tensor,
    kernel_size: int,
    stride: int,
    padding: int,
    *,
    step: str,
    build: str = "plain",
) -> KernelFacts:
    """Return the resources of the kernel that `relu_max_pool2d` would launch on the input's GPU."""
    return _facts(
        "tutorial_relu_max_pool2d", input, kernel_size, stride, padding, step=step, build=build
    )


def activation(
    input: torch.Tensor,
    name: str,
    grad_output: torch.Tensor | None = None,
    *,
    step: str,
    build: str = "plain",
) -> torch.Tensor:
    """Compute an activation of each element, or its gradient.

    Args:
        input: on a CUDA device; float16 or float32.
        name: a member of `ACTIVATIONS`.
        grad_output: the gradient of the activation's output, with the input's shape and dtype. If
            given, the result is the input's gradient.
        step: a member of `ACTIVATION_STEPS`.
        build: a member of `ACTIVATION_BUILDS`.

    Raises:
        TypeError: ``input`` or ``grad_output`` is not a tensor.
        RuntimeError: name, step or build is unknown, or shapes, dtypes or devices are invalid.
    """
    tensors = {"input": input} | ({} if grad_output is None else {"grad_output": grad_output})
    check_tensors("tutorial_activation", **tensors)
    output: torch.Tensor = torch.ops.convtime.tutorial_activation(
        input, grad_output, name, step=step, build=build
    )
    return output


def activation_facts(
    input: torch.Tensor,
    name: str,
    grad_output: torch.Tensor | None = None,
    *,
    step: str,
    build: str = "plain",
) -> KernelFacts:
    """Return the resources of the kernel that `activation` would launch on the input's GPU."""
    return _facts("tutorial_activation", input, grad_output, name, step=step, build=build)


def _facts(op: str, input: torch.Tensor, *arguments: object, **kernel: str) -> KernelFacts:
    check_tensors(op, input=input)
    registers, local_bytes, shared_bytes, threads, blocks = getattr(
        torch.ops.convtime, f"{op}_facts"
    )(input, *arguments, **kernel)
    room = torch.cuda.get_device_properties(input.device).max_threads_per_multi_processor
    return KernelFacts(
        registers, local_bytes, shared_bytes, threads, blocks, threads * blocks / room
    )
