"""Load the compiled core that fits torch, after checking that it fits this process.

An installation has one or more builds of the core. Each is a folder of ``_builds``, for one minor
release of torch with one major version of CUDA. The chosen folder joins the package's path, so that
its modules are ``convtime._C`` and ``convtime._build_info``.

Without the checks, a mismatch would show up as an undefined symbol, a crash inside cuDNN or, at
worst, as another cuDNN's algorithms reported as PyTorch's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

_PACKAGE = sys.modules[__name__.partition(".")[0]]
_CUDNN_NAME = "libcudnn.so"


def mapped_cudnn_libraries() -> list[str]:
    """Return the paths of all libcudnn.so files that this process has mapped (Linux only)."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "/" in line}
    return sorted(path for path in paths if Path(path).name.startswith(_CUDNN_NAME))


def _in_words(name: str) -> str:
    major, minor, cuda = name.removeprefix("torch").split("_")
    return f"{major}.{minor} ({'no CUDA' if cuda == 'cpu' else cuda.replace('cu', 'CUDA ')})"


def build_folder(version: str, cuda: str | None) -> Path:
    """Return the folder of the build for this torch, or raise a one-sentence ImportError."""
    major, minor = version.split(".")[:2]
    # As CMakeLists.txt names it.
    name = f"torch{major}_{minor}_{'cu' + cuda.split('.')[0] if cuda else 'cpu'}"
    roots = [Path(root, "_builds") for root in _PACKAGE.__path__]  # several in editable installs
    builds = {folder.name: folder for root in roots for folder in root.glob("torch*")}
    if name in builds:
        return builds[name]
    raise ImportError(
        f"this is torch {version} ({f'CUDA {cuda}' if cuda else 'no CUDA'}), and convtime has "
        f"builds for torch {', '.join(map(_in_words, sorted(builds))) or '(none)'}: install one of "
        "these, or build convtime for the torch that is here (run pip install --force-reinstall "
        "--no-deps . in convtime's source folder)."
    )


def check_cudnn() -> None:
    """Raise a one-sentence ImportError if this process has loaded more than one cuDNN."""
    libraries = mapped_cudnn_libraries()
    if len(libraries) > 1:
        raise ImportError(
            f"this process has loaded more than one cuDNN ({', '.join(libraries)}), so it is "
            "unknown which one PyTorch's convolutions use; keep only the cuDNN that came with "
            "torch, and unload or uninstall the others (check LD_LIBRARY_PATH, LD_PRELOAD and "
            "packages imported earlier)."
        )


check_cudnn()
_PACKAGE.__path__.append(str(build_folder(torch.__version__, torch.version.cuda)))
import convtime._build_info as _build_info  # noqa: E402  (only after the checks)
import convtime._C as _C  # noqa: E402

__all__ = ["_C", "_build_info"]
