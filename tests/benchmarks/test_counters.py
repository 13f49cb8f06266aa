"""What benchmarks/counters.py makes of its rows, and of ncu's output, without a GPU."""

import counters
import pytest
import results

GOALS = results.load_goals()["counters"]


def row(name, ours, ncu):
    return {
        "key": name,
        "convtime": dict(zip(counters.METRICS, ours, strict=True)),
        "ncu": dict(zip(counters.METRICS, ncu, strict=True)),
    }


ROWS = [
    {"key": "time of relu", "before": 2e-6, "after": 2.02e-6},
    {"key": "time of matmul", "before": 3e-6, "after": 2.97e-6},
    row("relu", (4.2e6, 9e5, 7070), (4.25e6, 1e5, 7000)),
    row("add", (8.4e6, 4e6, 9000), (8.4e6, 4e6, 9000)),
]


def test_the_largest_errors_count_and_bytes_only_where_there_are_many():
    summary = counters.summarise(ROWS)
    assert summary == {
        "dram_bytes_error": pytest.approx(1 - 4.2 / 4.25),
        "cycles_error": pytest.approx(0.01),
        "time_after_over_before": pytest.approx(1.01),
    }
    assert set(summary) == set(GOALS)
    assert all(entry["met"] for entry in results.make_summary(ROWS, counters.summarise, GOALS))


def test_what_was_not_measured_is_missed():
    assert counters.summarise(ROWS[:2]) == {"time_after_over_before": pytest.approx(1.01)}
    missed = results.make_summary(ROWS[:2], counters.summarise, GOALS)
    assert [entry["met"] for entry in missed] == [False, False, True]


def ncu_output(kernels):
    header = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    lines = ["==PROF== Connected to process 7", header]
    for number in range(kernels):
        for metric, unit, value in zip(
            counters.METRICS,
            ("byte", "byte", "cycle"),
            (f"4,200,00{number}", "0", "n/a"),
            strict=True,
        ):
            lines.append(f'"{number}","7","k<1, 2>","{metric}","{unit}","{value}"')
    return "\n".join([*lines, "==PROF== Disconnected from process 7"])


def test_ncus_output_is_read():
    assert counters.read_csv(ncu_output(2)) == [
        {counters.READ: 4200000, counters.WRITTEN: 0},
        {counters.READ: 4200001, counters.WRITTEN: 0},
    ]


def test_kernels_belong_to_operations_in_their_order(monkeypatch):
    monkeypatch.setattr(counters, "REPEATS", 5)
    kernels = [dict.fromkeys(counters.METRICS, float(number)) for number in range(10)]
    found = counters.medians(kernels, ["a", "b"])
    assert found["a"][counters.READ] == 2
    assert found["b"][counters.READ] == 7
    with pytest.raises(RuntimeError, match="ncu profiled 9 kernels of 10 launches"):
        counters.medians(kernels[:9], ["a", "b"])
    with pytest.raises(RuntimeError, match="ncu has no value for some of dram__bytes_read.sum"):
        counters.medians([{}, *kernels[1:]], ["a", "b"])
