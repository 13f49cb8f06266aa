"""Kernels to learn from: ReLU with max-pooling, and activations, step by step.

All steps compute the same, and each can be had as the compiler was told to build it: it is their
times that differ. They are for a GPU alone, and have no gradients of their own. What is meant to
be used is `convtime.ops.relu_max_pool2d`.

Attributes:
    POOL_STEPS: of `relu_max_pool2d`. ``naive``: an output per thread, and neighbouring threads far
        apart in memory; ``coalesced``: as neighbours in memory; ``constant_memory``: with the
        geometry read from constant memory; ``unrolled``: with the window known to the compiler;
        ``shared_memory``: a block loads what its outputs need once; ``vectorised``: a thread loads
        16 bytes at a time.
    POOL_BUILDS: ``plain``; ``launch_bounds``: the compiler knows how many threads a block has;
        ``min_blocks``: and that as many blocks are to fit as there is room for threads;
        ``max_registers``: at most 24 registers per thread; ``fast_math``: ``--use_fast_math``.
    ACTIVATIONS: of `activation`.
    ACTIVATION_STEPS: ``naive``: an element per thread; ``vectorised``: 16 bytes per thread.
    ACTIVATION_BUILDS: of those, the ones that activations have.
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
    """What a kernel takes of a GPU's multiprocessor.

    Attributes:
        registers: of a thread.
        local_bytes: of a thread: memory for what registers had no room for.
        shared_bytes: shared memory of a block.
        threads: of a block.
        blocks: that a multiprocessor has room for at a time.
        occupancy: of the threads that a multiprocessor has room for, the share that these blocks
            have.
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
    """2-D max-pooling of the input's ReLU, by one step of the way to a fast kernel.

    Args:
        input: shape (N, C, H, W), on a CUDA device, at most 2³⁰ elements; float16 or float32.
        kernel_size: height and width of the window, at least 1.
        stride: steps of the window, at least 1.
        padding: rows and columns around the input that are never the maximum, at most half of
            ``kernel_size``.
        step: of `POOL_STEPS`; ``unrolled`` and ``vectorised`` are there for 3×3 windows with a
            stride of 2 and a padding of 1, and for 2×2 with a stride of 2 and none.
        build: of `POOL_BUILDS`.

    Returns:
        Shape (N, C, P, Q), laid out as the input.

    Raises:
        RuntimeError: for another step or build, and for shapes, dtypes, devices or numbers that do
            not fit.
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
    """What the kernel that `relu_max_pool2d` would launch takes of the input's GPU."""
    check_tensors("tutorial_relu_max_pool2d", input=input)
    facts = torch.ops.convtime.tutorial_relu_max_pool2d_facts(
        input, kernel_size, stride, padding, step=step, build=build
    )
    return _facts(facts, input.device)


def activation(
    input: torch.Tensor,
    name: str,
    grad_output: torch.Tensor | None = None,
    *,
    step: str,
    build: str = "plain",
) -> torch.Tensor:
    """An activation of each element, or its gradient.

    Args:
        input: on a CUDA device; float16 or float32.
        name: of `ACTIVATIONS`.
        grad_output: the gradient of the activation's output, of the input's shape and dtype; with
            it, the result is the input's gradient.
        step: of `ACTIVATION_STEPS`.
        build: of `ACTIVATION_BUILDS`.

    Raises:
        RuntimeError: for another activation, step or build, and for shapes, dtypes or devices that
            do not fit.
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
    """What the kernel that `activation` would launch takes of the input's GPU."""
    check_tensors("tutorial_activation", input=input)
    facts = torch.ops.convtime.tutorial_activation_facts(
        input, grad_output, name, step=step, build=build
    )
    return _facts(facts, input.device)


def _facts(facts: list[int], device: torch.device) -> KernelFacts:
    registers, local_bytes, shared_bytes, threads, blocks = facts
    room = torch.cuda.get_device_properties(device).max_threads_per_multi_processor
    return KernelFacts(
        registers, local_bytes, shared_bytes, threads, blocks, threads * blocks / room
    )
