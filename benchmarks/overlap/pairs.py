"""Families of pairs: the same work in line, and so that parts of it can overlap."""

import ctypes
import functools
import random
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from common.cuda import capture
from common.families import log_uniform
from common.running import Call

from overlap.truth import Pair


def _multiple(of: int, chance: random.Random, low: float, high: float) -> int:
    return max(of, round(log_uniform(chance, low, high) / of) * of)


#: Long kernels that take the whole GPU, and those that do not.
_KINDS = (("matmul", "relu", "softmax"), ("spin",))


def _kernel_call(chance: random.Random, device: torch.device, kind: str) -> tuple[Call, str]:
    match kind:
        case "matmul":
            size = _multiple(128, chance, 3072, 6144)
            a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
            return functools.partial(torch.mm, a, a), f"matmul {size}"
        case "relu":
            numbers = _multiple(1 << 20, chance, 1 << 27, 1 << 29)
            x = torch.randn(numbers, device=device)
            return functools.partial(torch.relu, x), f"relu {numbers >> 20} Mi"
        case "softmax":
            rows = _multiple(256, chance, 16384, 65536)
            x = torch.randn(rows, 4096, device=device)
            return functools.partial(torch.softmax, x, -1), f"softmax {rows}×4096"
    nanoseconds = int(log_uniform(chance, 250e3, 900e3))
    blocks = round(log_uniform(chance, 1, 40))
    spin = functools.partial(torch.ops.convtime.spin_ns, nanoseconds, blocks, 128)
    return spin, f"spin {nanoseconds / 1e3:.0f} µs in {blocks} blocks"


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _in_line(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _forked(calls: Sequence[Call], streams: Sequence[torch.cuda.Stream]) -> None:
    """The first on the current stream, each of the others on one of its own."""
    current = torch.cuda.current_stream()
    for call, stream in zip(calls[1:], streams, strict=False):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            call()
    calls[0]()
    for stream in streams[: len(calls) - 1]:
        current.wait_stream(stream)


def _kernels(chance: random.Random, device: torch.device) -> tuple[list[Call], str]:
    """All of one kind.

    Which of several streams begins first differs from call to call, and what a kernel leaves free
    for one of another kind depends on it: a race, and not a property of the pair.
    """
    kind = chance.choice(chance.choice(_KINDS))
    made = [_kernel_call(chance, device, kind) for _ in range(chance.choice((2, 2, 3)))]
    return [call for call, _ in made], ", ".join(what for _, what in made)


def _pair(calls: Sequence[Call], device: torch.device, what: str) -> Pair:
    side = [_stream(device) for _ in calls[1:]]
    return Pair(functools.partial(_in_line, calls), functools.partial(_forked, calls, side), what)


def streams(chance: random.Random, device: torch.device) -> Pair:
    calls, what = _kernels(chance, device)
    return _pair(calls, device, what)


def copies(chance: random.Random, device: torch.device) -> Pair:
    # Of one MiB, next to a long kernel, too: such pairs are within 10 %.
    megabytes = round(log_uniform(chance, 1, 64))
    host = torch.empty(megabytes << 20, dtype=torch.uint8).pin_memory()
    there = torch.empty(megabytes << 20, dtype=torch.uint8, device=device)
    to_gpu = chance.random() < 0.5
    target, source = (there, host) if to_gpu else (host, there)
    copy = functools.partial(target.copy_, source, non_blocking=True)
    compute, what = _kernel_call(chance, device, chance.choice(chance.choice(_KINDS)))
    way = "to" if to_gpu else "from"
    return _pair([compute, copy], device, f"{megabytes} MiB {way} the GPU, {what}")


def graph(chance: random.Random, device: torch.device) -> Pair:
    pair = streams(chance, device)
    return Pair(capture(pair.in_line), capture(pair.overlapping), pair.what)


def dependent(chance: random.Random, device: torch.device) -> Pair:
    kernels = chance.choice((2, 3, 4))
    blocks = round(log_uniform(chance, 1, 40))
    # The share that overlaps is drawn, and not the parts, most of which would be too short.
    each = log_uniform(chance, 600e3, 2400e3) / kernels
    before = int(each * log_uniform(chance, 0.02, 0.8))
    after = int(each) - before
    launch = functools.partial(dependent_launches, kernels, blocks, before, after, device)
    return Pair(
        functools.partial(launch, overlap=False),
        functools.partial(launch, overlap=True),
        f"{kernels} kernels of {blocks} blocks: {before / 1e3:.0f} µs before the wait, "
        f"{after / 1e3:.0f} µs after it",
    )


class _Slow(torch.autograd.Function):
    """The identity, whose backward pass makes a call."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, call: Call) -> torch.Tensor:
        ctx.call = call
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.call()
        return gradients[0], None


def autograd(chance: random.Random, device: torch.device) -> Pair:
    calls, what = _kernels(chance, device)
    current, side = torch.cuda.current_stream(device), _stream(device)
    in_line = backward_of(calls, [current] * len(calls))
    # The last part's backward pass is issued first.
    return Pair(in_line, backward_of(calls, [*[side] * (len(calls) - 1), current]), what)


def backward_of(calls: Sequence[Call], streams: Sequence[torch.cuda.Stream]) -> Call:
    """The backward pass of parts whose forward passes ran on these streams.

    Each part's leaf is first used on the part's stream. Autograd has the stream of a leaf's first
    use wait for its gradient: for one that is shared, or was made on the current stream, what comes
    next on that stream would wait for the other part.
    """
    leaves, outputs, gradients = [], [], []
    current = torch.cuda.current_stream()
    for call, stream in zip(calls, streams, strict=True):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            leaf = torch.zeros(1024, device=stream.device, requires_grad=True)
            leaves.append(leaf)
            outputs.append(_Slow.apply(leaf, call))
            gradients.append(torch.ones_like(leaf))
        current.wait_stream(stream)
    return functools.partial(torch.autograd.grad, outputs, leaves, gradients, retain_graph=True)


MAKERS: dict[str, Callable[[random.Random, torch.device], Pair]] = {
    "streams": streams,
    "copies": copies,
    "graph": graph,
    "dependent": dependent,
    "autograd": autograd,
}


# Spins, waits for the kernel before it, spins again. The next one may begin at once.
_SOURCE = """
__device__ void spin(long long nanoseconds) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

extern "C" __global__ void step(long long before, long long after) {
  asm volatile("griddepcontrol.launch_dependents;");
  spin(before);
  asm volatile("griddepcontrol.wait;" ::: "memory");
  spin(after);
}
"""
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
_THREADS = 128


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("_pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _drive(function: str, *arguments: Any) -> None:
    if status := getattr(_driver(), function)(*arguments):
        raise RuntimeError(f"{function} returned {status}")


@functools.cache
def _kernel(index: int) -> ctypes.c_void_p:
    major, minor = torch.cuda.get_device_capability(index)
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "step.cu"), Path(folder, "step.cubin")
        source.write_text(_SOURCE)
        command = ["nvcc", "-cubin", f"-arch=sm_{major}{minor}", "-o", str(binary), str(source)]
        subprocess.run(command, check=True, capture_output=True)
        image = binary.read_bytes()
    torch.cuda.current_stream(index).synchronize()  # makes the device's context current
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    _drive("cuModuleLoadData", ctypes.byref(module), image)
    _drive("cuModuleGetFunction", ctypes.byref(kernel), module, b"step")
    return kernel


def dependent_launches(
    kernels: int, blocks: int, before: int, after: int, device: torch.device, *, overlap: bool
) -> None:
    kernel = _kernel(device.index or 0)
    values = ctypes.c_longlong(before), ctypes.c_longlong(after)
    arguments = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
    attribute = _Attribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION)
    attribute.value[0] = 1
    for number in range(kernels):
        config = _Config(
            grid=(blocks, 1, 1),
            block=(_THREADS, 1, 1),
            stream=torch.cuda.current_stream(device).cuda_stream,
            attributes=ctypes.pointer(attribute),
            # The first one comes after other work, which it is to wait for.
            attribute_count=1 if overlap and number > 0 else 0,
        )
        _drive("cuLaunchKernelEx", ctypes.byref(config), kernel, arguments, None)
