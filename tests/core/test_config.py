from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
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
    assert shown["methods"]["cpu"] is None
    assert len(shown["devices"]) == torch.cuda.device_count()


def test_methods_say_why_they_are_not_available(device: torch.device) -> None:
    reasons = convtime.show_config()["methods"]
    for method in ("kernel", "event", "graph", "sync"):
        if torch.cuda.is_available():
            assert reasons[method] is None
        else:
            assert reasons[method] in (
                "no CUDA device was found",
                "convtime was built without CUDA",
            )


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


def test_git_state_is_that_of_the_folder(tmp_path: Path) -> None:
    assert provenance.git_state(str(tmp_path)) is None
    state = provenance.git_state(str(Path(__file__).parent))
    if state is not None:  # None in an unpacked source distribution
        assert len(state["commit"]) == 40


def test_saved_runs_of_the_pytest_plugin_are_no_changes(repository: Path) -> None:
    folder = repository / "project" / "tests"
    (repository / "project" / ".convtime").mkdir(parents=True)
    (repository / "project" / ".convtime" / "main.json").touch()
    folder.mkdir()
    state = provenance.git_state(str(folder))
    assert state is not None
    assert state["dirty"] is False
    (repository / "project" / "new").touch()  # beside the folder
    assert provenance.git_state(str(repository)) == state | {"dirty": True}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "file").write_text("committed")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (["init", "-q"], ["add", "file"], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def test_git_state_leaves_the_repository_alone(repository: Path) -> None:
    hook = repository / "hook"
    hook.write_text("#!/bin/sh\ntouch ran\n")
    hook.chmod(0o755)
    for command in (["core.fsmonitor", str(hook)], ["core.hooksPath", str(repository)]):
        subprocess.run(["git", "config", *command], cwd=repository, check=True)
    (repository / "post-index-change").write_text(hook.read_text())
    (repository / "post-index-change").chmod(0o755)
    os.utime(repository / "file", (1, 1))  # git status would refresh the index
    index = (repository / ".git" / "index").read_bytes()

    state = provenance.git_state(str(repository))
    assert state is not None
    assert state["dirty"] is True  # because of the hooks' files
    assert (repository / ".git" / "index").read_bytes() == index
    assert not (repository / "ran").exists()


def test_a_slow_git_neither_locks_the_repository_nor_takes_the_timeout(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clean filter is the one program of a repository that git status needs.
    (repository / ".gitattributes").write_text("file filter=slow\n")
    for key in ("clean", "smudge"):
        command = ["git", "config", f"filter.slow.{key}", "sleep 30; cat"]
        subprocess.run(command, cwd=repository, check=True)
    (repository / "file").write_text("different")
    monkeypatch.chdir(repository)
    began = time.monotonic()
    measured = convtime.time_op(lambda: None, device="cpu", timeout=2.0, budget=0.01)
    assert time.monotonic() - began < 20
    state = measured.provenance["git"]
    assert (len(state["commit"]), state["dirty"]) == (40, None)
    assert not (repository / ".git" / "index.lock").exists()


def test_what_a_handler_of_signals_raises_while_git_runs_passes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_alarm(*_: object) -> None:
        raise TimeoutError("mine")

    program = tmp_path / "git"
    program.write_text(f"#!/bin/sh\nkill -ALRM {os.getpid()}\nexec sleep 30\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    previous = signal.signal(signal.SIGALRM, on_alarm)
    try:
        with pytest.raises(TimeoutError, match="mine"):
            provenance.git_state(str(tmp_path))
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_a_deleted_working_directory_has_no_git_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert provenance.provenance(torch.device("cpu"))["git"] is None


@pytest.mark.cuda
def test_the_driver_is_nvmls() -> None:
    import pynvml

    pynvml.nvmlInit()
    assert convtime.show_config()["versions"]["driver"] == pynvml.nvmlSystemGetDriverVersion()
