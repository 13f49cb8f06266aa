"""A history of runs: its files, its order, its change points, and other tools' files in it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convtime
from convtime.cli import main
from convtime.core import codec
from convtime.histories import order
from convtime.histories.change_points import find_changes
from convtime.histories.run import Kind, append_run, make_run
from convtime.regression.significance import normal_of_student, student_of_normal
from tests.helpers.figures import check_drawn, table
from tests.helpers.measurements import make

pytest.importorskip("ruptures")

RATE = 0.0005
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
FORGED = "gpgsig -----BEGIN PGP SIGNATURE-----\n -----END PGP SIGNATURE-----\n"
GPU = Kind("NVIDIA H100", "method kernel, cache cold")


def noise(seed: int, count: int, deviation: float = 0.015) -> Any:
    return deviation * np.random.default_rng(seed).normal(size=count)


def write_run(folder: Path, number: int, times: dict[str, float], **changes: Any) -> Path:
    """Write a run as the plugin does, with chosen values of its fields."""
    kind = changes.pop("kind", GPU)
    run = make_run(
        date=changes.pop("date", (BEGIN + timedelta(hours=number)).isoformat()),
        commit=changes.pop("commit", f"{number:040x}"),
        dirty=changes.pop("dirty", False),
        tool="convtime",
        machine=changes.pop("machine", {"torch": "2.11"}),
        times=[((name, value, 0.99 * value, 1.01 * value), kind) for name, value in times.items()],
    )
    path = folder / f"{changes.pop('name', number)}.json"
    path.write_text(codec.to_json(run.to_dict()), encoding="utf-8")
    assert not changes
    return path


def write_runs(folder: Path, count: int, step: float = 1.0, at: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    values = 1e-5 * np.exp(noise(1, count))
    for number, value in enumerate(values):
        write_run(folder, number, {"test_a": float(value * (step if number >= at else 1))})
    return folder


@pytest.fixture(autouse=True)
def outside_of_a_repository(tmp_path: Path, monkeypatch) -> None:
    """Read no history of this repository, which can be slow."""
    monkeypatch.chdir(tmp_path)


# ---- change points ----


def test_a_step_is_found_with_its_size_and_the_commits_around_it() -> None:
    values = noise(0, 60)
    values[35:] += math.log(1.06)
    (found,) = find_changes(values, range(60), RATE)
    assert abs(found.at - 35) <= 1
    assert found.earliest <= 35 <= found.latest
    assert found.latest - found.earliest < 8
    assert found.certainty > 0.9
    assert found.p_value < 1e-9
    assert found.shift == pytest.approx(values[found.at :].mean() - values[: found.at].mean())
    assert 0.005 < found.error < 0.02


def test_steps_up_and_down_are_all_found() -> None:
    values = noise(2, 120)
    values[30:70] += 0.05
    values[95:] -= 0.05
    assert [
        abs(each.at - at) <= 1
        for each, at in zip(find_changes(values, range(120), RATE), (30, 70, 95), strict=True)
    ] == [True] * 3


def test_noise_has_about_as_many_false_alarms_as_promised() -> None:
    series = 2000
    for count in (12, 40, 150):
        false = sum(bool(find_changes(noise(n, count), range(count), 0.01)) for n in range(series))
        assert false / series < 0.02


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(40),
        np.tile([0.0, 1e-3], 20),
        noise(3, 9),
        np.concatenate([noise(4, 20), [1.0], noise(5, 20)]),
        np.concatenate([noise(6, 30), 0.5 + noise(7, 4)]),
    ],
    ids=["equal", "of a coarse clock", "few", "outlier", "four slow runs"],
)
def test_what_is_no_change(values: Any) -> None:
    assert find_changes(values, range(len(values)), RATE) == []


@pytest.mark.parametrize(("count", "share"), [(60, 0.2), (200, 0.3)])
def test_runs_of_two_modes_are_no_change(count: int, share: float) -> None:
    false = 0
    for seed in range(40):
        slow = np.random.default_rng(1000 + seed).random(count) < share
        false += bool(find_changes(noise(seed, count, 0.002) + 0.05 * slow, range(count), RATE))
    assert false <= 2


def test_a_step_between_equal_values_is_found() -> None:
    (found,) = find_changes([0.0] * 10 + [0.1] * 10, range(20), RATE)
    assert found.at == found.earliest == found.latest == 10


def test_dependent_runs_are_no_change() -> None:
    count, false = 300, 0
    for seed in range(100):
        values = noise(seed, count)
        for index in range(1, count):
            values[index] += 0.4 * values[index - 1]
        false += bool(find_changes(values, range(count), RATE))
    assert false <= 2


def test_a_change_is_between_commits() -> None:
    values = noise(8, 60)
    values[30:] += 0.06
    commits = [number // 5 for number in range(60)]
    (found,) = find_changes(values, commits, RATE)
    assert found.at == 30
    assert {found.earliest % 5, found.latest % 5} == {0}
    assert find_changes(values, [0] * 60, RATE) == []


def test_a_change_among_few_commits_is_found() -> None:
    values = noise(10, 40)
    values[25:] += 0.06
    for commits in ([0] * 25 + [1] * 15, [0] * 15 + [1] * 10 + [2] * 15):
        (found,) = find_changes(values, commits, RATE)
        assert found.at == 25


def test_the_limit_of_a_change_is_that_of_a_t_test() -> None:
    stats = pytest.importorskip("scipy.stats")
    for degrees in (8, 18, 100):
        for t in (3.0, 6.0):
            z = normal_of_student(t, degrees)
            assert student_of_normal(z, degrees) == pytest.approx(t)
            assert stats.norm.sf(z) == pytest.approx(stats.t.sf(t, degrees), rel=0.15)
    values = noise(9, 40)
    values[20:] += 0.03
    (found,) = find_changes(values, [0] * 20 + [1] * 20, 1.0)  # a single place for it
    assert found.p_value == pytest.approx(stats.ttest_ind(values[:20], values[20:]).pvalue, rel=0.2)


def test_ruptures_is_named_if_it_is_missing(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ruptures", None)
    with pytest.raises(convtime.InputError, match=r"pip install 'convtime\[history\]'"):
        convtime.history(write_runs(tmp_path, 3))


# ---- files ----


def test_a_run_is_stored_and_read(tmp_path: Path) -> None:
    provenance = {
        **make().provenance,
        "date": "2026-03-01T10:00:00+00:00",
        "git": {"commit": "a" * 40, "dirty": True},
        "torch": "2.11",
    }
    measured = make(seconds=tuple(1e-6 * (1 + n % 7) for n in range(70)), provenance=provenance)
    path = append_run(tmp_path, {"test_b": measured})
    assert path.name.startswith("20260301T100000Z-aaaaaaaa-")
    found = convtime.history(tmp_path)
    (run,), (series,) = found.runs, found.series
    assert (run.commit, run.dirty, run.label) == ("a" * 40, True, "a" * 12 + "+")
    assert run.machine == {"gpu": "NVIDIA H200", "cpu": "x", "torch": "2.11", "threads": "2"}
    assert (series.name, series.hardware) == ("test_b", "NVIDIA H200")
    assert "method event" in series.conditions
    assert series.seconds[0] == pytest.approx(np.median(measured.seconds), rel=1e-6)
    assert series.low[0] == pytest.approx(measured.median_interval[0], rel=1e-6)
    assert not series.judged


def test_writers_do_not_disturb_each_other(tmp_path: Path) -> None:
    measured = make(provenance={"date": "2026-03-01T10:00:00+00:00", "gpu": "a GPU"})

    def write(writer: int) -> None:
        for number in range(20):
            append_run(tmp_path, {f"test_{writer}_{number}": measured})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    found = convtime.history(tmp_path)
    assert len(found.runs) == len(found.series) == 160
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json"] * 160


def test_damaged_files_cost_a_sentence_each_and_no_run(tmp_path: Path) -> None:
    write_runs(tmp_path, 20)
    good = (tmp_path / "3.json").read_text()
    damaged = {
        "half.json": good[: len(good) // 2],
        "empty.json": "",
        "copy.json": good,
        "list.json": "[1]",
        "newer.json": good.replace('"schema": "6.0"', '"schema": "7.0"'),
        "kind.json": good.replace(", 0]", ", 5]"),
        "date.json": good.replace("2026-01-01T", "yesterday "),
        "type.json": good.replace('"HistoryRun"', '"Sonnet"'),
        "field.json": good.replace('"commit"', '"committed"'),
    }
    for name, text in damaged.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    found = convtime.history(tmp_path)
    assert len(found.runs) == 20
    remarks = {remark.partition(":")[0]: remark for remark in found.remarks}
    assert remarks.keys() == {*damaged, "binary.json"}
    assert all("\n" not in remark for remark in found.remarks)
    for name, said in (
        ("half.json", "half-written"),
        ("empty.json", "it is empty"),
        ("copy.json", "copy of 3.json"),
        ("list.json", "must be a JSON object"),
        ("newer.json", "schema '7.0'"),
        ("kind.json", "unknown kind 5"),
        ("date.json", "date must be in ISO 8601"),
        ("type.json", "Sonnet"),
        ("field.json", "commit"),
    ):
        assert said in remarks[name]
    assert damaged.keys() <= {path.name for path in tmp_path.iterdir()}


def test_a_folder_without_a_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(convtime.InputError, match="must have a run; pytest --convtime-history"):
        convtime.history(tmp_path)
    with pytest.raises(convtime.InputError, match="must be a folder"):
        convtime.history(tmp_path / "none")


# ---- order ----


@pytest.fixture
def commit(tmp_path: Path, monkeypatch) -> Callable[[], str]:
    """Make commits in a repository around the folder, an hour apart."""
    monkeypatch.setattr(order, "_GIT_SECONDS", 600.0)  # a slow machine changes no order
    count = 0

    def git(*arguments: str) -> str:
        date = (BEGIN + timedelta(hours=count)).isoformat()
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(
            ["git", *who, *arguments],
            cwd=tmp_path,
            env={**os.environ, "GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    def make_commit() -> str:
        nonlocal count
        count += 1
        git("commit", "--allow-empty", "-m", f"commit {count}")
        return git("rev-parse", "HEAD")

    git("init", "-q")
    return make_commit


def test_git_decides_the_order_and_a_wrong_clock_is_told(tmp_path: Path, commit) -> None:
    folder = tmp_path / "history"
    folder.mkdir()
    commits = [commit() for _ in range(6)]
    for number, each in enumerate(commits):
        # Clocks that run backwards: the first run is dated last.
        date = (BEGIN + timedelta(hours=3 - number)).isoformat()
        write_run(folder, number, {"test_a": 1e-5}, commit=each, date=date)
    date = (BEGIN + timedelta(days=365 * 100)).isoformat()
    write_run(folder, 9, {"test_a": 1e-5}, commit=commits[2], date=date, name="future")
    found = convtime.history(folder)
    assert [run.file for run in found.runs] == [
        *("0.json", "1.json", "2.json", "future.json", "3.json", "4.json", "5.json")
    ]
    (early,) = (remark for remark in found.remarks if "before the commit" in remark)
    assert "and 3 more" in early  # runs 2 to 5; the first two are after their commits
    assert str(found).startswith("7 runs (2025-12-31 to 2125-12-08)")  # by date
    (future,) = (remark for remark in found.remarks if "in the future" in remark)
    assert future.startswith("'future.json'")


def test_an_unknown_commit_is_placed_by_its_date(tmp_path: Path, commit) -> None:
    folder = tmp_path / "history"
    folder.mkdir()
    commits = [commit() for _ in range(4)]
    for number, each in enumerate(commits):
        date = (BEGIN + timedelta(hours=2 * number + 10)).isoformat()
        write_run(folder, number, {"test_a": 1e-5}, commit=each, date=date)
    date = (BEGIN + timedelta(hours=13)).isoformat()
    write_run(folder, 9, {"test_a": 1e-5}, commit="f" * 40, date=date)
    found = convtime.history(folder)
    assert [run.file[0] for run in found.runs] == ["0", "1", "9", "2", "3"]
    (remark,) = found.remarks
    assert "git does not know" in remark


def test_a_signature_that_git_shows_is_no_commit(tmp_path: Path, commit) -> None:
    def git(*arguments: str, given: str = "") -> str:
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True, input=given
        ).stdout

    unsigned = git("cat-file", "commit", commit())
    signed = unsigned.replace("\n\n", f"\n{FORGED}\n", 1)
    name = git("hash-object", "-t", "commit", "-w", "--stdin", given=signed).strip()
    git("update-ref", "HEAD", name)
    git("config", "log.showSignature", "true")
    git("config", "gpg.program", sys.executable)  # which says that it knows no such option
    assert len(git("log", "--format=%H").splitlines()) > 1
    assert order.commits_of(tmp_path) == ({name: BEGIN.timestamp() + 3600}, "")


def test_a_failure_of_git_is_told_where_the_commits_matter(
    tmp_path: Path, commit, monkeypatch
) -> None:
    write_run(tmp_path, 1, {"test_a": 1e-5}, commit=commit())
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


def test_the_repository_of_the_working_directory_counts_for_a_folder_elsewhere(
    tmp_path: Path, tmp_path_factory, commit, monkeypatch
) -> None:
    folder = tmp_path_factory.mktemp("history")
    monkeypatch.chdir(folder)
    for number, each in enumerate([commit() for _ in range(3)]):
        date = (BEGIN + timedelta(hours=30 - number)).isoformat()
        write_run(folder, number, {"test_a": 1e-5}, commit=each, date=date)
    assert [run.file[0] for run in convtime.history(folder).runs] == ["2", "1", "0"]
    monkeypatch.chdir(tmp_path)
    assert [run.file[0] for run in convtime.history(folder).runs] == ["0", "1", "2"]


def test_without_git_the_date_decides(tmp_path: Path) -> None:
    for number in range(5):
        date = (BEGIN - timedelta(hours=number)).isoformat().replace("+00:00", "Z")
        write_run(tmp_path, number, {"test_a": 1e-5}, date=date)
    found = convtime.history(tmp_path)
    assert [run.file[0] for run in found.runs] == ["4", "3", "2", "1", "0"]
    assert found.remarks == ()


# ---- tests that change ----


def test_a_renamed_test_is_told_and_joined(tmp_path: Path) -> None:
    for number, value in enumerate(1e-5 * np.exp(noise(1, 40))):
        name = "a.py::test_old" if number < 20 else "b.py::test_new"
        write_run(tmp_path, number, {name: float(value), "other": 1e-6})
    apart = convtime.history(tmp_path)
    (remark,) = apart.remarks
    assert "--renamed a.py::test_old=b.py::test_new joins them" in remark
    assert len(apart["a.py::test_old"].runs) == len(apart["b.py::test_new"].runs) == 20
    joined = convtime.history(tmp_path, renamed={"a.py::test_old": "b.py::test_new"})
    assert joined.remarks == ()
    assert joined["b.py::test_new"].runs == tuple(range(40))
    with pytest.raises(KeyError):
        joined["a.py::test_old"]


def test_removed_and_parametrized_tests_are_told(tmp_path: Path) -> None:
    for number in range(6):
        names = (
            ["test_x", "test_y a[0]", "test_gone", "test_kept", "test_also"]
            if number < 3
            else ["test_x[1]", "test_x[2]", "test_y[3] a[0]", "test_kept"]
        )
        write_run(tmp_path, number, dict.fromkeys(names, 1e-5))
    found = convtime.history(tmp_path)
    parametrized, with_label, removed = found.remarks
    assert "'test_x' was parametrized at 000000000000" in parametrized
    assert "'test_x[1]', 'test_x[2]'" in parametrized
    assert "'test_y a[0]' was parametrized at 000000000000: 'test_y[3] a[0]'" in with_label
    assert removed.startswith("'test_gone', 'test_also': last measured at")
    assert len(found["test_gone"].runs) == 3


@pytest.mark.parametrize(
    ("renamed", "said"), [({"a": "b", "b": "a"}, "lead back"), ({"none": "b"}, "no run has")]
)
def test_a_wrong_renaming_is_told(tmp_path: Path, renamed: dict[str, str], said: str) -> None:
    write_runs(tmp_path, 3)
    if said == "no run has":
        assert said in convtime.history(tmp_path, renamed=renamed).remarks[0]
        return
    with pytest.raises(convtime.InputError, match=said):
        convtime.history(tmp_path, renamed=renamed)


def test_a_time_of_zero_is_told(tmp_path: Path) -> None:
    for number in range(4):
        write_run(tmp_path, number, {"test_a": 1e-5, "test_b": 0.0 if number == 1 else 1e-5})
    found = convtime.history(tmp_path)
    assert found.remarks == (
        "'test_b' has a time of 0 in 1 of the runs, which are left out of its series",
    )
    assert found["test_b"].runs == (0, 2, 3)


# ---- judging ----


def test_the_result_says_since_when_how_sure_and_how_many_false_alarms(tmp_path: Path) -> None:
    found = convtime.history(write_runs(tmp_path / "h", 40, step=1.06, at=25))
    ((series, change),) = found.changes
    assert (series.name, change.verdict) == ("test_a", "slower")
    assert abs(change.run - 25) <= 1
    assert change.commit == found.runs[change.run].label
    assert change.before == found.runs[change.run - 1].label
    assert found.runs[25].label in change.commits
    assert change.earliest <= 25 <= change.latest
    assert change.ratio.low < 1.06 < change.ratio.high
    assert found.expected_false_alarms == pytest.approx(2 * RATE)  # two stretches
    text = str(found)
    assert "1 change, 0.001 false alarms expected" in text
    assert change.commit in text
    assert "runs, in order" in found.details()
    path = tmp_path / "found.json"
    found.save(path)
    again = convtime.load(path)
    assert again == found
    assert str(again) == text


def test_other_hardware_is_a_break_and_no_change(tmp_path: Path) -> None:
    for number in range(60):
        kind = GPU if number < 30 else dataclasses.replace(GPU, hardware="NVIDIA H200")
        value = float(1e-5 * np.exp(noise(number, 1)[0])) * (1 if number < 30 else 0.7)
        write_run(tmp_path, number, {"test_a": value}, kind=kind)
    found = convtime.history(tmp_path)
    assert found.changes == ()
    assert [series.hardware for series in found.series] == ["NVIDIA H100", "NVIDIA H200"]
    assert found["test_a"].hardware == "NVIDIA H200"
    assert "on NVIDIA" not in str(found)  # there is no change to tell apart
    figure = found.plot()
    assert table(figure, "hardware")["run"] == [29.5]
    assert table(figure, "stretch")["stretch"] == [0] * 30 + [1] * 30
    check_drawn(figure)


def test_the_plot_marks_change_points(tmp_path: Path) -> None:
    found = convtime.history(write_runs(tmp_path, 40, step=1.2, at=20))
    figure = found.plot()
    marked = table(figure, "change")
    assert marked["run"] == [19.5]
    assert "× since" in marked["change"][0]
    (series,) = found.series
    assert table(figure, "time")["time"] == pytest.approx([1e6 * each for each in series.seconds])
    check_drawn(figure)
    with pytest.raises(convtime.InputError, match="names must be of tests"):
        found.plot(["test_z"])


def test_software_that_changed_at_the_same_run_is_named(tmp_path: Path) -> None:
    for number, value in enumerate(1e-5 * np.exp(noise(1, 40, 0.002))):
        late = number >= 20
        write_run(
            *(tmp_path, number, {"test_a": float(value * (1.1 if late else 1))}),
            machine={"torch": "2.12" if late else "2.11"},
        )
    ((_, change),) = convtime.history(tmp_path).changes
    assert change.differs == ("torch 2.11 → 2.12",)


@pytest.mark.parametrize("rate", [0, 0.0, 1.0, math.nan, "x"])
def test_a_rate_out_of_range_is_refused(tmp_path: Path, rate: Any) -> None:
    with pytest.raises(convtime.InputError, match="false_alarms must be a number above 0"):
        convtime.history(tmp_path, false_alarms=rate)


# ---- other tools ----


def test_files_of_pytest_benchmark_are_runs(tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark")
    suite = tmp_path / "test_it.py"
    suite.write_text("def test_sum(benchmark):\n    benchmark(sum, range(100_000))\n")
    for options in (("--benchmark-autosave",), ("--benchmark-autosave", "--benchmark-save-data")):
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(suite)),
                *("--benchmark-min-rounds=20", "--benchmark-max-time=0.01", *options),
                *("--benchmark-storage", f"file://{tmp_path / 'runs'}"),
            ],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if "XDIST" not in name},
            check=True,
            capture_output=True,
        )
    documents = [json.loads(path.read_text()) for path in sorted(tmp_path.rglob("runs/**/*.json"))]
    found = convtime.history(tmp_path / "runs")
    assert found.remarks == ()
    assert {run.tool.partition(" ")[0] for run in found.runs} == {"pytest-benchmark"}
    medians = [each["benchmarks"][0]["stats"]["median"] for each in documents]
    stored = sorted(seconds for series in found.series for seconds in series.seconds)
    assert stored == pytest.approx(sorted(medians), rel=1e-2)
    assert {series.name for series in found.series} == {"test_it.py::test_sum"}
    intervals = [math.isfinite(low) for series in found.series for low in series.low]
    assert sorted(intervals) == [False, True]  # only one of them has samples


def test_files_of_pytest_benchmark_outside_of_git_have_no_commit(tmp_path: Path) -> None:
    for number, value in enumerate(1e-3 * np.exp(noise(1, 24)) * ([1.0] * 12 + [1.5] * 12)):
        data = {"data": [value] * 20} if number % 2 else {}
        document = {
            "machine_info": {"cpu": {"brand_raw": "A CPU"}},
            "commit_info": {"id": "unversioned", "dirty": None},
            "datetime": (BEGIN + timedelta(hours=number)).isoformat(),
            "benchmarks": [
                {"fullname": "test_it.py::test_sum", "stats": {"median": value, **data}}
            ],
        }
        (tmp_path / f"{number}.json").write_text(json.dumps(document))
    found = convtime.history(tmp_path)
    assert {run.commit for run in found.runs} == {""}
    assert len({run.label for run in found.runs}) == 24  # the whole time, not only its hour


def test_uncommitted_changes_of_one_commit_can_differ(tmp_path: Path) -> None:
    for number, value in enumerate(1e-3 * np.exp(noise(1, 24)) * ([1.0] * 12 + [1.5] * 12)):
        for name, dirty in (("clean", False), ("dirty", True)):
            (tmp_path / name).mkdir(exist_ok=True)
            write_run(tmp_path / name, number, {"test_a": value}, commit="a" * 40, dirty=dirty)
    assert not convtime.history(tmp_path / "clean")["test_a"].changes
    (change,) = convtime.history(tmp_path / "dirty")["test_a"].changes
    assert abs(change.run - 12) <= 1


def asv_document(number: int, **changes: Any) -> dict[str, Any]:
    """Results as asv 0.6 writes them."""
    return {
        "commit_hash": f"{number:040x}",
        "env_name": "virtualenv-py3.12",
        "date": 1767225600000 + 3_600_000 * number,
        "params": {"machine": "m", "cpu": "A CPU", "ram": "1"},
        "python": "3.12",
        "requirements": {},
        "env_vars": {},
        "result_columns": [
            *("result", "params", "version", "started_at", "duration", "stats_ci_99_a"),
            *("stats_ci_99_b", "stats_q_25", "stats_q_75", "stats_number", "stats_repeat"),
        ],
        "results": {
            "sums.time_sum": [[2e-6], [], "v", 1, 1, [1.9e-6], [2.1e-6], [2e-6], [2e-6], [9], [9]],
            "sums.time_of": [
                *([3e-6, None, 5e-6, 6e-6], [["1", "2"], ["'a'", "'b'"]], "v", 1, 1),
                *([2.9e-6, None, 4.9e-6, 5.9e-6], [3.1e-6, None, 5.1e-6, 6.1e-6]),
            ],
            "sums.track_size": [[7.0], [], "v"],
            "sums.time_failed": [None, [], "v"],
        },
        "durations": {},
        "version": 2,
        **changes,
    }


def test_results_of_asv_are_runs(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "machine"
    folder.mkdir(parents=True)
    for number in range(3):
        (folder / f"{number}-env.json").write_text(json.dumps(asv_document(number)))
    (folder / "machine.json").write_text('{"machine": "m", "version": 1}')
    (tmp_path / "results" / "benchmarks.json").write_text(
        json.dumps({"sums.track_size": {"unit": "seconds"}, "version": 2})
    )
    (folder / "9-env.json").write_text(json.dumps(asv_document(9, version=1)))
    found = convtime.history(tmp_path / "results")
    assert [run.commit for run in found.runs] == [f"{number:040x}" for number in range(3)]
    assert found.runs[1].date == "2026-01-01T01:00:00+00:00"
    assert {series.name: series.seconds[0] for series in found.series} == {
        "sums.time_sum": 2e-6,
        "sums.time_of(1, 'a')": 3e-6,
        "sums.time_of(2, 'a')": 5e-6,
        "sums.time_of(2, 'b')": 6e-6,
        "sums.track_size": 7.0,  # by the unit that asv describes
    }
    assert found["sums.time_of(2, 'a')"].high == (5.1e-6,) * 3
    (remark,) = found.remarks
    assert "asv's results of version 1, must be 2" in remark


def test_what_asv_skipped_or_measured_of_other_code_costs_no_other_time(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "machine"
    folder.mkdir(parents=True)
    results = asv_document(0)["results"]
    results["sums.time_failed"] = [[math.nan], [], "v"]  # as asv writes what is skipped
    results["sums.time_sum"][2] = "of an earlier benchmark"
    (folder / "0.json").write_text(json.dumps(asv_document(0, results=results)))
    (tmp_path / "results" / "benchmarks.json").write_text(
        json.dumps({"sums.time_sum": {"unit": "seconds", "version": "v"}})
    )
    found = convtime.history(tmp_path / "results")
    assert not found.remarks
    assert {series.name.partition("(")[0] for series in found.series} == {"sums.time_of"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"results": {"time_a": [1e-6, [], "v"]}}, "result of 'time_a' must be a list"),
        ({"results": {"time_a": [[1e-6], 5, "v"]}}, "params of 'time_a' must be a list"),
        ({"results": {"time_a": [[1e-6], [5], "v"]}}, "params that are not lists"),
        ({"results": {"time_a": [[1e-6], [], "v", 1, 1, 5.0]}}, "stats_ci_99_a of 'time_a'"),
        ({"date": 10**30}, "date must be in milliseconds since 1970"),
    ],
)
def test_files_of_asv_of_a_wrong_form_are_left_out(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    (tmp_path / "right.json").write_text(json.dumps(asv_document(0)))
    (tmp_path / "wrong.json").write_text(json.dumps(asv_document(1, **changes)))
    (tmp_path / "deep.json").write_text("[" * 100_000)
    found = convtime.history(tmp_path)
    assert len(found.runs) == 1
    assert any(said in each for each in found.remarks)
    assert any("deep.json: is left out" in each for each in found.remarks)


def test_the_newest_run_is_written_for_bencher(tmp_path: Path) -> None:
    write_run(tmp_path, 0, {"test_a": 1e-6, "test_gone": 1e-6})
    path = write_run(tmp_path, 1, {"test_a": 2e-6, "test_b": 3e-6})
    unknown = path.read_text().replace("2.97e-06, 3.03e-06", "null, null")
    path.write_text(unknown)
    output = tmp_path / "bencher.bmf"
    assert main(["history", str(tmp_path), "--bencher", str(output)]) == 0
    written = json.loads(output.read_text())
    assert written.keys() == {"test_a", "test_b"}
    assert written["test_a"]["latency"] == pytest.approx(
        {"value": 2000.0, "lower_value": 1980.0, "upper_value": 2020.0}
    )
    assert written["test_b"] == {"latency": {"value": pytest.approx(3000.0)}}


# ---- the command ----


def test_the_command_prints_and_writes(tmp_path: Path, capsys) -> None:
    folder = write_runs(tmp_path / "h", 30, step=0.9, at=15)
    plot, output = tmp_path / "plot.svg", tmp_path / "found.json"
    given = ["history", str(folder), "-v", "--plot", str(plot), "--json", str(output)]
    assert main(given) == 0
    told = capsys.readouterr().out
    assert told.startswith("30 runs (2026-01-01 to 2026-01-02), 1 series: 1 change")
    assert "faster" in told
    assert "29.json" in told
    assert plot.read_text().startswith("<svg")
    assert isinstance(convtime.load(output), convtime.History)
    assert main(["show", str(output)]) == 0
    assert "faster" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--test", "x*"], "--test must match a test"),
        (["--renamed", "a"], "--renamed must be OLD=NEW, got 'a'"),
        (["--renamed", "a=b", "--renamed", "a=c"], "one new name, got two"),
        (["--false-alarms", "2"], "false_alarms must be a number above 0"),
        (["--plot", "a.txt"], "must end in one of"),
        (["--bencher", "a.json", "--json", "a.json"], "must name different files"),
    ],
)
def test_bad_arguments_are_one_sentence(
    tmp_path: Path, capsys, arguments: list[str], said: str
) -> None:
    folder = write_runs(tmp_path / "h", 3)
    assert main(["history", str(folder), *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("test_a[x=1]", "test_b[y=2]"),
        ("test_a[(]", "test_b[it's]"),
        ("test_a x=1", "test_b"),
        ("test_a", "test_b 'y'=2"),
    ],
)
def test_the_suggested_option_joins_names_with_any_characters(
    tmp_path: Path, capsys, old: str, new: str
) -> None:
    for number in range(4):
        write_run(tmp_path, number, {old if number < 2 else new: 1e-5})
    (remark,) = convtime.history(tmp_path).remarks
    option = re.search(r"--renamed .*(?= joins them)", remark)
    assert option is not None
    assert main(["history", str(tmp_path), *shlex.split(option[0])]) == 0
    assert "4 runs (2026-01-01 to 2026-01-01), 1 series" in capsys.readouterr().out
    assert main(["history", str(tmp_path), "--renamed", "test_c[x=1]=test_d[y=2]"]) == 0
    assert "'test_c[x=1]' is to be renamed" in capsys.readouterr().out
