"""What packaging_benchmark.py makes of its rows, and one pair of imports."""

import packaging_benchmark
import pytest
import results

GOALS = results.load_goals()["packaging"]


def pairs(count=packaging_benchmark.PAIRS):
    """convtime costs 1, 2, 3, … ms over torch, which itself takes the less the later it is."""
    return [
        {"key": f"pair {number}", "torch_s": 3 - 0.1 * number, "convtime_s": 3 - 0.099 * number}
        | {"after_torch_s": 0.002 * number, "plugin_s": 0.5 + 0.001 * number, "no_plugin_s": 0.5}
        for number in range(1, count + 1)
    ]


def test_the_summary_is_the_median_of_convtimes_part():
    summary = packaging_benchmark.summarise(pairs())
    assert set(summary) == set(GOALS)
    assert summary == {
        "import_over_torch_s": pytest.approx(0.022),
        "idle_plugin_ms": pytest.approx(11),
    }


def test_a_file_from_before_the_plugin_says_nothing_of_it():
    rows = [{name: value for name, value in row.items() if "plugin" not in name} for row in pairs()]
    assert set(packaging_benchmark.summarise(rows)) == {"import_over_torch_s"}


def test_there_are_pairs_enough_or_no_summary():
    assert packaging_benchmark.PAIRS >= 15
    assert packaging_benchmark.summarise(pairs(packaging_benchmark.PAIRS - 1)) == {}


def test_an_import_that_fails_says_why():
    with pytest.raises(RuntimeError, match="No module named 'no_such_module'"):
        packaging_benchmark.measure_imports(["json", "no_such_module"])
