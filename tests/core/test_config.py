"""Versions, devices and methods of this installation, and its files for C++."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import convtime
from convtime.core import config, provenance
from convtime.core.load import _build_info
from tests.helpers import RESULTS


def test_show_config_is_json_and_complete() -> None:
    shown = json.loads(json.dumps(convtime.show_config()))
    for key in shown:
        assert f"``{key}``" in (convtime.show_config.__doc__ or "")
    assert shown["versions"]["torch"] == torch.__version__
    assert shown["build"]["torch_version"] == _build_info.torch_version
    assert set(shown["methods"]) == {"kernel", "event", "graph", "sync", "cpu"}
    assert shown["methods"].pop("cpu") is None
    known = {"no CUDA device was found", "convtime was built without CUDA"}
    assert {*shown["methods"].values()} <= ({None} if torch.cuda.is_available() else known)
    assert len(shown["devices"]) == torch.cuda.device_count()


def test_verified_pairs_are_those_of_the_committed_results() -> None:
    seen = {
        (
            recorded["gpu"],
            ".".join(recorded["torch"].split(".")[:2]),
            recorded["cuda"],
            recorded["cudnn"],
        )
        for recorded in (
            json.loads(file.read_text())["provenance"] for file in RESULTS.glob("*.json")
        )
        if recorded["gpu"] is not None  # others were measured on a CPU
    }
    claimed = {
        (recorded["gpu"], recorded["torch"], recorded["cuda"], recorded["cudnn"])
        for recorded in config.VERIFIED_ON_GPU
    }
    assert claimed == seen


def test_verification_depends_on_torch_cuda_and_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.11.3+cu130")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(provenance, "cudnn_version", lambda: "9.19.0")
    assert config.is_verified()
    for module, name, changed in [
        (torch, "__version__", "2.1.0+cu130"),
        (torch.version, "cuda", "13.2"),
        (provenance, "cudnn_version", lambda: "9.18.0"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, changed)
            assert not config.is_verified()


def test_the_cmake_package_is_where_show_config_says() -> None:
    root = Path(convtime.cmake_prefix_path)
    assert (root / "lib/cmake/convtime/convtimeConfig.cmake").exists()
    assert (root / "include/convtime/timing/time_op.h").exists()


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_every_installed_header_compiles_alone_and_without_a_cuda_toolkit() -> None:
    include = Path(convtime.cmake_prefix_path) / "include"
    compiler: list[str | Path] = ["g++", "-std=c++20", "-I", include, "-I", include / "convtime"]
    for header in include.rglob("*.h"):
        result = subprocess.run(
            [*compiler, "-fsyntax-only", "-H", "-x", "c++", "-"],
            input=f"#include <{header.relative_to(include)}>\n",
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        # The toolkit's headers may be in the compiler's own folders, so that they are found.
        included = {Path(line.split()[-1]).name for line in result.stderr.splitlines() if line}
        assert header.name in included
        assert not [name for name in included if name.startswith(("cuda_runtime", "cupti"))]


@pytest.mark.cuda
def test_the_driver_is_nvmls() -> None:
    import pynvml

    pynvml.nvmlInit()
    assert convtime.show_config()["versions"]["driver"] == pynvml.nvmlSystemGetDriverVersion()
