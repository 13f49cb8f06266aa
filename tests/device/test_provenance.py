"""Hardware, software and source state of a measurement."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import convtime
from convtime.device import provenance


def test_git_state_is_that_of_the_folder_without_saved_runs_of_the_pytest_plugin(
    tmp_path: Path, repository: Path
) -> None:
    assert provenance.git_state(str(tmp_path)) is None
    folder = repository / "project" / "tests"
    (repository / "project" / ".convtime").mkdir(parents=True)
    (repository / "project" / ".convtime" / "main.json").touch()
    folder.mkdir()
    state = provenance.git_state(str(folder))
    assert state is not None
    assert (len(state["commit"]), state["dirty"]) == (40, False)
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
    for name in ("hook", "post-index-change"):
        (repository / name).write_text("#!/bin/sh\ntouch ran\n")
        (repository / name).chmod(0o755)
    for command in (
        ["core.fsmonitor", str(repository / "hook")],
        ["core.hooksPath", str(repository)],
    ):
        subprocess.run(["git", "config", *command], cwd=repository, check=True)
    os.utime(repository / "file", (1, 1))  # git status would refresh the index
    index = (repository / ".git" / "index").read_bytes()
    state = provenance.git_state(str(repository))
    assert state is not None
    assert state["dirty"] is True  # because of the hooks' files
    assert (repository / ".git" / "index").read_bytes() == index
    assert not (repository / "ran").exists()


@pytest.mark.thorough
def test_a_slow_git_neither_locks_the_repository_nor_takes_the_timeout(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clean filter is the one program of a repository that git status needs.
    (repository / ".gitattributes").write_text("file filter=slow\n")
    command = ["git", "config", "filter.slow.clean", "sleep 30; cat"]
    subprocess.run(command, cwd=repository, check=True)
    (repository / "file").write_text("different")
    monkeypatch.chdir(repository)
    measured = convtime.time_op(lambda: None, device="cpu", timeout=2.0, budget=0.01)
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
    told = provenance.provenance(torch.device("cpu"))
    assert told["git"] is None
    assert json.loads(json.dumps(told)) == told
    assert (told["gpu"], told["driver"], told["proof"]) == (None, None, None)
    assert told["gc"] == "enabled"
    assert told["tracers"] == (", ".join(provenance.tracers()) or None)


def test_tools_that_trace_are_named_by_their_package() -> None:
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        found = provenance.tracers()
    finally:
        sys.setprofile(before)
    assert f"sys.setprofile ({__name__.partition('.')[0]})" in found


@pytest.mark.parametrize(("number", "told"), [(91900, "9.19.0"), (90805, "9.8.5"), (None, None)])
def test_the_version_of_cudnn_is_its_number_in_parts(
    monkeypatch: pytest.MonkeyPatch, number: int | None, told: str | None
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: number)
    assert provenance.cudnn_version.__wrapped__() == told
