"""What accuracy.py makes of its rows and of kineto's events, without a GPU."""

import contextlib
import functools
import importlib
import json
import subprocess
import sys
import types

import accuracy
import check_results
import pytest
import results
import torch
from accuracy_parts import nvbench as nvbench_probe
from accuracy_parts import passes, report
from accuracy_parts.cases import make_cases
from accuracy_parts.cost import probe_cpu_calls
from accuracy_parts.nvbench import _read_nvbench
from accuracy_parts.operations import operations
from accuracy_parts.rows import CACHES, STAMPED_REFERENCE_NS, is_op
from common import peers, running, truth
from common.truth import RANGE, TraceEvent, read_trace

from tests.helpers import BENCHMARKS

GOALS = results.load_goals()["accuracy"]
KERNEL = "kernel_ops_off_by_more_than_1pct_or_64ns"
EVENT = "event_single_kernel_ops_off_by_more_than_2pct_or_250ns"
GRAPH = "graph_ops_off_by_more_than_3pct_or_500ns"
STAMPED = "kernel_vs_globaltimer_off_by_more_than_1pct_or_64ns"
SPIN = "known_duration_difference_error_ns"


def tracing(added=0.0, to_a_spin=0.0):
    return {
        "events": {"untraced": [1e-5], "traced": [1e-5 + added]},
        "events_of_spin": {"untraced": [8e-6], "traced": [8e-6 + to_a_spin]},
    }


def test_do_bench_is_told_in_seconds_or_why_not(monkeypatch):
    calls = {"a": lambda: 1, "b": lambda: 2}
    testing = types.SimpleNamespace(do_bench=lambda call, return_mode: 1e3 * call())
    monkeypatch.setitem(sys.modules, "triton.testing", testing)
    assert peers.do_bench_medians(calls) == {"triton": {"a": 1.0, "b": 2.0}}
    monkeypatch.setitem(sys.modules, "triton.testing", None)
    row = peers.do_bench_medians(calls)
    assert row["triton"] == {}
    assert row["triton_reason"].startswith("ModuleNotFoundError: ")


def op(key="relu/cold", truth=1e-5, span=None, kernels=1, kernel=1e-5, event=1e-5, graph=1e-5):
    span = truth if span is None else span
    # The middle pass is the one that counts.
    return {
        "key": key,
        "calls": 20,
        "truth": {
            "kernels": kernels,
            "kernel": [truth / 2, truth, 3 * truth],
            "span": [span / 2, span, 3 * span],
            "held": [True, True, True],
            **tracing(),
        },
        "truth_of_graph": {
            "stamps": [span / 2, span + 1.2e-6, 3 * span],
            "stamps_of_spin": 6.9e-6,
            "kernel_of_spin": 5.7e-6,
        },
        "kernel": {"median": [kernel, 0.5 * kernel, 2 * kernel]},
        "event": {"median": [event, 0.5 * event, 2 * event]},
        "graph": {"reason": graph} if isinstance(graph, str) else {"median": [graph]},
        "peers": {
            "triton do_bench": {"seconds": 2 * span},
            "torch Timer": {"reason": "ImportError: no"},
        },
    }


def spin(asked_ns, seconds):
    return {
        "key": f"spin/{asked_ns} ns",
        "asked_ns": asked_ns,
        "kernel": {"midmean": [seconds], "median": [seconds]},
    }


def stamped(key, traced, stamps, grid=(1, 1), asked_ns=None):
    return {
        "key": key,
        "kernel": {"midmean": [traced]},
        "stamps": [stamps],
        "grid": list(grid),
        "reference_grid": list(grid),
        "asked_ns": asked_ns,
    }


def nvbench(**found):
    return {"key": "cuda-bench/1", "ops": {"relu": found}}


def cost():
    return {
        "key": "cost",
        "first_use_s": 0.5,
        "default_call_s": [0.2, 0.1, 0.05],
        "default_cpu_call_s": [0.02, 0.03, 0.01],
        "as_is_call_s": [0.04, 0.02, 0.03],
        "loop_call_s": [3e-7, 2e-7, 9e-7],
        "loop_floor_s": [1e-7, 2e-7, 0.5e-7],
        "device_bytes_free_before": 1_000_000_000,
        "device_bytes_free_least": 700_000_000,
        "flush_bytes": 260_000_000,
        "host_bytes": 1,
    }


def complete():
    return [
        cost(),
        spin(1_000, 1.57e-6),
        spin(2_000, 2.6e-6),
        stamped("stamped/1024", 1.6e-6, 1.0e-6, (132, 1), STAMPED_REFERENCE_NS),
        stamped("stamped/spin 5000 ns, 132 blocks", 5.6e-6, 5.0e-6, (132, 1)),
        op("relu/cold"),
        op("relu/warm"),
        nvbench(isolated=1.5e-5, batch=1.2e-5, samples=9),
    ]


def test_summary_has_every_goal():
    summary = accuracy.summarise(complete())
    assert set(summary) == set(GOALS)
    assert summary == {
        "ops": 2,
        KERNEL: 0,
        EVENT: 0,
        GRAPH: 0,
        STAMPED: 0,
        SPIN: pytest.approx(30),
        "first_use_s": 0.5,
        "default_call_5us_kernel_s": 0.1,
        "default_call_5us_cpu_s": 0.02,
        "as_is_call_5us_kernel_s": 0.03,
        "loop_overhead_us": pytest.approx(0.2),
        "memory_beside_flush_mb": pytest.approx(40),
    }


@pytest.mark.parametrize(
    ("changes", "name", "off"),
    [
        ({"truth": 1e-6, "kernel": 1.064e-6}, KERNEL, 0),
        ({"truth": 1e-6, "kernel": 1.065e-6}, KERNEL, 1),
        ({"truth": 1e-6, "kernel": 0.935e-6}, KERNEL, 1),
        ({"truth": 1e-3, "kernel": 1.0099e-3}, KERNEL, 0),
        ({"truth": 1e-3, "kernel": 1.0101e-3}, KERNEL, 1),
        ({"event": 1.025e-5}, EVENT, 0),
        ({"event": 1.026e-5}, EVENT, 1),
        ({"truth": 1e-3, "event": 1.021e-3}, EVENT, 1),
        ({"event": 2e-5, "kernels": 3}, EVENT, 0),
        ({"graph": 1.05e-5}, GRAPH, 0),
        ({"graph": 1.06e-5}, GRAPH, 1),
        ({"graph": 1.25e-5, "span": 1.2e-5}, GRAPH, 0),
        ({"graph": 1e-5, "span": 1.2e-5}, GRAPH, 1),
    ],
)
def test_what_is_off(changes, name, off):
    assert accuracy.summarise([op(**changes)])[name] == off


def test_operations_without_a_time_are_no_complete_ones():
    no_kernel = op() | {"kernel": {"reason": "RuntimeError: CUPTI is taken"}}
    assert accuracy.summarise([no_kernel]) == {"ops": 0}
    no_graph = accuracy.summarise([op(graph="RuntimeError: cannot be captured")])
    assert no_graph["ops"] == 1
    assert GRAPH not in no_graph  # no graph at all is a miss, not a success


class RecordedGraph:
    """A graph's work on a device with a clock; what a piece takes depends on the one before."""

    def __init__(self):
        self.now, self.before, self.work = 0, "", []

    def captures(self, kind, nanoseconds):
        stamps = torch.zeros(1, 2, dtype=torch.int64)

        def run():
            self.now += nanoseconds(self.before)
            self.before = kind
            stamps[:] = self.now

        self.work.append(run)
        return stamps

    def replay(self):
        for run in self.work:
            run()


@pytest.mark.parametrize(("cold", "nanoseconds"), [(True, 12_000), (False, 10_000)])
def test_stamps_in_a_warm_graph_are_around_calls_right_behind_each_other(
    cold, nanoseconds, monkeypatch
):
    graph = RecordedGraph()
    operators = types.SimpleNamespace(
        flush_l2=lambda: graph.captures("flush", lambda _: 40_000),
        spin_ns=lambda asked: graph.captures("spin", lambda _: asked),
        read_clocks=lambda: graph.captures("stamp", lambda _: 0)[0],
    )
    cuda = types.SimpleNamespace(
        CUDAGraph=lambda: graph,
        graph=contextlib.nullcontext,
        synchronize=lambda: None,
    )
    ops = types.SimpleNamespace(convtime=operators)
    monkeypatch.setattr(passes, "torch", types.SimpleNamespace(cuda=cuda, ops=ops))
    # A launch is hidden behind the call before, and takes 2 µs after anything else.
    call = functools.partial(
        graph.captures, "call", lambda before: 10_000 if before == "call" else 12_000
    )
    stamps = passes.StampPasses(call, 50, cold=cold)
    stamps.take()
    assert stamps.row() == {"stamps": [pytest.approx(1e-9 * nanoseconds)]}


def test_stamped_kernels_need_the_reference_and_lose_its_offset():
    reference = stamped("stamped/1024", 1.6e-6, 1.0e-6, asked_ns=STAMPED_REFERENCE_NS)
    near = stamped("stamped/near", 5.66e-6, 5.0e-6)
    far = stamped("stamped/far", 5.67e-6, 5.0e-6)
    assert accuracy.summarise([reference, near, far])[STAMPED] == 1
    assert STAMPED not in accuracy.summarise([near, far])
    assert STAMPED not in accuracy.summarise([reference])


def test_differences_of_spins_are_of_all_pairs():
    rows = [spin(1_000, 1.6e-6), spin(2_000, 2.63e-6), spin(5_000, 5.56e-6)]
    assert accuracy.summarise(rows)[SPIN] == pytest.approx(70)
    assert SPIN not in accuracy.summarise(rows[:1])


def event(name, start, end, correlation=0, on_device=False):
    return TraceEvent(name, start, end, on_device, correlation)


def trace():
    return [
        event(RANGE, 100, 200),
        event(RANGE, 300, 400),
        event("aten::relu", 105, 190, 3),  # an operator's number may be that of a launch
        event("cudaLaunchKernel", 50, 60, 1),  # holds the queue
        event("cudaMemsetAsync", 90, 95, 2),  # flushes
        event("cudaLaunchKernel", 110, 120, 3),
        event("cuLaunchKernelEx", 130, 140, 4),
        event("cudaMemsetAsync", 250, 255, 5),
        event("cudaLaunchKernel", 310, 320, 6),
        event("cudaMemcpyAsync", 330, 340, 7),
        event(RANGE, 1000, 2000, 3, on_device=True),
        event("spin", 70, 900, 1, on_device=True),
        event("Memset", 900, 1000, 2, on_device=True),
        event("relu", 1000, 1100, 3, on_device=True),
        event("gemm", 1150, 1350, 4, on_device=True),
        event("Memset", 1400, 1500, 5, on_device=True),
        event("relu", 1500, 1610, 6, on_device=True),
        event("Memcpy", 1600, 1700, 7, on_device=True),
        event("unknown", 1700, 1800, 99, on_device=True),
    ]


def test_a_trace_is_attributed_by_launches():
    found = read_trace(trace())
    assert found.kernels == [2, 2]
    assert found.busy == pytest.approx([300e-9, 200e-9])  # with the overlap once
    assert found.spans == pytest.approx([350e-9, 200e-9])  # with the gap; with the overlap
    assert found.held


def test_a_trace_says_whether_the_queue_was_held():
    early = [
        entry._replace(start=320) if entry.name == "relu" and entry.start == 1000 else entry
        for entry in trace()
    ]
    assert not read_trace(early).held


def test_a_call_without_a_kernel_is_refused():
    lost = [entry for entry in trace() if entry.correlation not in (6, 7)]
    with pytest.raises(ValueError, match="1 of 2 calls have no kernel"):
        read_trace(lost)
    with pytest.raises(ValueError, match="0 of 0 calls"):
        read_trace([])


def test_the_profiler_gives_such_events():
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]) as profiler, record_function(RANGE):
        torch.ones(3).relu()
    found = list(truth._kineto_events(profiler))
    (outer,) = (entry for entry in found if entry.name == RANGE)
    (inner,) = (entry for entry in found if entry.name == "aten::relu")
    assert outer.start <= inner.start < inner.end <= outer.end
    assert not outer.on_device


def test_the_table_shows_truth_errors_and_tools():
    lines = accuracy.table(complete()).splitlines()
    (cold,) = (line for line in lines if line.startswith("| relu/cold"))
    assert "| 1 | 10.00 | 10.00 | +0 ns (+0.00 %) |" in cold
    assert "| 2.00× | – | – | – | – | 1.50× |" in cold
    assert any("| relu/warm" in line and "1.20× |" in line for line in lines)
    assert "| 2 | 2.600 |" in lines
    assert "| spin 5000 ns, 132 blocks | 5.000 | +0 ns |" in lines
    widths = {line.count("|") for line in lines[:4]}
    assert len(widths) == 1


def test_a_table_of_few_rows():
    assert len(accuracy.table([]).splitlines()) == 2
    row = op(graph="RuntimeError: cannot be captured")
    assert "| – |" in accuracy.table([row])


def test_the_short_table_shows_each_tool_with_the_cache_that_it_leaves():
    rows = [
        {
            **row,
            "key": row["key"].replace("relu/", "relu 1Mi/"),
            "kernel": {**row.get("kernel", {}), "span": [1.1e-5, 1.2e-5, 1.9e-5]},
        }
        for row in complete()
        if "ops" not in row
    ]
    lines = accuracy.tools_table(rows).splitlines()
    assert len(lines) == 2 + len(report._EXAMPLES)
    (line,) = (line for line in lines if line.startswith("| relu 1Mi"))
    assert line == "| relu 1Mi | 10.00 µs | 1.20× | 2.00× | 10.00 µs | 1.20× | – | – |"
    assert lines[2] == "| relu 4Ki | – | – | – | – | – | – | – |"
    assert len({line.count("|") for line in lines}) == 1


def test_the_picture_compares_tools_where_they_control_the_cache():
    points = report._points(complete())
    assert points["triton do_bench"] == [pytest.approx((10, 2))]
    assert points["cuda-bench"] == [pytest.approx((10, 1.5))]
    assert points["torch Timer"] == []
    assert len(points["convtime kernel"]) == 2
    facts = {"gpu": "G", "torch": "2.15"}
    drawn = accuracy.picture({"rows": complete(), "provenance": facts})
    assert drawn.startswith(b"\x89PNG")


def test_every_operation_can_be_called():
    torch = pytest.importorskip("torch")
    makers = operations(torch.device("meta"))
    assert len(makers) * len(CACHES) >= 24
    for make in makers.values():
        make()()
    assert not any(name.endswith(CACHES) for name in makers)


def test_what_tracing_adds_is_taken_off_the_truth_of_methods_that_do_not_trace():
    slowed = op(truth=5.6e-5, kernel=5.6e-5, event=5.45e-5, graph=5.6e-5)
    assert accuracy.summarise([slowed])[EVENT] == 1
    slowed["truth"] |= tracing(added=1.8e-6, to_a_spin=0.3e-6)
    assert accuracy.summarise([slowed]) | {EVENT: 0, GRAPH: 0, KERNEL: 0} == accuracy.summarise(
        [slowed]
    )
    # What the profiler adds to any call, and calls that it makes faster, change nothing.
    slowed["truth"] |= tracing(added=0.3e-6, to_a_spin=0.3e-6)
    assert accuracy.summarise([slowed])[EVENT] == 1
    slowed["truth"] |= tracing(added=-1e-6, to_a_spin=0.3e-6)
    assert accuracy.summarise([slowed])[EVENT] == 1


def test_cases_have_keys_of_their_own():
    torch = pytest.importorskip("torch")
    cases = make_cases(torch.device("meta"))
    kinds = [key for key in cases if not is_op({"key": key})]
    assert len(cases) - len(kinds) == 2 * len(operations(torch.device("meta")))
    assert "stamped/spin 1024 ns, 1 x 1" in kinds
    assert "stamped/spin 1024 ns, 512 x 256" in kinds  # the grid of a copy of 16 MiB
    assert {key.partition("/")[0] for key in kinds} == {"cost", "spin", "stamped", "cuda-bench"}


def test_a_missing_cost_is_left_out():
    old = cost()
    del old["default_cpu_call_s"], old["as_is_call_s"]
    summary = accuracy.summarise([old])
    assert not {"default_call_5us_cpu_s", "as_is_call_5us_kernel_s"} & set(summary)


def test_default_calls_on_the_cpu_are_timed():
    torch = pytest.importorskip("torch")
    row = probe_cpu_calls(torch.device("cpu"))
    assert len(row["default_cpu_call_s"]) == 10
    for median, seconds in zip(
        row["default_cpu_call_medians"][1:], row["default_cpu_call_s"], strict=True
    ):
        assert 1e-6 < median < 1e-4 < seconds


def test_the_report_knows_every_tool():
    assert {*peers.PEERS, "cuda-bench"} == set(report.TOOLS)


def test_cuda_bench_results_are_read():
    class Summary:
        def __init__(self, value):
            self.value = value

    class State:
        is_skipped = False
        summaries = {  # noqa: RUF012
            "nv/cold/time/gpu/mean": Summary(3e-6),
            "nv/batch/time/gpu/mean": Summary(2e-6),
        }

    assert _read_nvbench([State()]) == {"isolated": 3e-6, "batch": 2e-6, "samples": None}
    State.is_skipped = True
    State.skip_reason = "too short"  # type: ignore[attr-defined]
    assert _read_nvbench([State()]) == {"reason": "too short"}


def test_a_probe_that_fails_says_why():
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError, match="accuracy.py --probe memory .* failed: "):
        running.run_probe("accuracy", "memory", torch.device("cuda:99"))


def test_a_tool_whose_process_fails_has_no_numbers_and_says_why(monkeypatch):
    def fail(*arguments: object, timeout: float) -> None:
        raise RuntimeError("accuracy.py --probe cuda-bench failed: no such module")

    monkeypatch.setattr(nvbench_probe, "run_probe", fail)
    assert nvbench_probe.measure_nvbench(["relu"], None) == {
        "ops": {
            "relu": {
                "reason": "RuntimeError: accuracy.py --probe cuda-bench failed: no such module"
            }
        }
    }


def test_a_file_of_rows_checks_out(tmp_path):
    rows = complete()
    document = {
        "schema": 1,
        "benchmark": "accuracy",
        "command": "accuracy.py",
        "date": "2026-01-01T00:00:00+00:00",
        "provenance": dict.fromkeys(results.PROVENANCE, "x"),
        "rows": rows,
        "summary": results.make_summary(rows, accuracy.summarise, GOALS),
    }
    path = tmp_path / "accuracy.json"
    path.write_text(json.dumps(document))
    assert not list(check_results.check_file(path, {"accuracy": GOALS}))


@pytest.mark.parametrize("name", ["accuracy", "repeatability", "compare_verdict", "regimes"])
def test_summaries_need_neither_torch_nor_convtime(name):
    code = (
        "import sys; sys.modules.update(torch=None, convtime=None, triton=None, matplotlib=None);"
        f"sys.path.insert(0, '.'); import {name} as m; m.summarise([]); m.table([])"
    )
    subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, check=True, timeout=60)


@pytest.mark.parametrize("name", ["accuracy", "repeatability", "compare_verdict", "regimes"])
def test_without_a_gpu_it_says_so(name, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    arguments = ["--output", str(tmp_path), "--commit", "abc", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit, match="is of a GPU"):
        importlib.import_module(name).main()
    assert not list(tmp_path.iterdir())
