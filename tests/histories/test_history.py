import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convtime
from convtime.cli import main
from tests.helpers.figures import check_drawn, table
from tests.helpers.histories import GPU, noise, write_run, write_runs
from tests.helpers.student import student_limit

pytest.importorskip("ruptures")


RATE = 0.0005


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
    logs = np.log(series.seconds)
    levels = logs[: change.run], logs[change.run :]
    rest = np.concatenate([each - each.mean() for each in levels])
    error = math.sqrt(rest @ rest / 38 * sum(1 / len(each) for each in levels))
    half = math.log(change.ratio.high / change.ratio.low) / 2
    # An outlier is left out.
    assert half == pytest.approx(student_limit(0.025, 38) * error, rel=0.2)
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


@pytest.mark.parametrize("rate", [0, 1.0, math.nan, "x"])
def test_a_rate_out_of_range_is_refused(tmp_path: Path, rate: Any) -> None:
    with pytest.raises(convtime.InputError, match="false_alarms must be a number above 0"):
        convtime.history(tmp_path, false_alarms=rate)


def test_uncommitted_changes_of_one_commit_can_differ(tmp_path: Path) -> None:
    for number, value in enumerate(1e-3 * np.exp(noise(1, 24)) * ([1.0] * 12 + [1.5] * 12)):
        for name, dirty in (("clean", False), ("dirty", True), ("later", number >= 12)):
            (tmp_path / name).mkdir(exist_ok=True)
            write_run(tmp_path / name, number, {"test_a": value}, commit="a" * 40, dirty=dirty)
    assert not convtime.history(tmp_path / "clean")["test_a"].changes
    (change,) = convtime.history(tmp_path / "dirty")["test_a"].changes
    assert change.run == 12
    (change,) = convtime.history(tmp_path / "later")["test_a"].changes
    assert change.run == 12  # the first run with uncommitted changes


def test_a_time_of_zero_is_left_out_of_its_series(tmp_path: Path) -> None:
    for number in range(4):
        write_run(tmp_path, number, {"test_a": 1e-5, "test_b": 0.0 if number == 1 else 1e-5})
    history = convtime.history(tmp_path)
    assert history.remarks == (
        "'test_b' has a time of 0 in 1 of the runs, which are left out of its series",
    )
    assert history["test_b"].runs == (0, 2, 3)


def test_a_renamed_test_is_a_new_test(tmp_path: Path) -> None:
    for number in range(6):
        write_run(tmp_path, number, {"test_old" if number < 3 else "test_new": 1e-5})
    history = convtime.history(tmp_path)
    assert {series.name: series.runs for series in history.series} == {
        "test_old": (0, 1, 2),
        "test_new": (3, 4, 5),
    }
    assert history.remarks == ()


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_runs(tmp_path / "h", 30, step=0.9, at=15)
    plot, output = tmp_path / "plot.json", tmp_path / "found.json"
    given = ["history", str(folder), "-v", "--plot", str(plot), "--json", str(output)]
    assert main(given) == 0
    told = capsys.readouterr().out
    assert told.startswith("30 runs (2026-01-01 to 2026-01-02), 1 series: 1 change")
    assert "faster" in told
    assert "29.json" in told
    assert "vega-lite" in plot.read_text()
    assert isinstance(convtime.load(output), convtime.History)
    assert main(["show", str(output)]) == 0
    assert "faster" in capsys.readouterr().out


def test_a_pattern_without_a_test_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_runs(tmp_path / "h", 3)
    assert main(["history", str(folder), "--test", "x*"]) == 2
    error = capsys.readouterr().err
    assert "--test must match a test" in error
    assert error.count("\n") == 1
