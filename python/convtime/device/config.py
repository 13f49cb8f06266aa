"""The installation's versions and build, and the features that are available on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from convtime.core.load import _C, _build_info, mapped_cudnn_libraries
from convtime.device import provenance
from convtime.device.provenance import cpu_name

#: Where find_package(convtime) finds the C++ package: -Dconvtime_ROOT=<this>.
cmake_prefix_path = str(Path(_C.__file__).parent)

#: Combinations on which the GPU tests and benchmarks were run and passed.
VERIFIED_ON_GPU = (
    {"gpu": "NVIDIA H100 80GB HBM3", "torch": "2.11", "cuda": "13.0", "cudnn": "9.19.0"},
    {"gpu": "NVIDIA H200", "torch": "2.11", "cuda": "13.0", "cudnn": "9.19.0"},
)


def methods() -> dict[str, str | None]:
    """Map each timing method to the reason why it is unavailable here, or to None if available."""
    no_gpu = None
    if not _build_info.with_cuda:
        no_gpu = "convtime was built without CUDA"
    elif not _C.cuda_available():
        no_gpu = "no CUDA device was found"
    no_cupti = no_gpu or _C.kernel_method_unavailable() or None
    return {"kernel": no_cupti, "event": no_gpu, "graph": no_gpu, "sync": no_gpu, "cpu": None}


def is_verified() -> bool:
    """Return whether this torch, CUDA and cuDNN are in VERIFIED_ON_GPU; the GPU is not compared."""
    return any(
        torch.__version__.startswith(pair["torch"] + ".")
        and torch.version.cuda == pair["cuda"]
        and provenance.cudnn_version() == pair["cudnn"]
        for pair in VERIFIED_ON_GPU
    )


def show_config() -> dict[str, Any]:
    """Return versions, devices, build and methods; ``convtime doctor --config`` prints them.

    Returns:
        A JSON-serializable dict: ``versions``, ``cudnn_libraries`` (paths of the loaded files),
        ``cpu``, ``devices``, ``build``, ``kernels`` (compiler and cache of convtime's GPU kernels;
        None without CUDA), ``methods`` (for each method, the reason why it is unavailable here, or
        None), ``verified_on_gpu`` and ``this_pair_verified``.
    """
    devices = [
        {
            "name": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
        }
        for properties in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ]
    return {
        "versions": {
            "convtime": _build_info.version,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": provenance.cudnn_version(),
            "driver": provenance.driver_version() if devices else None,
        },
        "cudnn_libraries": mapped_cudnn_libraries(),
        "cpu": cpu_name(),
        "devices": devices,
        # pytest loads our plugin and adds names with an @ to modules whose assertions it rewrites.
        "build": {name: value for name, value in vars(_build_info).items() if name[0] not in "_@"},
        "kernels": _C.kernel_cache(),
        "methods": methods(),
        "verified_on_gpu": list(VERIFIED_ON_GPU),
        "this_pair_verified": is_verified(),
    }
