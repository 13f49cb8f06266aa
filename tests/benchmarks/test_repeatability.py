"""What repeatability.py makes of its rows, without a GPU."""

import pytest
import repeatability
import results

GOALS = results.load_goals()["repeatability"]


def row(number, scale=1.0, triton=True):
    medians = {"memory_bound": 4e-6, "conv": 2e-5 * scale, "under_3us": 1e-6, "heavy": 6e-4}
    peer = {name: 2 * seconds for name, seconds in medians.items()} if triton else {}
    return {"key": f"process {number}", "convtime": medians, "triton": peer}


def test_the_spread_is_the_range_over_the_median():
    rows = [row(1), row(2, 1.03), row(3, 1.01)]
    summary = repeatability.summarise(rows)
    assert set(summary) == set(GOALS)
    assert summary == {
        "processes": 3,
        "memory_bound_spread": 0,
        "conv_spread": pytest.approx(0.03 / 1.01),
        "under_3us_spread": 0,
        "heavy_spread": 0,
    }


def test_what_older_files_lack_is_left_out():
    rows = [row(1), row(2)]
    del rows[1]["convtime"]["heavy"]
    assert "heavy_spread" not in repeatability.summarise(rows)


def test_one_process_has_no_spread():
    assert repeatability.summarise([row(1)]) == {"processes": 1}
