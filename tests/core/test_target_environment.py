"""Which torch, libraries and headers the build chooses (cmake/target_environment.py)."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import ROOT
from tests.helpers.scripts import load_script

FRONTEND = "nvidia-cudnn-frontend>=1.24,<1.27"
LDD = """\
/torch/lib/libtorch_cuda.so:
\tlinux-vdso.so.1 (0x00007ffc)
\tlibcudnn.so.9 => /site/torch/lib/../../nvidia/cudnn/lib/libcudnn.so.9 (0x00007f1)
\tlibcudart.so.13 => /site/torch/lib/../../nvidia/cu13/lib/libcudart.so.13 (0x00007f2)
\tlibcublasLt.so.13 => /site/torch/lib/../../nvidia/cu13/lib/libcublasLt.so.13 (0x00007f5)
\tlibcupti.so.13 => not found
\tlibcudnn_graph.so.9 => /elsewhere/libcudnn_graph.so.9 (0x00007f3)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f4)
"""


build = load_script(ROOT / "cmake" / "target_environment.py")


def make_torch(folder: Path, version: str = "2.11.0+cu130", cuda: str | None = "13.0") -> Path:
    package = folder / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "version.py").write_text(
        f"from typing import Optional\n__version__ = {version!r}\ncuda: Optional[str] = {cuda!r}\n"
    )
    return package


def make_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.fixture(autouse=True)
def no_system_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a test makes is there, whatever this machine has in /usr/local/cuda."""
    monkeypatch.setattr(build, "SYSTEM_TOOLKIT", None)
    monkeypatch.delenv("CUDA_HOME", raising=False)


def test_version_and_cuda_of_a_torch_are_read(tmp_path: Path) -> None:
    for version, cuda, release in (("2.11.0+cu130", "13.0", "2.11"), ("2.15.1+cpu", None, "2.15")):
        found = build.read_torch(make_torch(tmp_path / release, version, cuda))
        assert (found.version, found.cuda) == (version, cuda)
        assert found.requirement == f"torch=={release}.*"
    with pytest.raises(build.BuildError, match=r"torch>=2\.11, but .* torch 2\.9"):
        build.read_torch(make_torch(tmp_path, "2.9.1+cu128", "12.8"))


def test_the_targets_torch_comes_before_that_of_the_build_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under pip's isolation: the build environment comes first in PYTHONPATH."""
    isolated = make_torch(tmp_path, "2.99.0", None).parent
    monkeypatch.setenv("PYTHONPATH", str(isolated))
    monkeypatch.syspath_prepend(isolated)
    found = build.find_torch()
    assert found.directory == Path(torch.__file__).parent
    assert (found.version, found.cuda) == (torch.__version__, torch.version.cuda)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(build, "find_target_torch", lambda: None)
    assert build.find_torch().version == "2.99.0"


@pytest.mark.thorough
def test_without_a_torch_the_script_says_what_to_do(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    command = [tmp_path / "bin" / "python", "-E", build.__file__]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "install torch first" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([], "3.12 python find"),
        (["--python", "3.10"], "3.12 python find 3.10"),
        (["-p", "/venv/bin/python"], "3.12 python find /venv/bin/python"),
        (["--python=3.13"], "3.12 python find 3.13"),
        (["--system"], "3.12 python find --system"),
    ],
)
def test_uvs_target_is_what_uv_finds_with_its_options_environment_and_folder(
    tmp_path: Path, arguments: list[str], found: str
) -> None:
    """With a /proc of one process, whose uv answers what it was run with."""
    uv, folder, process = tmp_path / "uv", tmp_path / "project", tmp_path / "proc" / "7"
    uv.write_text("#!/bin/sh\necho $PWD $UV_PYTHON $*\n")
    uv.chmod(0o755)
    folder.mkdir()
    process.mkdir(parents=True)
    (process / "exe").symlink_to(uv)
    (process / "cwd").symlink_to(folder)
    (process / "cmdline").write_text("\0".join(["uv", "pip", "install", *arguments, ".", ""]))
    (process / "environ").write_bytes(b"UV_PYTHON=3.12\0PATH=/usr/bin:/bin\0")
    assert build.find_uv_target_python(7, process.parent) == f"{folder} {found}"
    (process / "exe").unlink()
    (process / "exe").symlink_to(sys.executable)
    for number in (7, 8):  # another program, and a process that is gone
        assert build.find_uv_target_python(number, process.parent) is None


def test_libraries_are_those_that_the_loader_resolves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ldd = make_file(tmp_path / "bin" / "ldd")
    ldd.write_text(f"#!/bin/sh\necho $* > {tmp_path}/asked\ncat <<'END'\n{LDD}END\n")
    ldd.chmod(0o755)
    monkeypatch.setenv("PATH", str(ldd.parent), prepend=os.pathsep)
    found = build.read_torch(make_torch(tmp_path))
    assert build.loaded_libraries(found) == {
        "libcudnn": Path("/site/nvidia/cudnn/lib/libcudnn.so.9"),
        "libcudart": Path("/site/nvidia/cu13/lib/libcudart.so.13"),
        "libcublasLt": Path("/site/nvidia/cu13/lib/libcublasLt.so.13"),
    }
    assert str(found.directory / "lib" / "libtorch_cuda.so") in (tmp_path / "asked").read_text()


def libraries(root: Path, folder_of: Callable[[str], str]) -> dict[str, Path]:
    """Folders as torch's packages have them, with nothing but the named headers."""
    folders = {name: root / "nvidia" / folder_of(name) for name in build.HEADERS}
    for name, folder in folders.items():
        make_file(folder / "include" / build.HEADERS[name])
    return {name: folder / "lib" / f"{name}.so" for name, folder in folders.items()}


def test_headers_of_cuda_are_torchs_then_tritons_then_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = libraries(tmp_path, lambda name: "cu13")
    triton = tmp_path / "triton" / "backends" / "nvidia" / "include"
    make_file(triton / "crt" / "host_defines.h")
    with pytest.raises(build.BuildError, match=r"^nv/target was .*install nvidia-cuda-cccl\.$"):
        build.cuda_include_directories(found, [tmp_path])
    cuda = tmp_path / "nvidia" / "cu13" / "include"
    other = tmp_path / "build" / "nvidia" / "cu13" / "include"
    make_file(other / "nv" / "target")
    places = [tmp_path, tmp_path / "build"]
    assert build.cuda_include_directories(found, places) == [cuda, triton, other]
    toolkit = make_file(tmp_path / "toolkit" / "include" / "nv" / "target").parents[1]
    monkeypatch.setenv("CUDA_HOME", str(toolkit.parent))
    assert build.cuda_include_directories(found, [tmp_path]) == [cuda, triton, toolkit]


def test_headers_of_cuda_12_have_a_folder_each_and_missing_ones_are_named(tmp_path: Path) -> None:
    found = libraries(tmp_path, lambda name: name)
    make_file(tmp_path / "nvidia" / "cuda_cccl" / "include" / "nv" / "target")
    make_file(tmp_path / "triton" / "backends" / "nvidia" / "include" / "crt" / "host_defines.h")
    folders = build.cuda_include_directories(found, [tmp_path])
    assert len(folders) == len(build.HEADERS) + 2
    header = tmp_path / "nvidia" / "libnvrtc" / "include" / build.HEADERS["libnvrtc"]
    header.unlink()
    with pytest.raises(build.BuildError, match=f"^{header.name} was not found"):
        build.cuda_include_directories(found, [tmp_path])


CCCL, CCCL_12 = "nvidia-cuda-cccl==13.0.*", "nvidia-cuda-cccl-cu12==12.8.*"


@pytest.mark.parametrize(
    ("version", "cuda", "with_cuda", "expected"),
    [
        ("2.11.0+cu130", "13.0", None, [FRONTEND, CCCL]),
        ("2.11.0+cu128", "12.8", None, [FRONTEND, CCCL_12]),
        ("2.11.0+cpu", None, None, []),
        ("2.11.0+cu130", "13.0", False, []),
        (None, None, None, ["torch>=2.11", FRONTEND]),
        (None, None, False, ["torch>=2.11"]),
    ],
)
def test_requirements_are_those_that_the_environment_lacks(
    tmp_path: Path, version: str, cuda: str | None, with_cuda: bool | None, expected: list[str]
) -> None:
    found = build.read_torch(make_torch(tmp_path, version, cuda)) if version else None
    assert build.build_requirements(found, cuda=with_cuda) == expected
    if len(expected) == 2 and found:
        make_file(tmp_path / "nvidia" / "cu13" / "include" / "nv" / "target")
        assert build.build_requirements(found, cuda=with_cuda) == [FRONTEND]


@pytest.mark.parametrize(
    ("config", "cmake_args", "expected"),
    [
        ({}, "", None),
        ({"cmake.define.CONVTIME_CUDA": "OFF"}, "", False),
        ({"cmake.define.CONVTIME_CUDA": ["ON"]}, "-DCONVTIME_CUDA=OFF", False),
        ({"cmake.define.CONVTIME_CUDA": ["ON"]}, "", True),
        ({"cmake.args": ["-DCONVTIME_TESTS=ON", "-DCONVTIME_CUDA:BOOL=off"]}, "", False),
        ({"cmake.define.CONVTIME_TESTS": "OFF"}, "-G Ninja", None),
    ],
)
def test_the_setting_of_cuda_is_that_of_cmake(
    config: dict[str, Any], cmake_args: str, expected: bool | None
) -> None:
    assert build.cuda_setting(config, {"CMAKE_ARGS": cmake_args}) is expected
