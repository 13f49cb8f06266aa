"""What placement.py makes of its rows, without a GPU."""

import placement
import pytest
import results

GOALS = results.load_goals()["placement"]


def pair(verdict="same", ratio=1.0, seconds=0.1):
    return {"verdict": verdict, "ratio": ratio, "low": ratio - 0.004, "high": ratio + 0.004,
            "seconds": seconds}  # fmt: skip


def operation(median=10e-6, again=None, more=None):
    return {
        "median": median,
        "low": median - 0.05e-6,
        "high": median + 0.05e-6,
        "other tensors": again or pair(),
        "more data": more or pair("slower", 1.02),
    }


def process(number, **changes):
    return {
        "key": f"process {number}",
        "operations": {"relu": operation(**changes), "matmul": operation()},
    }


TRUTH = {"key": "truth", "seconds": {"relu": [10e-6, 10.2e-6], "matmul": [10e-6, 10e-6]}}


def test_the_summary_has_a_value_for_each_goal():
    summary = placement.summarise([TRUTH, *map(process, range(3))])
    assert set(summary) == set(GOALS)
    for name in set(GOALS) - {"processes", "ops"}:
        assert results.meets(summary[name], GOALS[name]), name
    assert summary["processes"] == 3
    assert summary["ops"] == 2


def test_false_verdicts_and_intervals_are_of_all_processes_and_operations():
    summary = placement.summarise(
        [process(1, again=pair("slower", 1.02)), process(2, again=pair("uncertain", 1.01))]
    )
    assert summary["aa_other_tensors_false_verdicts"] == pytest.approx(1 / 4)
    assert summary["aa_other_tensors_same"] == pytest.approx(2 / 4)
    assert summary["aa_other_tensors_interval_covers_one"] == pytest.approx(2 / 4)


def test_an_interval_has_to_have_the_median_of_all_processes():
    medians = (10e-6, 10e-6, 10.2e-6)
    summary = placement.summarise([process(n, median=m) for n, m in enumerate(medians)])
    assert summary["time_op_interval_covers_grand_median"] == pytest.approx(5 / 6)
    assert summary["worst_spread_less_one_tick"] == pytest.approx(0.168e-6 / 10e-6)


def test_a_spread_of_a_tick_is_none():
    assert placement.spread_less_one_tick([1e-6, 1.032e-6]) == pytest.approx(0, abs=1e-12)
    assert placement.spread_less_one_tick([1e-6, 1.01e-6]) == 0


def test_only_what_takes_2pct_longer_has_to_be_found():
    row = process(1, more=pair("same", 1.02))
    assert placement.summarise([TRUTH, row])["true_2pct_found"] == 0
    row["operations"]["matmul"]["more data"] = pair("same")
    row["operations"]["relu"]["more data"] = pair("slower", 1.02)
    assert placement.summarise([TRUTH, row])["true_2pct_found"] == 1
    assert "true_2pct_found" not in placement.summarise([row])


def test_the_slowest_verdict_is_of_either_kind():
    rows = [process(1, again=pair(seconds=0.3)), process(2, more=pair("slower", 1.02, 0.7))]
    assert placement.summarise(rows)["slowest_verdict_s"] == 0.7


def test_nothing_is_known_before_a_process_was_measured():
    assert placement.summarise([TRUTH]) == {"processes": 0}
