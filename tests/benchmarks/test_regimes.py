"""What benchmarks/regimes.py makes of its rows, without a GPU."""

import pytest
import regimes
import results

GOALS = results.load_goals()["regimes"]
REST = {"key": "from rest", "elapsed": [0.01, 0.1], "seconds": [172e-6, 196e-6]} | {
    "sm_clock_hz": [1.63e9, 1.39e9]
}
DOCTOR = {"key": "doctor", "seconds": 12.5, "exit_code": 1}


def measured(regime, median):
    return {
        "regime": regime,
        "median": median,
        "low": 0.99 * median,
        "high": 1.01 * median,
        "sm_clock_hz": 1.63e9 if regime == "burst" else 1.39e9,
    }


def row(number, burst=1.0, sustained=1.0, matmul_sustained=200e-6, triton=True):
    return {
        "key": f"process {number}",
        "triton": {"matmul": 190e-6 * burst} if triton else {},
        "burst": {
            "memory_bound": measured("burst", 127e-6),
            "matmul": measured("burst", 172e-6 * burst),
            "conv": measured("burst", 90e-6),
        },
        "sustained": {
            "memory_bound": measured("sustained", 128e-6),
            "matmul": measured("sustained", matmul_sustained),
            "conv": measured("sustained", 100e-6 * sustained),
        },
    }


def test_the_spread_is_that_of_the_worst_operation():
    summary = regimes.summarise(
        [row(1), row(2, burst=1.03), row(3, 1.01, sustained=1.02), REST, DOCTOR]
    )
    assert set(summary) == set(GOALS)
    assert summary == {
        "processes": 3,
        "burst_spread": pytest.approx(0.03 / 1.01),
        "sustained_spread": pytest.approx(0.02),
        "told_apart": 3,
        "doctor_s": 12.5,
    }


def test_regimes_are_told_apart_where_their_intervals_do_not_meet():
    rows = [row(1), row(2, matmul_sustained=174e-6), row(3, matmul_sustained=160e-6)]
    assert regimes.summarise(rows)["told_apart"] == 1


def test_a_process_in_which_a_regime_was_not_reached_does_not_count():
    refused = row(2, burst=2.0)
    refused["burst"]["conv"]["regime"] = "as-is"
    summary = regimes.summarise([row(1), refused, row(3)])
    assert (summary["processes"], summary["told_apart"], summary["burst_spread"]) == (2, 2, 0)
    assert "doctor_s" not in summary
    assert regimes.summarise([row(1)]) == {"processes": 1, "told_apart": 1}
