"""Effects of the operating system on calls on the CPU, and what results say of them."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import convtime
from convtime.core.load import _C
from convtime.core.provenance import tracers
from convtime.regression.compare_runs import compare_runs
from convtime.timing.host_reading import HostReading, two_groups
from convtime.timing.show import reservations
from tests.helpers.measurements import changed, on_cpu
from tests.helpers.texts import flat

QUICK: dict[str, Any] = {"device": "cpu", "warmup": 2, "budget": 0.2, "max_samples": 30}


def spin(seconds: float) -> None:
    """Compute for so long by its own CPU time, however long that takes."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@settings(max_examples=60)
@given(
    st.integers(0, 40),
    st.integers(0, 40),
    st.floats(0.3, 2.5) | st.sampled_from([1.18, 1.23]),
    st.integers(0, 9),
    st.booleans(),
)
def test_two_groups_are_split_at_the_widest_gap(
    fast: int, slow: int, factor: float, seed: int, is_on_cpu: bool
) -> None:
    """Both have a fifth of the samples or more, and the gap is a fifth of its lower end or more."""
    random = np.random.default_rng(seed)
    levels = np.repeat([1.0, factor], [fast + 1, slow])
    seconds = random.permutation(levels * random.uniform(0.995, 1.005, len(levels)))
    ordered = np.sort(seconds)
    count = len(ordered)
    gaps = {
        split: ordered[split] - ordered[split - 1]
        for split in range(1, count)
        if min(split, count - split) >= count / 5
    }
    split = max(gaps, key=gaps.__getitem__, default=0)
    expected: tuple[Any, ...] = ()
    if count >= 20 and gaps[split] >= 0.2 * ordered[split - 1]:
        expected = tuple(
            (len(group) / count, pytest.approx(np.median(group)))
            for group in (ordered[:split], ordered[split:])
        )
    assert two_groups(seconds.tolist()) == expected
    one = changed(on_cpu(tuple(seconds)), method="cpu" if is_on_cpu else "event")
    assert one.groups == (expected if is_on_cpu else ())
    if one.groups:
        low, high = one.median_interval
        (_, first), (_, second) = one.groups
        assert low <= first < second <= high
    assert ("two groups" in str(one)) == bool(one.groups)


READINGS = st.lists(
    st.builds(
        HostReading,
        samples=st.integers(1, 30),
        seconds=st.floats(0.01, 1),
        cpu_seconds=st.floats(0, 1),
        longest_wait_seconds=st.floats(0, 0.5),
        minor_faults=st.floats(0, 99),
        major_faults=st.floats(0, 99),
        others_seconds=st.floats(0, 0.5),
        instructions=st.none() | st.floats(1, 1e9),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40)
@given(READINGS, st.integers(1, 5), st.integers(1, 4))
def test_averages_per_call_are_totals_over_calls(
    host: list[HostReading], repeats: int, cores: int
) -> None:
    one = on_cpu(host=tuple(host), repeats=repeats, provenance={"cores": cores})
    calls = repeats * sum(each.samples for each in host)
    seconds, cpu, waits, others, faults = np.sum(
        [
            (
                each.seconds,
                each.cpu_seconds,
                each.longest_wait_seconds,
                each.others_seconds,
                each.minor_faults + each.major_faults,
            )
            for each in host
        ],
        axis=0,
    )
    assert one.cpu_seconds == pytest.approx(cpu / calls)
    assert one.waiting_share == pytest.approx(waits / seconds)
    assert one.faults_per_call == pytest.approx(faults / calls)
    assert one.free_cores == pytest.approx(max(0, cores - (cpu + others) / seconds))
    counted = [each for each in host if each.instructions is not None]
    if counted:
        total = np.sum([each.instructions for each in counted])
        calls = repeats * sum(each.samples for each in counted)
        assert one.instructions == pytest.approx(total / calls)
    else:
        assert one.instructions is None
    assert convtime.Measurement.from_dict(one.to_dict()) == one


def test_what_the_system_does_not_tell_is_unknown() -> None:
    unread = on_cpu(
        host=(HostReading(samples=30, seconds=0.03, cpu_seconds=0.03),),
        host_reason="/proc does not tell how long threads wait for a core",
        counters_reason="perf is not allowed",
        provenance={"cores": 4},
    )
    assert (unread.waiting_share, unread.free_cores, unread.instructions) == (None, None, None)
    assert "/proc does not tell" in unread.details()
    assert "CPU time" in unread.details()
    assert "instructions" not in unread.details()


def test_instructions_are_shown_in_details() -> None:
    counts = [(2e7, 1e7), (None, None), (4e7, 2e7)]
    host = tuple(
        HostReading(10, 0.01, 0.01, instructions=each, cycles=cycles) for each, cycles in counts
    )
    one = on_cpu(host=host, repeats=2)
    assert "instructions: 1.5e6 per call, 2.0 per cycle" in flat(one)
    assert "instructions" not in str(one)


def test_more_threads_than_cores_are_said() -> None:
    reading = HostReading(samples=30, seconds=0.03, cpu_seconds=0.03, threads=4)
    for cores, said in ((2, ["4 threads on 2 cores"]), (4, [])):
        one = on_cpu(host=(reading,), provenance={"cores": cores})
        assert [each for each in reservations(one) if "threads on" in each] == said


def test_the_interval_on_a_cpu_contains_the_medians_of_other_runs() -> None:
    seconds = (1e-3,) * 60
    low, high = on_cpu(seconds).median_interval
    wider = on_cpu(seconds, between_runs=0.03).median_interval
    assert wider == pytest.approx((low - 0.03e-3, high + 0.03e-3))


def test_a_result_says_where_it_ran_and_what_was_counted() -> None:
    one = convtime.time_op(torch.relu, torch.randn(1 << 16), **QUICK)
    assert one.host
    assert convtime.Measurement.from_dict(one.to_dict()) == one
    assert (one.instructions is None) == all(each.instructions is None for each in one.host)
    assert one.counters_reason or one.instructions is not None
    if one.host_reason:
        pytest.skip(one.host_reason)
    assert one.used_cores
    assert set(one.used_cores) <= os.sched_getaffinity(0)
    assert one.free_cores is not None
    assert 0 <= one.free_cores < len(os.sched_getaffinity(0))
    assert f"{one.free_cores:.1f} cores were free" in one.details()


def short_and_long() -> list[convtime.Measurement]:
    candidates = {"short": lambda: spin(5e-6), "long": lambda: spin(20e-6)}
    compared = convtime.compare(candidates, check=None, interference=False, stop="count", **QUICK)
    return [*compared.measurements.values()]


def test_candidates_that_share_readings_have_no_counts() -> None:
    for measured in short_and_long():
        assert sum(reading.samples for reading in measured.host) == len(measured.seconds)
        assert measured.instructions is None
        assert measured.counters_reason


@pytest.mark.timing
def test_candidates_share_a_reading_by_their_time() -> None:
    short, long = (measured.cpu_seconds or 0.0 for measured in short_and_long())
    assert 1.5 < long / short < 8


def test_tracers_and_the_garbage_collector_are_conditions() -> None:
    """``compare_runs`` names them if they differ."""
    import cProfile

    numbers = range(100)
    outside = tracers()  # of these tests, such as coverage
    before = convtime.time_op(sum, numbers, **QUICK)
    profile = cProfile.Profile()
    profile.enable()
    gc.disable()
    try:
        profiled = convtime.time_op(sum, numbers, **QUICK)
    finally:
        gc.enable()
        profile.disable()
    with torch.autograd.profiler.profile():
        recorded = convtime.time_op(sum, numbers, **QUICK)
    assert "profile" in profiled.provenance["tracers"].lower()
    assert "traced by sys." in str(profiled)
    assert "torch.profiler" in recorded.details()
    assert "garbage collector" in profiled.details()
    assert "garbage collector" not in before.details()
    found = compare_runs({"a": before}, {"a": profiled}).differences
    assert "tracers" in [each.what for each in found]
    assert ("gc", "enabled", "disabled") in [(each.what, each.before, each.after) for each in found]
    assert before.provenance["tracers"] == (", ".join(outside) or None)


class _Debugger:
    def trace(self, *_event: object) -> None:
        """Called by Python for each new frame."""


def _traced_by(function: Any) -> list[str]:
    before = sys.gettrace()
    sys.settrace(function)
    try:
        return tracers()
    finally:
        sys.settrace(before)


def test_tracers_are_named_by_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        ("coverage.pytracer", "coverage"),
        ("_pydevd_bundle.pydevd_trace_dispatch", "pydevd"),
        ("pydevd_tracing", "pydevd"),
        (None, "unknown"),
    ):
        monkeypatch.setattr(_Debugger, "__module__", module)
        monkeypatch.setattr(_Debugger.trace, "__module__", module)
        for function in (_Debugger().trace, _Debugger.trace):
            assert f"sys.settrace ({name})" in _traced_by(function)
    # The method of a debugger may be inherited from another package.
    monkeypatch.setattr(_Debugger, "__module__", "pdb")
    monkeypatch.setattr(_Debugger.trace, "__module__", "bdb")
    assert "sys.settrace (pdb)" in _traced_by(_Debugger().trace)


def test_tools_of_sys_monitoring_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = {1: "coverage.py", 5: "optimizer"}
    monitoring = types.SimpleNamespace(get_tool=tools.get)
    monkeypatch.setattr(sys, "monitoring", monitoring, raising=False)
    assert tracers()[-2:] == ["sys.monitoring (coverage.py)", "sys.monitoring (optimizer)"]


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that compute, one core each, for as long as they get it."""
    command = [sys.executable, "-S", "-c", "print(1, flush=True)\nwhile True: pass"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in running:
            process.kill()
            process.communicate()


@pytest.mark.timing
def test_calls_that_wait_for_a_core_say_so_beside_their_cpu_time() -> None:
    """On every core there is another process, so that no sample is undisturbed for long."""
    with busy_processes(2 * len(os.sched_getaffinity(0))):
        one = convtime.time_op(spin, 0.02, device="cpu", warmup=1, budget=1.0, max_samples=30)
    if one.host_reason:
        pytest.skip(one.host_reason)
    assert "waited for a core" in one.disturbance
    assert one.median > 1.2 * 0.02
    assert one.cpu_seconds == pytest.approx(0.02, rel=0.3)
    assert one.waiting_share is not None
    assert one.waiting_share > 0.2
    assert "CPU time 2" in str(one)
    assert "waited for a core" in one.details()


@pytest.mark.timing
def test_page_faults_are_counted_for_each_call() -> None:
    """Judged by what the kernel tells the process of as many calls."""
    import mmap

    size = 8 << 20

    def touch() -> None:
        with mmap.mmap(-1, size) as memory:
            memory[:: mmap.PAGESIZE] = bytes(size // mmap.PAGESIZE)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        touch()
    expected = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10
    one = convtime.time_op(touch, **QUICK)
    assert one.faults_per_call == pytest.approx(expected, rel=0.1)
    assert "page faults" in one.details()


@pytest.mark.timing
def test_a_call_too_short_for_the_clock_is_made_several_times_a_sample() -> None:
    one = convtime.time_op(int, device="cpu")
    assert one.repeats > 10
    assert one.clock_tick * one.repeats == pytest.approx(_C.host_clock_tick())
    assert one.clock_tick < 0.01 * one.median
    assert f"{one.repeats}, since" in one.details()


@pytest.mark.timing
def test_instructions_are_proportional_to_the_work_and_repeat() -> None:
    def loop(count: int) -> None:
        for _ in range(count):
            pass

    one, again, double = (
        convtime.time_op(loop, count, **QUICK) for count in (50_000, 50_000, 100_000)
    )
    if one.instructions is None:
        pytest.skip(one.counters_reason)
    assert again.instructions == pytest.approx(one.instructions, rel=0.005)
    assert double.instructions == pytest.approx(2 * one.instructions, rel=0.01)
