"""Versions, devices and methods of this installation, its files for C++, and its builds."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import convtime
from convtime.core import load
from convtime.core.load import _build_info
from convtime.device import config, provenance
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
    if torch.cuda.is_available():
        import pynvml

        pynvml.nvmlInit()
        assert shown["versions"]["driver"] == pynvml.nvmlSystemGetDriverVersion()
    root = Path(convtime.cmake_prefix_path)
    assert (root / "lib/cmake/convtime/convtimeConfig.cmake").exists()
    assert (root / "include/convtime/timing/time_op.h").exists()


def test_verified_pairs_are_those_of_the_committed_results() -> None:
    seen = {
        (told["gpu"], ".".join(told["torch"].split(".")[:2]), told["cuda"], told["cudnn"])
        for told in (json.loads(file.read_text())["provenance"] for file in RESULTS.glob("*.json"))
        if told["gpu"] is not None  # others were measured on a CPU
    }
    names = ("gpu", "torch", "cuda", "cudnn")
    assert {tuple(told[name] for name in names) for told in config.VERIFIED_ON_GPU} == seen


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


@pytest.mark.parametrize(
    ("version", "cuda", "expected"),
    [
        ("2.11.0+cu130", "13.0", "torch2_11_cu13"),
        ("2.15.1", "13.2", "torch2_15_cu13"),
        ("2.15.0a0+gitabc", None, "torch2_15_cpu"),
        ("2.16.0", "13.4", "torch 2.16.0 (CUDA 13.4)"),
        ("2.15.0", "12.9", "torch 2.15.0 (CUDA 12.9)"),
        ("2.11.0+cpu", None, "torch 2.11.0+cpu (no CUDA)"),
    ],
)
def test_the_build_for_the_torch_is_found_or_the_others_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, cuda: str | None, expected: str
) -> None:
    builds = tmp_path / "installed" / "_builds"
    monkeypatch.setattr(convtime, "__path__", [str(tmp_path), str(builds.parent)])
    with pytest.raises(ImportError, match=r"builds for torch \(none\)"):
        load.build_folder(version, cuda)
    for name in ("torch2_15_cu13", "torch2_11_cu13", "torch2_15_cpu"):
        (builds / name).mkdir(parents=True)
    if "_" in expected:
        assert load.build_folder(version, cuda) == builds / expected
        return
    with pytest.raises(ImportError) as raised:
        load.build_folder(version, cuda)
    message = str(raised.value)
    for told in (expected, "torch 2.11 (CUDA 13), 2.15 (no CUDA), 2.15 (CUDA 13)", "pip install"):
        assert told in message
    assert "\n" not in message


def test_the_loaded_build_is_the_one_for_this_torch() -> None:
    folder = load.build_folder(torch.__version__, torch.version.cuda)
    assert Path(load._C.__file__).parent == folder == Path(load._build_info.__file__).parent


def test_two_cudnns_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = ["/a/libcudnn.so.9", "/b/libcudnn.so.9"]
    monkeypatch.setattr(load, "mapped_cudnn_libraries", lambda: libraries)
    with pytest.raises(ImportError, match=r"/a/libcudnn\.so\.9, /b/libcudnn\.so\.9"):
        load.check_cudnn()
    monkeypatch.setattr(load, "mapped_cudnn_libraries", lambda: libraries[:1])
    load.check_cudnn()
