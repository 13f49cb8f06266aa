"""Load the compiled core, after checking that it is compatible with this process.

Without the check, a mismatch would show up as an undefined symbol, a crash inside cuDNN or, at
worst, as another cuDNN's algorithms reported as PyTorch's.
"""

from __future__ import annotations

from pathlib import Path

import torch

from convtime import _build_info

_CUDNN_NAME = "libcudnn.so"
_REINSTALL = (
    "reinstall convtime next to this torch: "
    "run pip install --force-reinstall --no-deps . in convtime's source folder."
)


def mapped_cudnn_libraries() -> list[str]:
    """Return the paths of all libcudnn.so files that this process has mapped (Linux only)."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "/" in line}
    return sorted(path for path in paths if Path(path).name.startswith(_CUDNN_NAME))


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _cuda_name(version: str | None) -> str:
    return "no CUDA" if version is None else f"CUDA {version}"


def check() -> None:
    """Raise a one-sentence ImportError if the compiled core is incompatible with this process."""
    if _minor(torch.__version__) != _minor(_build_info.torch_version):
        raise ImportError(
            f"convtime was built for torch {_minor(_build_info.torch_version)} and this is torch "
            f"{torch.__version__}; {_REINSTALL}"
        )
    built, here = _build_info.torch_cuda, torch.version.cuda
    if (built and built.split(".")[0]) != (here and here.split(".")[0]):
        raise ImportError(
            f"convtime was built for a torch with {_cuda_name(built)} and this torch has "
            f"{_cuda_name(here)}; {_REINSTALL}"
        )
    libraries = mapped_cudnn_libraries()
    if len(libraries) > 1:
        raise ImportError(
            f"this process has loaded more than one cuDNN ({', '.join(libraries)}), so it is "
            "unknown which one PyTorch's convolutions use; keep only the cuDNN that came with "
            "torch, and unload or uninstall the others (check LD_LIBRARY_PATH, LD_PRELOAD and "
            "packages imported earlier)."
        )


check()
from convtime import _C  # noqa: E402  (only after the check)

__all__ = ["_C", "_build_info"]
