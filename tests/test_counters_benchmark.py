"""What benchmarks/counters.py makes of its rows, and of ncu's output, without a GPU."""

import shutil
import sys
from types import SimpleNamespace
from typing import Any

import counters
import pytest
import results
import torch

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


def test_the_table_has_a_line_for_each_operation():
    lines = counters.table(ROWS).splitlines()
    assert lines[2] == "| relu | 4.20 | 4.25 | 0.90 | 0.10 | 7,070 | 7,000 |"
    assert len(lines) == 4


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


def test_without_ncu_it_says_so(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(counters, "_NCU_PLACES", ("/nowhere/ncu",))
    with pytest.raises(RuntimeError, match="there is no ncu on this machine"):
        counters.find_ncu()


# Says of each launch of the operations that the script is asked to launch, in ncu's manner.
NCU = """#!{python}
import sys
arguments = sys.argv[1:]
script = arguments.index("--probe")
names = arguments[script + 2 :]
assert arguments[arguments.index("--clock-control") + 1] == "none"
if "none of one kernel" in names:
    print("==ERROR== The application returned an error code (9).", file=sys.stderr)
    raise SystemExit(9)
with open(arguments[arguments.index("--log-file") + 1], "w") as log:
    print("==PROF== Connected to process 7", file=log)
    print('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"', file=log)
    for number in range({repeats} * len(names)):
        for metric in arguments[arguments.index("--metrics") + 1].split(","):
            value = f"1,00{{number // {repeats}}}"
            print(f'"{{number}}","k<1, 2>","{{metric}}","byte","{{value}}"', file=log)
"""


def test_ncu_watches_the_operations_of_one_kernel(monkeypatch, tmp_path):
    ncu = tmp_path / "ncu"
    ncu.write_text(NCU.format(python=sys.executable, repeats=counters.REPEATS))
    ncu.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _name: str(ncu))
    launches = {"relu 4Mi fp32": ["kernel"], "matmul": ["memset", "kernel"], "sum": ["kernel"] * 2}

    def record(calls):
        assert set(calls) == set(counters.COUNTED)
        return {
            name: [SimpleNamespace(kind=kind) for kind in kinds] for name, kinds in launches.items()
        }

    monkeypatch.setattr("common.kernels.record", record)
    monkeypatch.setattr(counters, "COUNTED", {"relu 4Mi fp32": lambda make: make.relu(4)})
    cpu = torch.device("cpu")
    counters._ncu_found.cache_clear()
    found = counters.run_ncu(cpu)
    assert {name: values[counters.READ] for name, values in found.items()} == {
        "relu 4Mi fp32": 1000,
        "matmul": 1001,
    }
    launches.clear()
    launches["none of one kernel"] = ["kernel"]
    counters._ncu_found.cache_clear()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"ncu failed: ==ERROR== The application returned"):
            counters.run_ncu(cpu)
        launches.clear()  # which is not asked again
    counters._ncu_found.cache_clear()


def test_an_operation_is_counted_on_one_set_of_tensors_after_the_other(monkeypatch):
    others: list[None] = []
    monkeypatch.setattr(counters, "COUNTED", {"relu": lambda make: make.relu(4)})
    monkeypatch.setattr(counters, "REPEATS", 3)
    monkeypatch.setattr(counters, "other_kernels", lambda _: [lambda: others.append(None)])
    places: Any = counters.Places(torch.device("cpu"), "relu")
    inputs = [call.args[0] for call in places.calls]
    assert len({x.data_ptr() for x in inputs}) == counters.REPEATS
    for x in [*inputs, inputs[0]]:
        places.move()
        assert torch.equal(places(), torch.relu(x))
    assert len(others) == 4
