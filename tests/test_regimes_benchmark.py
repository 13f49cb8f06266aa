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


def test_the_table_has_both_regimes_and_the_peer():
    rows = [row(1), row(2, 1.03, triton=False), row(3, 1.01), REST, DOCTOR]
    lines = regimes.table(rows).splitlines()
    assert len(lines) == 2 + len(regimes.OPERATIONS)
    assert "| 173.72 | 1630 | 2.97 % | 200.00 | 1390 | 0.00 % | 190.95 | 1.00 % |" in lines[3]
    assert lines[2].endswith("| – | – |")
    assert len(regimes.table([DOCTOR]).splitlines()) == 2


def test_the_picture_shows_the_load_and_both_regimes():
    pytest.importorskip("matplotlib")
    facts = {"gpu": "a GPU", "torch": "2"}
    rows = [row(1), row(2, 1.03), REST, DOCTOR]
    drawn = regimes.picture({"rows": rows, "provenance": facts})
    assert drawn.startswith(b"\x89PNG")
    assert drawn != regimes.picture({"rows": rows[:2], "provenance": facts})
    assert drawn != regimes.picture({"rows": rows[2:], "provenance": facts})


def test_what_a_load_from_rest_gives_is_thinned(monkeypatch):
    torch = pytest.importorskip("torch")
    import convtime

    count = 1000
    sampled = convtime.time_op(int, device="cpu", warmup=1, max_samples=10)
    sampled = convtime.Measurement.from_dict(
        sampled.to_dict()
        | {"seconds": [1e-4] * count, "sm_clocks_hz": [1.6e9] * (count - 1) + [None]}
        | {"sampling_seconds": 0.2}
    )
    monkeypatch.setattr(convtime, "time_op", lambda *args, **options: sampled)
    monkeypatch.setattr(regimes, "operations", lambda device: {"matmul": int})
    monkeypatch.setattr(regimes, "REST", 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    row = regimes.probe_from_rest(torch.device("cuda", 0))
    assert set(map(len, row.values())) == {250}
    assert row["elapsed"][-1] == pytest.approx(0.2, rel=0.01)  # idle time included
    assert set(row["seconds"]) == {1e-4}
    assert set(row["sm_clock_hz"]) == {1.6e9}
