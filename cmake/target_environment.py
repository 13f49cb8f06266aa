"""Decides what convtime is built against: which torch, and which of its CUDA libraries and headers.

This is the one place that knows. The build backend (`build_backend.py`) asks it what to require,
and CMakeLists.txt runs it as a script and includes what it prints. It reads files and never imports
torch: under build isolation the torch to build against is often not importable here.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

MINIMUM_TORCH = (2, 11)
TORCH_REQUIREMENT = "torch>=2.11"
# The libraries whose headers convtime and torch's headers include, and a header of each. CUDA 13
# has them in one folder, CUDA 12 in a folder each.
HEADERS = {
    "libcudart": "cuda_runtime_api.h",
    "libnvrtc": "nvrtc.h",
    "libcupti": "cupti.h",
    "libcublasLt": "cublasLt.h",
    "libcusparse": "cusparse.h",
    "libcusolver": "cusolverDn.h",
}
# Headers that those include, and a package that has them. Torch's packages have the first in triton
# alone, and not all releases of torch have the second.
COMMON_HEADERS = {"crt/host_defines.h": "triton", "nv/target": "nvidia-cuda-cccl"}
SYSTEM_TOOLKIT = Path("/usr/local/cuda")


class BuildError(Exception):
    """One sentence that says why convtime cannot be built here, and what to do."""


@dataclasses.dataclass(frozen=True)
class Torch:
    """An installed torch, as its version.py describes it."""

    directory: Path
    version: str
    cuda: str | None

    @property
    def release(self) -> tuple[int, int]:
        return _major_minor(self.version)

    @property
    def requirement(self) -> str:
        """What a wheel built against it depends on: torch's ABI changes with the minor version."""
        major, minor = self.release
        return f"torch=={major}.{minor}.*"


def read_torch(directory: Path) -> Torch:
    """Reads torch/version.py as text; raises BuildError if that torch is too old."""
    text = (directory / "version.py").read_text()
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda(?:: [^=]+)? = '([^']+)'", text, re.MULTILINE)
    if version is None:
        raise BuildError(f"{directory}/version.py names no torch version: reinstall torch.")
    torch = Torch(directory, version[1], cuda[1] if cuda else None)
    if torch.release < MINIMUM_TORCH:
        raise BuildError(
            f"convtime needs {TORCH_REQUIREMENT}, but {directory} is torch {torch.version}: "
            "upgrade it (pip install --upgrade torch), or install into another environment."
        )
    return torch


def find_torch() -> Torch | None:
    """The torch to build against: the target environment's, else the build environment's."""
    target = find_target_torch()
    if target:
        return target
    spec = importlib.util.find_spec("torch")
    return read_torch(Path(spec.origin).parent) if spec and spec.origin else None


def find_target_torch() -> Torch | None:
    """The torch that the user will import next to convtime, or None if there is none yet.

    pip hides the target environment from an isolated build through PYTHONPATH, but runs the build
    in the target's own interpreter, which sees what the user sees when started without that
    variable. Who builds elsewhere says which interpreter it is for in CONVTIME_TARGET_PYTHON.
    """
    python = os.environ.get("CONVTIME_TARGET_PYTHON", sys.executable)
    hiding = ("PYTHONPATH", "PYTHONNOUSERSITE")
    environment = {name: value for name, value in os.environ.items() if name not in hiding}
    code = "import importlib.util; print(importlib.util.find_spec('torch').origin)"
    origin = _run([python, "-c", code], env=environment, cwd=os.sep)
    return read_torch(Path(origin).parent) if os.path.isabs(origin) else None


def find_uv_target_python(process: int, processes: Path = Path("/proc")) -> str | None:
    """The interpreter that a uv process installs for; None if the process is not uv.

    uv builds in an environment of its own and tells the build nothing of its target, so this
    repeats uv's search for it, with that process's environment, directory and --python.
    """
    proc = processes / str(process)
    try:
        uv, directory = os.readlink(proc / "exe"), os.readlink(proc / "cwd")
        arguments = _nul_separated(proc / "cmdline")
        variables = _nul_separated(proc / "environ")
    except OSError:
        return None
    if Path(uv).name != "uv":
        return None
    command = [uv, "python", "find", *(["--system"] if "--system" in arguments else [])]
    for index, argument in enumerate(arguments):
        option, _, value = argument.partition("=")
        if option in ("--python", "-p"):
            command.append(value or arguments[index + 1])
    environment = dict(variable.partition("=")[::2] for variable in variables)
    return _run(command, env=environment, cwd=directory) or None


def _nul_separated(path: Path) -> list[str]:
    return path.read_bytes().decode(errors="surrogateescape").strip("\0").split("\0")


def loaded_libraries(torch: Torch) -> dict[str, Path]:
    """The CUDA libraries that torch really loads, by name: {"libcudnn": path}.

    The dynamic loader's own answer, so that no other cuDNN or CUDA of the system is picked up.
    """
    # Newer torches load NVRTC through libtorch_cuda itself, older ones through libcaffe2_nvrtc.
    # libtorch_cuda_linalg alone loads cuSOLVER.
    names = ("libtorch_cuda.so", "libcaffe2_nvrtc.so", "libtorch_cuda_linalg.so")
    loaders = [str(torch.directory / "lib" / name) for name in names]
    wanted = ("libcudnn", *HEADERS)
    resolved = re.findall(r"(lib\w+)\.so[.\d]* => (\S+) \(", _run(["ldd", *loaders]))
    return {name: Path(os.path.normpath(path)) for name, path in resolved if name in wanted}


def include_directory(library: Path, header: str) -> Path | None:
    """The include folder that belongs to a library: the nearest up the tree with that header."""
    candidates = (parent / "include" for parent in library.parents)
    return next((folder for folder in candidates if (folder / header).is_file()), None)


def cuda_include_directories(libraries: Mapping[str, Path], packages: Iterable[Path]) -> list[Path]:
    """The folders of HEADERS and of COMMON_HEADERS; raises BuildError if one is missing.

    Args:
        libraries: as from `loaded_libraries`.
        packages: folders of Python packages.
    """
    packages = [*packages]
    folders = []
    for name, header in HEADERS.items():
        folder = include_directory(libraries[name], header) if name in libraries else None
        if folder is None:
            raise BuildError(
                f"{header} was not found for torch's {name}: "
                "reinstall torch with its nvidia packages."
            )
        folders.append(folder)
    for header, package in COMMON_HEADERS.items():
        candidates = (*folders, *_header_folders(packages))
        found = next((folder for folder in candidates if (folder / header).is_file()), None)
        if found is None:
            raise BuildError(
                f"{header} was not found in the packages of Python: pip install {package}."
            )
        folders.append(found)
    return list(dict.fromkeys(folders))


def _header_folders(packages: Iterable[Path]) -> Iterator[Path]:
    """The folders where packages, and last the system's CUDA toolkit, have headers of CUDA."""
    for package in packages:
        yield from sorted(package.glob("nvidia/*/include"))
        yield package / "triton" / "backends" / "nvidia" / "include"
    for toolkit in (os.environ.get("CUDA_HOME"), SYSTEM_TOOLKIT):
        if toolkit:
            yield Path(toolkit) / "include"


def cuda_setting(
    config_settings: Mapping[str, str | list[str]], environ: Mapping[str, str]
) -> bool | None:
    """The user's CONVTIME_CUDA (-C cmake.define.…, -C cmake.args=…, CMAKE_ARGS), or None."""
    defines, arguments = [], []
    for key, value in config_settings.items():
        values = [value] if isinstance(value, str) else value
        if key.startswith("cmake.define."):
            defines += [f"-D{key.removeprefix('cmake.define.')}={one}" for one in values]
        elif key == "cmake.args":
            arguments += values
    # In the order in which CMake lets later ones win.
    given = " ".join([*defines, *arguments, environ.get("CMAKE_ARGS", "")])
    found = re.findall(r"-DCONVTIME_CUDA(?::\w+)?=(\w+)", given)
    if not found:
        return None
    return found[-1].upper() not in ("OFF", "0", "NO", "FALSE", "N")


def build_requirements(torch: Torch | None, *, cuda: bool | None = None) -> list[str]:
    """What an isolated build needs beyond pyproject.toml's list.

    Args:
        torch: the target environment's torch, None if it has none.
        cuda: the user's CONVTIME_CUDA; None where it was left to torch.
    """
    requirements = [] if torch else [TORCH_REQUIREMENT]
    if cuda is False or (torch and not torch.cuda):
        return requirements
    requirements.append("nvidia-cudnn-frontend>=1.24,<1.27")
    if torch and torch.cuda and not any(torch.directory.parent.glob("nvidia/*/include/nv/target")):
        suffix = "-cu12" if _major_minor(torch.cuda)[0] == 12 else ""
        requirements.append(f"nvidia-cuda-cccl{suffix}=={torch.cuda}.*")
    return requirements


def _major_minor(version: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise BuildError(f"{version!r} is no version such as 2.11.0: reinstall torch.")
    return int(match[1]), int(match[2])


def _run(command: list[str], **options: object) -> str:
    """The command's output; empty if it cannot be run or fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, **options)  # type: ignore[call-overload]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return str(result.stdout).strip()


def _cmake_variables() -> dict[str, object]:
    torch = find_torch()
    if torch is None:
        raise BuildError(
            f"no torch was found for {sys.executable}: install torch first, "
            "or build with isolation (pip install . without --no-build-isolation)."
        )
    packages = [Path(folder) for folder in dict.fromkeys([str(torch.directory.parent), *sys.path])]
    variables: dict[str, object] = {
        "TORCH_DIR": torch.directory,
        "TORCH_VERSION": torch.version,
        "TORCH_CUDA_VERSION": torch.cuda,
    }
    if torch.cuda is None:
        return variables

    libraries = loaded_libraries(torch)
    for name, path in libraries.items():
        variables[f"{name.upper()}_PATH"] = path
    variables["CUDA_INCLUDE_DIRS"] = ";".join(
        map(str, cuda_include_directories(libraries, packages))
    )
    cudnn = variables.get("LIBCUDNN_PATH")
    if isinstance(cudnn, Path):
        variables["CUDNN_INCLUDE_DIR"] = include_directory(cudnn, "cudnn.h")
    frontend = (folder / "include" for folder in packages)
    variables["CUDNN_FRONTEND_INCLUDE_DIR"] = next(
        (folder for folder in frontend if (folder / "cudnn_frontend.h").is_file()), None
    )
    return variables


def main() -> int:
    try:
        for name, value in _cmake_variables().items():
            print(f'set(CONVTIME_{name} "{value or ""}")')
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
