"""What packaging_benchmark.py makes of its rows, and one pair of imports."""

import importlib.metadata
import json
import sys

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
    assert "pytest" not in packaging_benchmark.table(rows)


def test_there_are_pairs_enough_or_no_summary():
    assert packaging_benchmark.PAIRS >= 15
    assert packaging_benchmark.summarise(pairs(packaging_benchmark.PAIRS - 1)) == {}


def test_the_table_has_the_spread_of_both_and_of_the_difference():
    lines = packaging_benchmark.table(pairs()).splitlines()
    assert lines[2:] == [
        "| `import torch` | 21 | 1900.0 | 1400.0 to 2400.0 | 900.0 to 2900.0 |",
        "| `import torch, convtime` | 21 | 1911.0 | 1416.0 to 2406.0 | 921.0 to 2901.0 |",
        "| difference of a pair | 21 | 11.0 | 6.0 to 16.0 | 1.0 to 21.0 |",
        "| `import convtime` after torch | 21 | 22.0 | 12.0 to 32.0 | 2.0 to 42.0 |",
        "| a start of pytest | 21 | 511.0 | 506.0 to 516.0 | 501.0 to 521.0 |",
        "| an idle plugin of it | 21 | 11.0 | 6.0 to 16.0 | 1.0 to 21.0 |",
    ]
    assert len(packaging_benchmark.table(pairs(1)).splitlines()) == 2


def test_an_import_that_fails_says_why():
    with pytest.raises(RuntimeError, match="No module named 'no_such_module'"):
        packaging_benchmark.measure_imports(["json", "no_such_module"])


def test_a_pair_is_measured_on_any_machine(tmp_path, monkeypatch):
    plugins = importlib.metadata.entry_points(group="pytest11")
    if "convtime" not in plugins.names:
        pytest.skip("convtime is not installed")
    monkeypatch.setattr(packaging_benchmark, "STARTS", 1)
    options = ["--output", str(tmp_path), "--commit", "abc", "--device", "cpu"]
    shard = ["--shard", f"2/{packaging_benchmark.PAIRS}"]
    monkeypatch.setattr(sys, "argv", ["packaging_benchmark.py", *options, *shard])
    packaging_benchmark.main()
    (path,) = tmp_path.iterdir()
    document = json.loads(path.read_text())
    (row,) = document["rows"]
    assert document["benchmark"] == "packaging"
    assert row["key"] == "pair 2"
    assert list(row)[1:] == [
        *("torch_s", "convtime_s", "after_torch_s"),
        *("plugin_s", "no_plugin_s"),
    ]
    assert 0.01 < row["torch_s"] < 100
    assert 0.01 < row["no_plugin_s"] < 100
    assert 0.001 < row["after_torch_s"] < row["convtime_s"] < 100
    assert [entry["value"] for entry in document["summary"]] == [None, None]
