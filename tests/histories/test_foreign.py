import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convtime
from tests.helpers.histories import BEGIN, noise

pytest.importorskip("ruptures")


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
