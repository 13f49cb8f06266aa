"""The build of the compiled core that fits torch is the one that is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import convtime
from convtime.core import load


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The builds of an installation for several torches, beside a folder that has none."""
    folder = tmp_path / "installed" / "_builds"
    for name in ("torch2_15_cu13", "torch2_11_cu13", "torch2_15_cpu"):
        (folder / name).mkdir(parents=True)
    monkeypatch.setattr(convtime, "__path__", [str(tmp_path), str(folder.parent)])
    return folder


@pytest.mark.parametrize(
    ("version", "cuda", "name"),
    [
        ("2.11.0+cu130", "13.0", "torch2_11_cu13"),
        ("2.15.1", "13.2", "torch2_15_cu13"),
        ("2.15.0a0+gitabc", None, "torch2_15_cpu"),
    ],
)
def test_the_build_for_the_torch_is_found(
    builds: Path, version: str, cuda: str | None, name: str
) -> None:
    assert load.build_folder(version, cuda) == builds / name


@pytest.mark.parametrize(
    ("version", "cuda", "here"),
    [
        ("2.16.0", "13.4", "torch 2.16.0 (CUDA 13.4)"),
        ("2.15.0", "12.9", "torch 2.15.0 (CUDA 12.9)"),
        ("2.11.0+cpu", None, "torch 2.11.0+cpu (no CUDA)"),
    ],
)
def test_another_torch_is_refused_in_one_sentence(
    builds: Path, version: str, cuda: str | None, here: str
) -> None:
    with pytest.raises(ImportError) as raised:
        load.build_folder(version, cuda)
    message = str(raised.value)
    assert here in message
    assert "builds for torch 2.11 (CUDA 13), 2.15 (no CUDA), 2.15 (CUDA 13): install" in message
    assert "pip install" in message
    assert "\n" not in message


def test_sources_without_a_build_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convtime, "__path__", [str(tmp_path)])
    with pytest.raises(ImportError, match=r"builds for torch \(none\)"):
        load.build_folder("2.15.0", "13.2")


def test_the_loaded_build_is_the_one_for_this_torch() -> None:
    folder = load.build_folder(torch.__version__, torch.version.cuda)
    assert Path(load._C.__file__).parent == folder == Path(load._build_info.__file__).parent


def test_two_cudnns_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        load, "mapped_cudnn_libraries", lambda: ["/a/libcudnn.so.9", "/b/libcudnn.so.9"]
    )
    with pytest.raises(ImportError, match=r"/a/libcudnn\.so\.9, /b/libcudnn\.so\.9"):
        load.check_cudnn()
