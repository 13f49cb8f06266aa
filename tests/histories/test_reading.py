import json
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import convtime
from tests.helpers.histories import BEGIN, noise, write_runs

pytest.importorskip("ruptures")


def test_damaged_files_cost_a_sentence_each_and_no_run(tmp_path: Path) -> None:
    write_runs(tmp_path, 20)
    good = (tmp_path / "3.json").read_text()
    damaged = {
        "half.json": (good[: len(good) // 2], "half-written"),
        "empty.json": ("", "it is empty"),
        "copy.json": (good, "copy of 3.json"),
        "list.json": ("[1]", "must be a JSON object"),
        "newer.json": (good.replace('"schema": "6.0"', '"schema": "7.0"'), "schema '7.0'"),
        "kind.json": (good.replace(", 0]", ", 5]"), "unknown kind 5"),
        "date.json": (good.replace("2026-01-01T", "yesterday "), "date must be in ISO 8601"),
        "type.json": (good.replace('"HistoryRun"', '"Sonnet"'), "Sonnet"),
        "field.json": (good.replace('"commit"', '"committed"'), "commit"),
        "binary.json": ("\xff\xfe\x00", "binary.json"),
        "deep.json": ("[" * 100_000, "deep.json"),
        "untimed.json": (
            '{"machine_info": {}, "benchmarks": [{"fullname": "a", "stats": {}}]}',
            "neither samples nor a median of 'a'",
        ),
    }
    for name, (text, _) in damaged.items():
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    found = convtime.history(tmp_path)
    assert len(found.runs) == 20
    remarks = {remark.partition(":")[0]: remark for remark in found.remarks}
    assert remarks.keys() == damaged.keys()
    for name, (_, said) in damaged.items():
        assert said in remarks[name]
        assert "\n" not in remarks[name]
    assert damaged.keys() <= {path.name for path in tmp_path.iterdir()}


def test_a_folder_without_a_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(convtime.InputError, match="must have a run; pytest --convtime-history"):
        convtime.history(tmp_path)
    with pytest.raises(convtime.InputError, match="must be a folder"):
        convtime.history(tmp_path / "none")


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
    history = convtime.history(tmp_path)
    assert {run.commit for run in history.runs} == {""}
    assert len({run.label for run in history.runs}) == 24  # the whole time, not only its hour
    assert {series.conditions for series in history.series} > {"pytest-benchmark"}
