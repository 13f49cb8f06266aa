"""What import convtime checks, each in a process of its own."""

from __future__ import annotations

import ctypes.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import convtime
from convtime import _build_info
from convtime.core.load import mapped_cudnn_libraries

# convtime is on no package index: only a checkout can be reinstalled from.
REINSTALL = (
    "reinstall convtime next to this torch: "
    "run pip install --force-reinstall --no-deps . in convtime's source folder."
)


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def torchs_cudnn() -> Path:
    return next(Path(torch.__file__).parents[1].glob("nvidia/cudnn/lib/libcudnn.so.*"))


def test_another_torch_than_built_for_is_refused_before_the_core_is_loaded() -> None:
    result = run(
        "import sys, torch\n"
        "torch.__version__ = '2.999.1+cu130'\n"
        "try:\n"
        "    import convtime\n"
        "finally:\n"
        "    assert 'convtime._C' not in sys.modules\n"
    )
    assert result.returncode == 1
    built = ".".join(_build_info.torch_version.split(".")[:2])
    assert (
        f"ImportError: convtime was built for torch {built} and this is torch 2.999.1+cu130; "
        f"{REINSTALL}\n" in result.stderr
    )


def test_a_torch_with_another_cuda_is_refused() -> None:
    result = run("import torch\ntorch.version.cuda = '99.1'\nimport convtime")
    assert result.returncode == 1
    assert f"this torch has CUDA 99.1; {REINSTALL}\n" in result.stderr


@pytest.mark.skipif(not _build_info.with_cuda, reason="convtime was built without CUDA")
def test_exactly_torchs_own_cudnn_is_mapped() -> None:
    libraries = mapped_cudnn_libraries()
    assert [Path(library).resolve() for library in libraries] == [torchs_cudnn().resolve()]
    assert convtime.show_config()["cudnn_libraries"] == libraries


@pytest.mark.skipif(not _build_info.with_cuda, reason="convtime was built without CUDA")
def test_two_cudnns_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "libcudnn.so.9"
    shutil.copy(torchs_cudnn(), other)
    result = run(f"import ctypes, torch\nctypes.CDLL({str(other)!r})\nimport convtime")
    assert result.returncode == 1
    assert "ImportError: this process has loaded more than one cuDNN" in result.stderr
    assert str(other) in result.stderr


def test_the_core_uses_the_cplusplus_library_of_torch() -> None:
    """A second libstdc++, linked statically, crashes in the cuDNN frontend's first stream."""
    maps = Path("/proc/self/maps").read_text()
    assert len({line.split()[-1] for line in maps.splitlines() if "libstdc++.so" in line}) == 1
    assert ctypes.util.find_library("stdc++")
    core = Path(convtime.cmake_prefix_path) / "lib" / "libconvtime.so"
    assert b"libstdc++.so.6" in core.read_bytes()


def test_the_import_loads_no_compiler_and_no_distributed_tensors() -> None:
    """Each takes a second, and dynamo's exit handlers hide that a process was interrupted."""
    program = "import sys, torch; before = set(sys.modules); import convtime, convtime.ops\n"
    program += "convtime.nn, convtime.time_op; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "convtime" in loaded
    heavy = ("torch._dynamo", "torch._inductor", "torch.distributed.tensor")
    assert not [module for module in loaded if module.startswith(heavy)]
