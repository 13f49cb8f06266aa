"""The benchmark of histories: its rows, its oracle and its summary."""

from __future__ import annotations

import json
import math
from pathlib import Path

import history
import numpy as np
import pytest

pytest.importorskip("ruptures")


def test_the_oracle_takes_the_three_most_probable_commits() -> None:
    step = math.log(1.03)
    for seed in range(20):
        values = history.DEVIATION * np.random.default_rng(seed).normal(size=24)
        values[12:] += step
        for per_commit in (1, 2):
            places = range(per_commit, 24, per_commit)
            errors = [
                sum((values - step * (np.arange(24) >= place)) ** 2) / history.DEVIATION**2
                for place in places
            ]
            weights = [math.exp(-(error - min(errors)) / 2) for error in errors]
            near = [sum(weights[max(0, n - 1) : n + 2]) for n in range(len(weights))]
            assert history._oracle(values, step, per_commit) == near.index(max(near)) + 1


def test_rows_count_what_is_found() -> None:
    row = history.of_step("a", 40, 60, 2, 20)
    assert row["series"] == 20
    assert 18 <= row["located"] <= row["found"] <= 20
    assert row["located"] <= row["covered"] + 2


def test_false_changes_are_counted() -> None:
    def with_step(random, count):
        return random.normal(size=count) + 10 * (np.arange(count) >= 30)

    assert history.of_no_change("b", 60, 20, with_step) == {"series": 20, "false": 20}
    assert history.of_no_change("c", 60, 20, history.normal)["false"] == 0


@pytest.mark.parametrize("noise", [history.heavy_tails, history.outliers, history.dependent])
def test_noises_have_about_the_same_deviation(noise) -> None:
    values = noise(np.random.default_rng(0), 20_000)
    quartiles = np.quantile(values, (0.25, 0.75))
    assert 0.6 < (quartiles[1] - quartiles[0]) / 1.349 < 1.1


def test_the_folder_has_steps_in_every_tenth_test(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(history, "RUNS", 40)
    monkeypatch.setattr(history, "TESTS", 11)
    history.write_folder(tmp_path)
    means = []
    for half in (range(20), range(20, 40)):
        rows = [json.loads((tmp_path / f"{number}.json").read_text())["times"] for number in half]
        means.append(np.log([[row[1] for row in times] for times in rows]).mean(axis=0))
    shifts = means[1] - means[0]
    assert [abs(shift) > 0.015 for shift in shifts] == [n % 10 == 0 for n in range(11)]


def test_the_summary_needs_its_rows() -> None:
    rows = [{"key": "load", "seconds": 2.0}]
    assert history.summarise(rows) == {"load_1000_runs_s": 2.0}
    for key, (measure, *arguments) in history.CASES.items():
        if measure is history.of_no_change:
            rows.append({"key": key, "series": 1000, "false": arguments[-1] is history.normal})
    rows.append(
        {"key": history.HEADLINE, "series": 4, "found": 4, "located": 3, "oracle": 4, "covered": 4}
    )
    assert history.summarise(rows) == {
        "load_1000_runs_s": 2.0,
        "located_within_one": 0.75,
        "false_changes_per_1000_series": 1.0,
    }
    assert "| 100.0% | 75.0% |" in history.table(rows)
    assert history.false_table(rows).count("\n") == 1 + len(rows) - 2
