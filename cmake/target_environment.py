"""Decides what convtime is built against: which torch, which of its CUDA libraries, which nvcc.

This is the one place that knows. The build backend (`build_backend.py`) asks it what to require,
and CMakeLists.txt runs it as a script and includes what it prints. It reads files and never imports
torch: under build isolation the torch to build against is often not importable here.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

MINIMUM_TORCH = (2, 11)
TORCH_REQUIREMENT = "torch>=2.11"
# The CUDA major version of the torch that PyPI serves today: assumed where there is no torch yet.
DEFAULT_CUDA_MAJOR = 13
# Ampere to Blackwell: built for where neither TORCH_CUDA_ARCH_LIST nor a visible GPU says more.
DEFAULT_ARCHITECTURES = ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
OLDEST_ARCHITECTURE = (7, 5)  # no kernel compiles for older ones
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
    """The CUDA libraries that libtorch_cuda really loads, by name: {"libcudnn": path}.

    The dynamic loader's own answer, so that no other cuDNN or CUDA of the system is picked up.
    """
    # Newer torches load NVRTC through libtorch_cuda itself, older ones through libcaffe2_nvrtc.
    loaders = [
        str(torch.directory / "lib" / name) for name in ("libtorch_cuda.so", "libcaffe2_nvrtc.so")
    ]
    wanted = ("libcudart", "libcublasLt", "libcudnn", "libcupti", "libnvrtc")
    resolved = re.findall(r"(lib\w+)\.so[.\d]* => (\S+) \(", _run(["ldd", *loaders]))
    return {name: Path(os.path.normpath(path)) for name, path in resolved if name in wanted}


def include_directory(library: Path, header: str) -> Path | None:
    """The include folder that belongs to a library: the nearest up the tree with that header."""
    candidates = (parent / "include" for parent in library.parents)
    return next((folder for folder in candidates if (folder / header).is_file()), None)


def find_nvcc(cuda_major: int, environ: Mapping[str, str], packages: Iterable[Path]) -> Path | None:
    """The first nvcc of that CUDA major version: the system's, else one from PyPI in `packages`."""
    for candidate in (*_system_nvccs(environ), *_pypi_nvccs(cuda_major, packages)):
        if candidate.is_file() and nvcc_version(candidate)[:1] == (cuda_major,):
            return candidate
    return None


def _system_nvccs(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("CUDACXX"):
        yield Path(shutil.which(environ["CUDACXX"]) or environ["CUDACXX"])
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(variable):
            yield Path(environ[variable]) / "bin" / "nvcc"
    on_path = shutil.which("nvcc", path=environ.get("PATH", ""))
    if on_path:
        yield Path(on_path)
    yield SYSTEM_TOOLKIT / "bin" / "nvcc"


def _pypi_nvccs(cuda_major: int, packages: Iterable[Path]) -> Iterator[Path]:
    return (folder / "nvidia" / f"cu{cuda_major}" / "bin" / "nvcc" for folder in packages)


def nvcc_version(nvcc: Path) -> tuple[int, ...]:
    """(13, 0) for `release 13.0`; () if it does not run."""
    release = re.search(r"release (\d+)\.(\d+)", _run([str(nvcc), "--version"]))
    return (int(release[1]), int(release[2])) if release else ()


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


def build_requirements(
    torch: Torch | None, *, cuda: bool | None = None, environ: Mapping[str, str] = os.environ
) -> list[str]:
    """What an isolated build needs beyond pyproject.toml's list.

    Args:
        torch: the target environment's torch, None if it has none.
        cuda: the user's CONVTIME_CUDA; None where it was left to torch.
        environ: where a system nvcc is looked for.
    """
    requirements = [] if torch else [TORCH_REQUIREMENT]
    if cuda is False or (torch and not torch.cuda):
        return requirements
    requirements.append("nvidia-cudnn-frontend>=1.24,<1.27")
    cuda_major = _major_minor(torch.cuda)[0] if torch and torch.cuda else DEFAULT_CUDA_MAJOR
    # The nvcc package of CUDA 12 has no nvcc in it, so there a system toolkit is the only way.
    if cuda_major >= 13 and not find_nvcc(cuda_major, environ, packages=()):
        # torch's own requirements pin cuda-toolkit where torch comes along.
        pin = f"=={torch.cuda}.*" if torch else ""
        requirements.append(f"cuda-toolkit[nvcc,crt,nvvm,cccl,cudart]{pin}")
    return requirements


def cuda_architectures(
    arch_list: str, visible: Iterable[str], supported: Sequence[str]
) -> list[str]:
    """CMAKE_CUDA_ARCHITECTURES for this build.

    Args:
        arch_list: TORCH_CUDA_ARCH_LIST, such as "8.0;9.0+PTX"; empty if unset.
        visible: compute capabilities of the visible GPUs, such as ["9.0"].
        supported: what nvcc can build for, such as ["80", "90"].
    """
    requested = re.findall(r"[^;,\s]+", arch_list)
    if not requested:
        detected = sorted(set(visible), key=_rank)
        known = set(supported)
        requested = detected or [arch for arch in DEFAULT_ARCHITECTURES if _digits(arch) in known]
        if not requested:
            raise BuildError(
                "no GPU is visible, and nvcc builds for none of convtime's default architectures "
                f"({', '.join(DEFAULT_ARCHITECTURES)}) but for {', '.join(supported) or 'none'}: "
                "set TORCH_CUDA_ARCH_LIST, such as '9.0', or install another CUDA toolkit."
            )
        requested[-1] += "+PTX"

    architectures: list[str] = []
    for entry in requested:
        match = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", entry)
        if match is None:
            raise BuildError(
                f"TORCH_CUDA_ARCH_LIST={arch_list!r} has {entry!r}, which is no compute capability:"
                " write numbers such as '8.0;9.0', with '+PTX' after one of them if wanted."
            )
        major, minor, suffix, ptx = match.groups()
        if (int(major), int(minor)) < OLDEST_ARCHITECTURE:
            raise BuildError(
                f"convtime's kernels need compute capability 7.5 or later, got {major}.{minor} "
                f"({'in TORCH_CUDA_ARCH_LIST' if arch_list.strip(' ;,') else 'of a visible GPU'}): "
                "set TORCH_CUDA_ARCH_LIST to later ones, or build without CUDA with "
                "--config-settings=cmake.define.CONVTIME_CUDA=OFF."
            )
        architectures.append(f"{major}{minor}{suffix}-real")
        if ptx:
            # PTX of an "a" or "f" target runs on no later GPU, which is all that PTX is for.
            architectures.append(f"{major}{minor}-virtual")
    return list(dict.fromkeys(architectures))


def _rank(architecture: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", architecture))


def _digits(architecture: str) -> str:
    return re.sub(r"\D", "", architecture)


def _visible_architectures() -> list[str]:
    output = _run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
    return re.findall(r"^\d+\.\d$", output, re.MULTILINE)


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

    for name, path in loaded_libraries(torch).items():
        variables[f"{name.upper()}_PATH"] = path
    nvcc = find_nvcc(_major_minor(torch.cuda)[0], os.environ, packages)
    if nvcc:
        code = _run([str(nvcc), "--list-gpu-code"])
        variables["NVCC"] = nvcc
        variables["CUDA_ARCHITECTURES"] = ";".join(
            cuda_architectures(
                os.environ.get("TORCH_CUDA_ARCH_LIST", ""),
                _visible_architectures(),
                re.findall(r"sm_(\d+)", code),
            )
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
