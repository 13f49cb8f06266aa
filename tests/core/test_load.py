"""The build of the compiled core that fits torch is the one that is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import convtime
from convtime.core import load


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
