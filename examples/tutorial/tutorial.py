"""Kernels to learn from: ReLU with max-pooling, and activations, optimized step by step.

All steps compute the same result and differ in their times; each is available with several compiler
options. PyTorch compiles them when they are first used (`torch.cuda._compile_kernel`). They run
only on a GPU, on float16 and float32, on at most 2³⁰ elements, and have no gradients. For real use,
call `convtime.ops.relu_max_pool2d`.

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

import ctypes
import dataclasses
import functools
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

POOL_STEPS = ("naive", "coalesced", "constant_memory", "unrolled", "shared_memory", "vectorised")
POOL_BUILDS = ("plain", "launch_bounds", "min_blocks", "max_registers", "fast_math")
ACTIVATIONS = {"relu": "kRelu", "gelu": "kGelu", "gelu_tanh": "kGeluTanh"}
ACTIVATION_STEPS = ("naive", "vectorised")
ACTIVATION_BUILDS = ("plain", "fast_math")  # they need few registers: no build limits these
THREADS = 128  # per block, as in memory.cuh
COMPILED_WINDOW = (3, 2, 1)  # of the steps unrolled and vectorised, as in pool_steps.cuh

_TYPES = {torch.float16: "Half", torch.float32: "float"}
_SIZES = "batch, channels, height, width, out_height, out_width, kernel, stride, padding"


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


@dataclasses.dataclass(frozen=True)
class _Launch:
    """A step's source, and how it is launched."""

    header: str
    step: str  # the function object, in C++
    parameters: str  # of the kernel, in C++
    arguments: str  # of the function object, in C++
    numbers: tuple[int, ...]  # arguments after the tensors
    blocks: int
    build: str
    name: str
    shared_bytes: int = 0
    constants: str = ""  # macros that the header reads

    def kernel(self, device: torch.device) -> Any:
        with torch.cuda.device(device):
            bounds = {
                "launch_bounds": f"__launch_bounds__({THREADS})",
                "min_blocks": f"__launch_bounds__({THREADS}, {_most_threads(device) // THREADS})",
                "max_registers": "__maxnreg__(24)",
            }.get(self.build, "")
            name = f"{self.name}_{self.build}"
            source = (
                f'{self.constants}#include "{self.header}"\n'
                f'extern "C" __global__ void {bounds} {name}({self.parameters}) '
                f"{{ {self.step}()({self.arguments}); }}"
            )
            return _compiled(source, name, self.build == "fast_math", torch.cuda.current_device())


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
        input: shape (N, C, H, W), on a CUDA device, not empty.
        kernel_size: height and width of the window.
        stride: steps of the window.
        padding: rows and columns around the input that are never the maximum, at most half of
            ``kernel_size``.
        step: a member of `POOL_STEPS`; ``unrolled`` and ``vectorised`` support `COMPILED_WINDOW`.
        build: a member of `POOL_BUILDS`.

    Returns:
        Shape (N, C, P, Q), with the memory layout of the input.

    Raises:
        ValueError: step, build or dtype is unknown, or the step does not support the window.
    """
    launch, output_size = _pool(input, kernel_size, stride, padding, step, build)
    layout = torch._prims_common.suggest_memory_format(input)
    dense = input.contiguous(memory_format=layout)
    output = torch.empty(output_size, dtype=input.dtype, device=input.device, memory_format=layout)
    return _run(launch, [dense, output], output)


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
    return _facts(_pool(input, kernel_size, stride, padding, step, build)[0], input.device)


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
        input: on a CUDA device, not empty.
        name: a member of `ACTIVATIONS`.
        grad_output: the gradient of the activation's output, with the input's shape and dtype. If
            given, the result is the input's gradient.
        step: a member of `ACTIVATION_STEPS`.
        build: a member of `ACTIVATION_BUILDS`.

    Raises:
        ValueError: name, step, build or dtype is unknown.
    """
    function = _choice("name", name, ACTIVATIONS)
    _choice("step", step, ACTIVATION_STEPS)
    _choice("build", build, ACTIVATION_BUILDS)
    type_ = _type(input)
    each = 1 if step == "naive" else 16 // input.itemsize
    gradient = "false" if grad_output is None else "true"
    launch = _Launch(
        header="activation_steps.cuh",
        step=f"ElementsPerThread<{type_}, {each}, Activation::{ACTIVATIONS[function]}, {gradient}>",
        parameters=f"const {type_}* input, const {type_}* grad, {type_}* output, int count",
        arguments="input, grad, output, count",
        numbers=(input.numel(),),
        blocks=ceil(input.numel() / (THREADS * each)),
        build=build,
        name=f"{name}_{step}",
    )
    dense = input.contiguous()
    # Without a gradient, the kernel does not read its second argument.
    grad = dense if grad_output is None else grad_output.contiguous()
    output = torch.empty_like(dense)
    return _run(launch, [dense, grad, output], output)


def _pool(
    input: torch.Tensor, kernel: int, stride: int, padding: int, step: str, build: str
) -> tuple[_Launch, tuple[int, int, int, int]]:
    _choice("step", step, POOL_STEPS)
    _choice("build", build, POOL_BUILDS)
    type_ = _type(input)
    window = (kernel, stride, padding)
    if step in ("unrolled", "vectorised") and window != COMPILED_WINDOW:
        raise ValueError(
            f"step {step!r} supports the window {COMPILED_WINDOW} (kernel size, stride, padding), "
            f"got {window}; use another step"
        )
    batch, channels, height, width = input.shape
    rows, columns = ((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
    last = torch._prims_common.suggest_memory_format(input) == torch.channels_last
    threads = batch * channels * rows * columns
    shared_bytes = 0
    constants = ""
    parameters = "int " + _SIZES.replace(", ", ", int ")
    arguments = f"PoolSizes{{{_SIZES}, {str(last).lower()}}}"
    numbers: tuple[int, ...] = (*input.shape, rows, columns, *window)
    blocks = None
    if step == "vectorised":
        lanes = 16 // input.itemsize
        groups = ceil(channels / lanes) * columns if last else channels * ceil(columns / lanes * 2)
        threads = batch * rows * groups
        function = f"{'ChannelsPerThread' if last else 'ColumnsPerThread'}<{type_}>"
    elif step == "shared_memory":
        tile = (32, 2, 2) if last else (1, 4, 32)  # channels, rows and columns of SharedTile
        tiles = map(ceil, (channels / tile[0], rows / tile[1], columns / tile[2]))
        blocks = batch * functools.reduce(int.__mul__, tiles)
        pixels = [(outputs - 1) * stride + kernel for outputs in tile[1:]]
        shared_bytes = tile[0] * pixels[0] * pixels[1] * input.itemsize
        function = f"SharedTile<{type_}, {str(last).lower()}>"
    else:
        # Channels are the fastest dimension of channels_last.
        neighbors = "kChannels" if last == (step != "naive") else "kColumns"
        geometry = {"constant_memory": "ConstantMemory", "unrolled": "CompiledWindow"}.get(
            step, "Parameters"
        )
        function = f"OutputPerThread<{type_}, Neighbours::{neighbors}, {geometry}>"
        if step == "constant_memory":
            sizes = ", ".join(map(str, numbers))
            constants = f"#define KNOWN_SIZES {{{sizes}, {str(last).lower()}}}\n"
            parameters, arguments, numbers = "int place", "place", (0,)
    launch = _Launch(
        header="pool_steps.cuh",
        step=function,
        parameters=f"const {type_}* input, {type_}* output, {parameters}",
        arguments=f"input, output, {arguments}",
        numbers=numbers,
        blocks=ceil(threads / THREADS) if blocks is None else blocks,
        build=build,
        name=step,
        shared_bytes=shared_bytes,
        constants=constants,
    )
    return launch, (batch, channels, rows, columns)


def _choice(what: str, value: str, allowed: Any) -> str:
    if value not in allowed:
        raise ValueError(f"{what} must be one of {tuple(allowed)}, got {value!r}")
    return value


def _type(input: torch.Tensor) -> str:
    if input.dtype not in _TYPES:
        raise ValueError(f"dtype must be float16 or float32, got {input.dtype}")
    return _TYPES[input.dtype]


def _run(launch: _Launch, tensors: list[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
    with torch.cuda.device(output.device):
        launch.kernel(output.device)(
            grid=(launch.blocks, 1, 1),
            block=(THREADS, 1, 1),
            args=[*tensors, *launch.numbers],
            shared_mem=launch.shared_bytes,
        )
    return output


def _facts(launch: _Launch, device: torch.device) -> KernelFacts:
    function = launch.kernel(device).func
    driver = torch.cuda._utils._get_gpu_runtime_library()

    def ask(query: str, *arguments: object) -> int:
        value = ctypes.c_int()
        torch.cuda._utils._check_cuda(getattr(driver, query)(ctypes.byref(value), *arguments))
        return value.value

    # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, _LOCAL_SIZE_BYTES and _NUM_REGS
    shared_bytes, local_bytes, registers = (
        ask("cuFuncGetAttribute", attribute, function) for attribute in (1, 3, 4)
    )
    blocks = ask(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        function,
        THREADS,
        ctypes.c_size_t(launch.shared_bytes),
    )
    return KernelFacts(
        registers,
        local_bytes,
        shared_bytes + launch.shared_bytes,
        THREADS,
        blocks,
        THREADS * blocks / _most_threads(device),
    )


def _most_threads(device: torch.device) -> int:
    """Return how many threads a multiprocessor has room for."""
    most: int = torch.cuda.get_device_properties(device).max_threads_per_multi_processor
    return most


@functools.cache
def _compiled(source: str, name: str, fast_math: bool, _device: int) -> Any:
    """Compile a kernel for the current device."""
    if cpp_extension.CUDA_HOME is None:
        # PyTorch adds a toolkit's headers, and fails where there is none. The steps include none.
        cpp_extension.CUDA_HOME = ""
    return torch.cuda._compile_kernel(
        source,
        name,
        cuda_include_dirs=[str(Path(__file__).parent)],
        nvcc_options=[
            "-std=c++17",
            "--device-as-default-execution-space",
            *(["--use_fast_math"] if fast_math else []),
        ],
    )
