"""What compare_verdict.py makes of its rows, without a GPU."""

import functools

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


def test_the_table_has_a_line_an_operation():
    rows = [row("aa", "same"), row("aa", "slower"), row("slower", "slower", "same")]
    lines = compare_verdict.table(rows).splitlines()
    assert lines[2:] == [
        "| relu | 2 | 1.0000 | 1.0000 to 1.0000 | 1 | 0 | 1 | 0 | 0.50 |",
        "| relu | 2 | 1.0198 | 1.0000 to 1.0100 | 1 | 0 | 1 | 0 | 0.50 |",
    ]


def test_the_other_of_a_pair_does_the_same():
    call = functools.partial(sorted, [2, 1], reverse=True)
    other = compare_verdict._again(call)
    assert other is not call
    assert other() == call() == [2, 1]


def test_there_are_pairs_enough():
    torch = pytest.importorskip("torch")
    cases = compare_verdict.make_cases(torch.device("cpu"))
    of_kind = {kind: sum(key.startswith(kind) for key in cases) for kind in ("aa/", "slower/")}
    assert compare_verdict.PAIRS * of_kind["aa/"] >= 200
    assert compare_verdict.PAIRS * of_kind["slower/"] >= 40


def test_a_pair_is_compared_and_judged():
    torch = pytest.importorskip("torch")
    pytest.importorskip("convtime")
    call = functools.partial(torch.relu, torch.ones(1000))
    pair = compare_verdict.compare_pair(call, compare_verdict._again(call))
    assert pair["verdict"] in ("same", "faster", "slower", "uncertain")
    assert pair["low"] <= pair["ratio"] <= pair["high"]
    assert pair["seconds"] > 0
