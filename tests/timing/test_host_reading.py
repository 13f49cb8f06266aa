"""What the operating system does to calls on the CPU, and what results say of it."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import resource
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import convtime
from convtime.core.load import _C
from convtime.core.provenance import tracers
from convtime.regression.compare_runs import compare_runs
from convtime.timing.comparison import Comparison
from convtime.timing.host_reading import HostReading
from convtime.timing.show import reservations
from tests.helpers.measurements import changed, on_cpu
from tests.helpers.texts import flat

QUICK: dict[str, Any] = {"device": "cpu", "warmup": 2, "budget": 0.2, "max_samples": 30}


def spin(seconds: float) -> None:
    """Computes for so long by its own CPU time, however long that takes."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


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
def test_a_sleep_is_part_of_a_call_and_no_disturbance() -> None:
    one = convtime.time_op(time.sleep, 0.002, **QUICK)
    assert one.cpu_seconds is not None
    assert one.cpu_seconds < 0.001 < 0.002 <= one.median
    calls = sum(reading.samples for reading in one.host)
    assert calls == len(one.seconds)
    assert sum(reading.voluntary_switches for reading in one.host) >= calls


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
    # As long loops have it.
    numbers = range(200_000)
    start = time.perf_counter()
    for _ in numbers:
        int()  # noqa: UP018
    assert one.median < (time.perf_counter() - start) / len(numbers) * 3


@pytest.mark.timing
def test_short_calls_are_told_apart_by_less_than_the_clocks_tick() -> None:
    """Of two functions of some tens of nanoseconds, one does more."""

    def less() -> None:
        pass

    def more() -> None:
        _ = 1, 2
        len("a")

    compared = convtime.compare({"less": less, "more": more}, device="cpu", check=None)
    assert compared.judge("more").verdict == "slower"
    # Where a call's own objects lie makes half a nanosecond of difference.
    again = convtime.compare({"less": less, "again": less}, device="cpu", check=None, margin=0.05)
    assert again.judge("again").verdict in ("same", "uncertain")


@pytest.mark.timing
def test_readings_take_little_of_a_runs_time() -> None:
    one = convtime.time_op(spin, 20e-6, device="cpu", warmup=1, stop="count", max_samples=3000)
    in_calls = sum(one.seconds)
    assert one.sampling_seconds is not None
    assert one.sampling_seconds < 1.5 * in_calls  # with Python's part, and all else of a loop
    assert len(one.host) < len(one.seconds)


def test_candidates_share_a_reading_by_their_time() -> None:
    compared = convtime.compare(
        {"short": lambda: spin(5e-6), "long": lambda: spin(20e-6)},
        check=None,
        interference=False,
        stop="count",
        **QUICK,
    )
    for measured in compared.measurements.values():
        assert sum(reading.samples for reading in measured.host) == len(measured.seconds)
    short, long = (each.cpu_seconds for each in compared.measurements.values())
    assert short is not None
    assert long is not None
    assert 1.5 < long / short < 8


def test_two_groups_of_samples_widen_the_interval() -> None:
    fast, slow = (2.58e-3, 2.6e-3, 2.59e-3), (7.9e-3, 8.0e-3)
    both = on_cpu(fast * 12 + slow * 12)
    assert both.groups == (
        (pytest.approx(0.6), pytest.approx(2.59e-3)),
        (pytest.approx(0.4), pytest.approx(7.95e-3)),
    )
    low, high = both.median_interval
    assert low <= 2.59e-3 < 7.95e-3 <= high
    assert "two groups" in str(both)
    few = on_cpu(fast * 12 + slow)
    assert few.groups == ()
    assert few.median_interval[1] < 3e-3
    assert on_cpu(fast * 12).groups == ()
    assert changed(both, method="event").groups == ()


def test_more_threads_than_cores_are_said() -> None:
    reading = HostReading(samples=30, seconds=0.03, cpu_seconds=0.03, threads=4)
    crowded = on_cpu(host=(reading,), provenance={"cores": 2})
    assert "4 threads on 2 cores" in [*reservations(crowded)]
    enough = on_cpu(host=(reading,), provenance={"cores": 4})
    assert not any("threads on" in said for said in reservations(enough))


def test_a_disturbance_is_why_a_wide_interval_is_uncertain() -> None:
    noisy = tuple(1e-3 * (1 + 0.1 * (index % 7 - 3)) for index in range(30))
    pair = {
        "base": on_cpu(name="base"),
        "other": on_cpu(noisy, name="other", disturbance="waited for a core for 30 % of the time"),
    }
    judged = Comparison(pair).judge("other")
    assert (judged.verdict, judged.reason) == ("uncertain", "disturbed")
    assert "30 %" in judged.sentence


def ratio_of(factor: float, **changes: Any) -> convtime.Comparison:
    base = tuple(1e-3 * (1 + 0.001 * (index % 7 - 3)) for index in range(60))
    other = tuple(factor * each for each in base)
    pair = {"base": on_cpu(base, name="base"), "other": on_cpu(other, name="other")}
    return Comparison({name: dataclasses.replace(each, **changes) for name, each in pair.items()})


def test_small_differences_on_a_cpu_are_not_certain() -> None:
    """Where tensors lie makes as much; a fresh process, where they lie elsewhere, confirms."""
    doubtful = ratio_of(1.025, between_runs=0.01)
    judged = doubtful.judge("other")
    assert (judged.verdict, judged.reason) == ("uncertain", "placement")
    assert "confirm=True" in judged.sentence
    assert judged.smallest_difference == pytest.approx(0.03)
    fresh = {"other": convtime.Ratio(1.03, 1.02, 1.04)}
    assert dataclasses.replace(doubtful, confirmation=fresh).judge("other").verdict == "slower"
    assert ratio_of(1.05, between_runs=0.01).judge("other").verdict == "slower"
    assert ratio_of(0.94, between_runs=0.01).judge("other").verdict == "faster"
    assert ratio_of(1.0, between_runs=0.01).judge("other").verdict == "same"
    assert ratio_of(1.025).judge("other").verdict == "slower"  # of a GPU, or of older files


def test_intervals_of_times_on_a_cpu_hold_those_of_other_runs() -> None:
    seconds = (1e-3,) * 60
    low, high = on_cpu(seconds).median_interval
    wider_low, wider_high = on_cpu(seconds, between_runs=0.03).median_interval
    assert wider_low == pytest.approx(low - 0.03e-3)
    assert wider_high == pytest.approx(high + 0.03e-3)


def test_a_result_says_on_which_cores_it_ran_and_how_many_were_free() -> None:
    one = convtime.time_op(torch.relu, torch.randn(1 << 16), **QUICK)
    if one.host_reason:
        pytest.skip(one.host_reason)
    assert one.used_cores
    assert set(one.used_cores) <= os.sched_getaffinity(0)
    assert one.free_cores is not None
    assert 0 <= one.free_cores < len(os.sched_getaffinity(0))
    assert f"{one.free_cores:.1f} cores were free" in one.details()
    reading = HostReading(samples=30, seconds=0.1, cpu_seconds=0.1, others_seconds=0.05)
    shared = on_cpu(host=(reading,), provenance={"cores": 4})
    assert shared.free_cores == pytest.approx(2.5)
    unknown = dataclasses.replace(reading, others_seconds=None)
    assert on_cpu(host=(unknown,), provenance={"cores": 4}).free_cores is None


def in_process(code: str) -> str:
    """What Python code prints in a process of its own."""
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.timing
def test_two_threads_on_one_core_say_so() -> None:
    told = in_process(
        """
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        import torch
        import convtime
        torch.set_num_threads(2)
        x = torch.randn(1 << 22)
        print(convtime.time_op(torch.relu, x, budget=0.5))
        """
    )
    assert "2 threads on 1 core" in told


@pytest.mark.timing
def test_of_several_threads_other_runs_differ_more() -> None:
    """Of a process of its own, since threads of other tests may compute while one is measured."""
    told = in_process(
        f"""
        import torch
        import convtime
        x = torch.randn(1 << 20)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            print(convtime.time_op(torch.relu, x, **{QUICK}).between_runs)
        """
    )
    one, several = (float(line) for line in told.splitlines())
    assert one == pytest.approx(0.01)
    assert several == pytest.approx(0.03)


def group_of_cgroups() -> Path:
    """A group of the first version's with half a core, to be put into."""
    mount = Path("/sys/fs/cgroup/cpu")
    group = mount / f"convtime_test_{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text("50000")
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no cgroup can be made here: {error}")
    return group


@pytest.mark.timing
def test_a_quota_is_named() -> None:
    group = group_of_cgroups()
    try:
        told = in_process(
            f"""
            import os
            open("{group}/cgroup.procs", "w").write(str(os.getpid()))
            import torch
            import convtime
            torch.set_num_threads(1)
            a = torch.randn(700, 700)
            one = convtime.time_op(torch.mm, a, a, budget=1.0)
            print(one.disturbance)
            """
        )
    finally:
        group.rmdir()
    assert "quota" in told


def test_tracers_are_conditions() -> None:
    """Which ``compare_runs`` names where they differ."""
    import cProfile

    numbers = range(100)
    outside = tracers()  # of these tests, such as coverage
    before = convtime.time_op(sum, numbers, **QUICK)
    profile = cProfile.Profile()
    profile.enable()
    try:
        profiled = convtime.time_op(sum, numbers, **QUICK)
    finally:
        profile.disable()
    with torch.autograd.profiler.profile():
        recorded = convtime.time_op(sum, numbers, **QUICK)
    assert "profile" in profiled.provenance["tracers"].lower()
    assert "traced by sys." in str(profiled)
    assert "torch.profiler" in recorded.details()
    found = compare_runs({"a": before}, {"a": profiled}).differences
    assert "tracers" in [each.what for each in found]
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


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("coverage.pytracer", "coverage"),
        ("_pydevd_bundle.pydevd_trace_dispatch", "pydevd"),
        ("pydevd_tracing", "pydevd"),
        ("pdb", "pdb"),
        (None, "unknown"),
    ],
)
def test_tracers_are_named_by_their_packages(
    module: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A debugger's method may be one that it inherits from another package."""
    monkeypatch.setattr(_Debugger, "__module__", module)
    monkeypatch.setattr(_Debugger.trace, "__module__", "bdb" if name == "pdb" else module)
    expected = f"sys.settrace ({name})"
    assert expected in _traced_by(_Debugger().trace)
    if name != "pdb":
        assert expected in _traced_by(_Debugger.trace)


def test_tools_of_sys_monitoring_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = {1: "coverage.py", 5: "optimizer"}
    monitoring = types.SimpleNamespace(get_tool=tools.get)
    monkeypatch.setattr(sys, "monitoring", monitoring, raising=False)
    assert tracers()[-2:] == ["sys.monitoring (coverage.py)", "sys.monitoring (optimizer)"]


def test_a_disabled_garbage_collector_is_a_condition() -> None:
    numbers = range(100)
    before = convtime.time_op(sum, numbers, **QUICK)
    gc.disable()
    try:
        disabled = convtime.time_op(sum, numbers, **QUICK)
    finally:
        gc.enable()
    assert "garbage collector" in disabled.details()
    assert "garbage collector" not in before.details()
    found = compare_runs({"a": before}, {"a": disabled}).differences
    assert ("gc", "enabled", "disabled") in [(each.what, each.before, each.after) for each in found]


def test_files_that_do_not_tell_of_tracers_do_not_differ_in_them() -> None:
    old = on_cpu(provenance={"threads": 2})
    traced = on_cpu(provenance={"threads": 2, "tracers": "sys.settrace (pdb)"})
    untraced = on_cpu(provenance={"threads": 2, "tracers": None})
    for before, expected in ((old, []), (untraced, ["tracers"])):
        assert [each.what for each in compare_runs({"a": before}, {"a": traced}).differences] == (
            expected
        )


def test_what_the_system_does_not_tell_is_said() -> None:
    one = on_cpu(host_reason="/proc does not tell how long threads wait for a core")
    assert "/proc does not tell" in one.details()
    unread = HostReading(samples=30, seconds=0.03, cpu_seconds=0.03)
    assert on_cpu(host=(unread,)).waiting_share is None
    assert "CPU time" in on_cpu(host=(unread,)).details()


def test_readings_are_written_and_read() -> None:
    one = convtime.time_op(torch.relu, torch.ones(64), **QUICK)
    assert one.host
    assert convtime.Measurement.from_dict(one.to_dict()) == one


def counted(instructions: float | None, cycles: float | None = None) -> HostReading:
    return HostReading(10, 0.01, 0.01, instructions=instructions, cycles=cycles)


def test_instructions_are_the_average_of_the_readings_that_have_them() -> None:
    one = on_cpu(host=(counted(2e7, 1e7), counted(None), counted(4e7, 2e7)), repeats=2)
    assert one.instructions == pytest.approx(1.5e6)
    assert "instructions: 1.5e6 per call, 2.0 per cycle" in flat(one)
    assert "instructions: 3000 per call" in flat(on_cpu(host=(counted(30_000),)))
    assert "instructions" not in str(one)
    assert convtime.Measurement.from_dict(one.to_dict()) == one


def test_without_counters_a_reason_is_kept_and_nothing_shown() -> None:
    one = on_cpu(host=(counted(None),), counters_reason="perf is not allowed")
    assert one.instructions is None
    assert "instructions" not in one.details()


def test_instructions_are_counted_or_the_reason_is_said() -> None:
    one = convtime.time_op(spin, 1e-3, **QUICK)
    assert (one.instructions is None) == all(each.instructions is None for each in one.host)
    assert one.counters_reason or one.instructions is not None


def test_candidates_that_share_readings_have_no_counts() -> None:
    compared = convtime.compare(
        {"one": lambda: spin(5e-6), "other": lambda: spin(5e-6)},
        check=None,
        interference=False,
        stop="count",
        **QUICK,
    )
    for measured in compared.measurements.values():
        assert measured.instructions is None
        assert measured.counters_reason


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
