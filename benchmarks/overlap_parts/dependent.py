"""Kernels that are launched while the one before them runs (programmatic dependent launch)."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import torch

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


def _check(status: int, what: str) -> None:
    if status != 0:
        raise RuntimeError(f"{what} returned {status}")


@functools.cache
def _kernel(index: int) -> ctypes.c_void_p:
    """The kernel, compiled for a device by nvcc."""
    major, minor = torch.cuda.get_device_capability(index)
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "step.cu"), Path(folder, "step.cubin")
        source.write_text(_SOURCE)
        command = ["nvcc", "-cubin", f"-arch=sm_{major}{minor}", "-o", str(binary), str(source)]
        subprocess.run(command, check=True, capture_output=True)
        image = binary.read_bytes()
    torch.cuda.current_stream(index).synchronize()  # makes the device's context current
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    _check(_driver().cuModuleLoadData(ctypes.byref(module), image), "cuModuleLoadData")
    found = _driver().cuModuleGetFunction(ctypes.byref(kernel), module, b"step")
    _check(found, "cuModuleGetFunction")
    return kernel


def dependent_launches(
    kernels: int, blocks: int, before: int, after: int, device: torch.device, *, overlap: bool
) -> None:
    """Launches so many kernels in a row, each free to begin with the one before it, or not."""
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
        launched = _driver().cuLaunchKernelEx(ctypes.byref(config), kernel, arguments, None)
        _check(launched, "cuLaunchKernelEx")
