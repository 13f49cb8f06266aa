"""What accuracy.py makes of its rows and of kineto's events, without a GPU."""

import sys
import types

import accuracy
import pytest
import results
from accuracy_parts import nvbench as nvbench_probe
from accuracy_parts.rows import STAMPED_REFERENCE_NS
from common import peers, running
from common.truth import RANGE, TraceEvent, read_trace

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


def quick(full, found, seconds):
    return {"full": [full] * 2, "tick": 32e-9, "quick": [found] * 4, "quick_s": [seconds] * 4}


def quick_row():
    ops = {
        "relu/cold": quick(4e-6, 4.2e-6, 0.009),
        "copy/cold": quick(1e-3, 1.00003e-3, 0.02),  # off by less than a tick, and long
    }
    return {"key": "quick", "ops": ops}


def complete():
    return [
        cost(),
        quick_row(),
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
        "quick_call_ms": pytest.approx(9),
        "quick_error_p95": pytest.approx(0.05),
        "quick_error_max": pytest.approx(0.05),
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


def test_a_missing_cost_is_left_out():
    old = cost()
    del old["default_cpu_call_s"], old["as_is_call_s"]
    summary = accuracy.summarise([old])
    assert not {"default_call_5us_cpu_s", "as_is_call_5us_kernel_s"} & set(summary)


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
