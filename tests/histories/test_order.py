import os
import subprocess
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

import convtime
from convtime.histories import order
from convtime.histories.run import HistoryRun
from tests.helpers.histories import BEGIN, write_run

pytest.importorskip("ruptures")

COMMITS = {commit: int(BEGIN.timestamp()) + 3600 * hour for hour, commit in enumerate("abcd")}
RUN = st.tuples(st.sampled_from("abcdxy"), st.booleans(), st.integers(0, 9))
Git: TypeAlias = Callable[..., str]


@given(st.lists(RUN, max_size=8))
def test_known_commits_are_in_gits_order_and_the_others_are_placed_by_date(
    drawn: list[tuple[str, bool, int]],
) -> None:
    runs = [
        HistoryRun(
            (BEGIN + timedelta(hours=hour)).isoformat(), commit, dirty, "", {}, (), (), str(number)
        )
        for number, (commit, dirty, hour) in enumerate(drawn)
    ]
    found, sentences = order.in_order(runs, COMMITS)
    assert sorted(run.file for run in found) == sorted(run.file for run in runs)
    places = [("abcd".index(run.commit), run.dirty) for run in found if run.commit in "abcd"]
    assert places == sorted(places)
    hours = [datetime.fromisoformat(each.date) for each in found]
    known = [each.commit in "abcd" for each in found]
    for index in range(len(found)):
        if not known[index]:
            before = [hour for hour, one in zip(hours[:index], known[:index], strict=True) if one]
            after = [hour for hour, one in zip(hours[index:], known[index:], strict=True) if one]
            assert all(hour <= hours[index] for hour in before), "it stands behind earlier ones"
            assert not after or max([*before, after[0]]) > hours[index]
    early = sum(commit in "abcd" and hour < "abcd".index(commit) for commit, _, hour in drawn)
    unknown = sum(commit in "xy" for commit, _, _ in drawn)
    said = " ".join(sentences)
    for count, words in ((unknown, "git does not know"), (early, "dated before the commit")):
        assert (words in said) == (count > 0)
        assert count < 2 or f"and {count - 1} more" in said


def test_without_git_the_date_decides(tmp_path: Path) -> None:
    for number in range(5):
        date = (BEGIN - timedelta(hours=number)).isoformat().replace("+00:00", "Z")
        write_run(tmp_path, number, {"test_a": 1e-5}, date=date)
    found = convtime.history(tmp_path)
    assert [run.file[0] for run in found.runs] == ["4", "3", "2", "1", "0"]
    assert found.remarks == ()


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """Runs git in a repository around the folder, at some hour."""
    monkeypatch.setattr(order, "_GIT_SECONDS", 600.0)  # a slow machine changes no order

    def run(*arguments: str, hour: int = 0) -> str:
        date = (BEGIN + timedelta(hours=hour)).isoformat()
        return subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments],
            cwd=tmp_path,
            env={**os.environ, "GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date},
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ).stdout.strip()

    run("init", "-q")
    return run


def commit(git: Git, hour: int = 1) -> str:
    git("commit", "--allow-empty", "-m", "a commit", hour=hour)
    return git("rev-parse", "HEAD")


def write_at(folder: Path, commits: Sequence[str], hours: Sequence[int]) -> None:
    folder.mkdir(exist_ok=True)
    for number, (each, hour) in enumerate(zip(commits, hours, strict=True)):
        date = (BEGIN + timedelta(hours=hour)).isoformat()
        write_run(folder, number, {"test_a": 1e-5}, commit=each, date=date)


def test_git_decides_the_order_and_a_wrong_clock_is_told(tmp_path: Path, git: Git) -> None:
    commits = [commit(git, hour) for hour in (1, 2, 3, 4)]
    folder = tmp_path / "history"
    # Clocks that run backwards, one that is a century ahead, and a commit that git does not know.
    write_at(folder, [*commits, commits[1], "f" * 40], [3, 2, 1, 0, 24 * 36500, 1])
    found = convtime.history(folder)
    assert [run.file[0] for run in found.runs] == ["5", "0", "1", "4", "2", "3"]
    unknown, early, future = found.remarks
    assert "git does not know" in unknown
    assert "before the commit" in early
    assert "and 1 more" in early  # the first two are after their commits
    assert future.startswith("'4.json'")
    assert "in the future" in future
    assert str(found).startswith("6 runs (2026-01-01 to 2125-12-08)")  # by date


@pytest.mark.thorough
def test_a_failure_of_git_is_told_where_the_commits_matter(
    tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, 1, {"test_a": 1e-5}, commit=commit(git))
    assert convtime.history(tmp_path).remarks == ()
    with monkeypatch.context() as patch:
        patch.setattr(order, "_GIT_SECONDS", 0.0)
        (slow,) = convtime.history(tmp_path).remarks
    assert slow == "git did not list the commits within 0 s, so the date decides the order"
    with (tmp_path / ".git" / "config").open("a") as config:
        config.write("[core]\nrepositoryformatversion = 99\n")
    (failed,) = convtime.history(tmp_path).remarks
    assert failed.startswith("git cannot list the commits (fatal: ")
    monkeypatch.setenv("PATH", "")
    (missing,) = convtime.history(tmp_path).remarks
    assert missing.startswith("git cannot be run (No such file")
    write_run(tmp_path, 1, {"test_a": 1e-5}, commit="")
    assert convtime.history(tmp_path).remarks == ()


@pytest.mark.thorough
def test_the_repository_of_the_working_directory_counts_for_a_folder_elsewhere(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    git: Git,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path_factory.mktemp("history")
    write_at(folder, [commit(git, hour) for hour in (1, 2, 3)], [30, 29, 28])
    monkeypatch.chdir(folder)
    assert [run.file[0] for run in convtime.history(folder).runs] == ["2", "1", "0"]
    monkeypatch.chdir(tmp_path)
    assert [run.file[0] for run in convtime.history(folder).runs] == ["0", "1", "2"]
