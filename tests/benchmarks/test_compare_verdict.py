"""What compare_verdict.py makes of its rows, without a GPU."""

import compare_verdict
import pytest
import results

GOALS = results.load_goals()["compare_verdict"]


def row(kind, *verdicts, true_ratio=None, seconds=0.5):
    if true_ratio is None:
        true_ratio = 1.0 if kind == "aa" else 1.0198
    pairs = [
        {"verdict": verdict, "ratio": 1 + index / 100, "low": 1.0, "high": 1.1, "seconds": seconds}
        for index, verdict in enumerate(verdicts)
    ]
    return {"key": kind, "kind": kind, "op": "relu", "true_ratio": true_ratio, "pairs": pairs}


def test_summary_is_of_the_verdicts():
    rows = [
        row("aa", "same", "same", "same", "faster"),
        row("aa", "same", "same", "uncertain", "slower"),
        row("slower", "slower", "slower", "slower", "uncertain", seconds=2.0),
    ]
    summary = compare_verdict.summarise(rows)
    assert set(summary) == set(GOALS)
    assert summary == {
        "aa_pairs": 8,
        "aa_false_alarms": 0.25,
        "aa_same": 0.625,
        "true_2pct_found": 0.75,
        "seconds_per_verdict": pytest.approx(1.0),
    }


def test_pairs_that_are_not_2_percent_apart_do_not_count():
    rows = [
        row("slower", "slower"),
        row("slower", "same", true_ratio=1.0149),
        row("slower", "slower", "slower", true_ratio=1.04),
    ]
    summary = compare_verdict.summarise(rows)
    assert summary["true_2pct_found"] == 1
    assert "true_2pct_found" not in compare_verdict.summarise(rows[1:])
    assert "aa_same" not in summary
