"""What the operating system does to calls on the CPU: cores, tracers and pages of memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import math
import os
import resource
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import convtime
from convtime.device import provenance
from convtime.device.provenance import tracers
from convtime.regression.compare_runs import compare_runs
from convtime.timing.measurement import HostReading, two_groups
from convtime.timing.options import Options, Pages
from convtime.timing.sampling.calls import governed_pages
from convtime.timing.sampling.measure import WorkDevices, _refuse_contradictions
from tests.helpers.measurements import changed, on_cpu

QUICK: dict[str, Any] = {"device": "cpu", "warmup": 2, "budget": 0.2, "max_samples": 30}


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
    expected: tuple[Any, ...] = ()
    if count >= 20:
        least = math.ceil(count / 5)
        split = least + int(np.argmax(np.diff(ordered)[least - 1 : count - least]))
        if ordered[split] >= 1.2 * ordered[split - 1]:
            groups = ordered[:split], ordered[split:]
            expected = tuple((len(each) / count, pytest.approx(np.median(each))) for each in groups)
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
        *(st.integers(1, 30), st.floats(0.01, 1), st.floats(0, 1)),
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

    def total(name: str) -> Any:
        return sum(getattr(each, name) for each in host)

    calls, seconds, cpu = repeats * total("samples"), total("seconds"), total("cpu_seconds")
    faults, busy = total("minor_faults") + total("major_faults"), cpu + total("others_seconds")
    assert one.cpu_seconds == pytest.approx(cpu / calls)
    assert one.waiting_share == pytest.approx(total("longest_wait_seconds") / seconds)
    assert one.faults_per_call == pytest.approx(faults / calls)
    assert one.free_cores == pytest.approx(max(0, cores - busy / seconds))
    counted = [each for each in host if each.instructions is not None]
    if counted:
        instructions = np.sum([each.instructions for each in counted])
        calls = repeats * sum(each.samples for each in counted)
        assert one.instructions == pytest.approx(instructions / calls)
    else:
        assert one.instructions is None
    assert convtime.Measurement.from_dict(one.to_dict()) == one


def test_what_the_system_does_not_tell_is_unknown() -> None:
    unread = on_cpu(host=(HostReading(30, 0.03, 0.03),), provenance={"cores": 4})
    unread = changed(unread, host_reason="/proc does not tell that", counters_reason="perf failed")
    assert (unread.waiting_share, unread.free_cores, unread.instructions) == (None, None, None)
    assert "/proc does not tell" in unread.details()
    assert "CPU time" in unread.details()
    assert "instructions" not in unread.details()


def test_the_interval_on_a_cpu_contains_the_medians_of_other_runs() -> None:
    low, high = on_cpu().median_interval
    wider = on_cpu(between_runs=0.03).median_interval
    assert wider == pytest.approx((low - 0.03e-3, high + 0.03e-3))


def test_candidates_that_share_readings_have_no_counts() -> None:
    calls = {"a": int, "b": float}
    compared = convtime.compare(calls, check=None, interference=False, stop="count", **QUICK)
    for measured in compared.measurements.values():
        assert sum(reading.samples for reading in measured.host) == len(measured.seconds)
        assert measured.instructions is None
        assert measured.counters_reason


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


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("coverage.pytracer", "coverage"),
        ("_pydevd_bundle.pydevd_trace_dispatch", "pydevd"),
        ("pydevd_tracing", "pydevd"),
        (None, "unknown"),
    ],
)
def test_tracers_are_named_by_their_packages(
    module: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitoring = types.SimpleNamespace(get_tool={1: "coverage.py", 5: "optimizer"}.get)
    monkeypatch.setattr(sys, "monitoring", monitoring, raising=False)
    monkeypatch.setattr(_Debugger, "__module__", module)
    monkeypatch.setattr(_Debugger.trace, "__module__", "bdb")  # as if inherited from there
    before = sys.gettrace()
    sys.settrace(_Debugger().trace)
    try:
        named = tracers()
    finally:
        sys.settrace(before)
    assert f"sys.settrace ({name})" in named
    assert named[-2:] == ["sys.monitoring (coverage.py)", "sys.monitoring (optimizer)"]


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


PAGE = resource.getpagesize()
NBYTES = 40 << 20  # more than glibc ever keeps: it maps and unmaps such blocks in each call
SIX_SAMPLES: dict[str, Any] = {"device": "cpu", "warmup": 2, "min_samples": 6, "max_samples": 6}

without_huge_pages = pytest.mark.skipif(
    provenance.huge_pages() == "always",
    reason="a fault maps 2 MiB where huge pages are always used",
)


def c10(function: str, *args: object) -> int:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    called = getattr(library, function)
    called.restype = ctypes.c_void_p
    return called(*args) or 0


def allocator() -> int:
    """The address of PyTorch's present allocator for the CPU."""
    return c10("_ZN3c1015GetCPUAllocatorEv")


@contextlib.contextmanager
def other_allocator() -> Iterator[None]:
    """Another allocator of PyTorch's in the place of the default one."""
    set_allocator = "_ZN3c1015SetCPUAllocatorEPNS_9AllocatorEh"
    before = allocator()
    other = c10("_ZN3c1028GetDefaultMobileCPUAllocatorEv")
    c10(set_allocator, ctypes.c_void_p(other), ctypes.c_uint8(0))
    try:
        yield
    finally:
        c10(set_allocator, ctypes.c_void_p(before), ctypes.c_uint8(0))


def faults_of(call: Callable[[], object]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def ones(nbytes: int = NBYTES) -> torch.Tensor:
    return torch.ones(nbytes // 4)


def faults_per_call(pages: Pages, call: Callable[[], object]) -> tuple[list[int], Any]:
    faults: list[int] = []
    measured = convtime.time_op(lambda: faults.append(faults_of(call)), pages=pages, **SIX_SAMPLES)
    return sorted(faults[2:]), measured


@without_huge_pages
def test_fresh_pages_are_mapped_in_each_call() -> None:
    for nbytes in (NBYTES, 64 * PAGE):
        x = ones(nbytes)
        faults, measured = faults_per_call("fresh", functools.partial(torch.neg, x))
        assert faults[0] == pytest.approx(nbytes / PAGE, abs=4)
        assert (measured.pages, measured.pages.requested) == ("fresh", "fresh")
        assert measured.pages.reason == ""
    # Blocks of a page and a half that shared pages would keep some of them.
    small = ones(3 * PAGE // 2)
    faults, _ = faults_per_call("fresh", lambda: [torch.neg(small) for _ in range(20)])
    assert faults == [pytest.approx(40, abs=1)] * len(faults)


@pytest.mark.parametrize("pages", ["retained", "auto"])
def test_retained_pages_are_not_mapped_again(pages: Pages) -> None:
    tensors = [ones(nbytes << 20) for nbytes in (1, 9, 2, 5)]

    def several() -> torch.Tensor:
        kept = [torch.neg(x) for x in tensors]
        return torch.cat([torch.neg(x) for x in kept])

    for call in (functools.partial(torch.neg, ones(64 * PAGE)), several):
        faults, measured = faults_per_call(pages, call)
        assert faults[len(faults) // 2] <= 2
        assert (measured.pages, measured.pages.requested) == ("retained", pages)
        assert bool(measured.pages.reason) == (pages == "auto")


@without_huge_pages
def test_as_is_leaves_the_allocator_alone_and_others_put_it_back() -> None:
    x, before = ones(), allocator()
    seen: list[int] = []

    def call() -> None:
        seen.append(allocator())
        torch.neg(x)

    faults, measured = faults_per_call("as-is", call)
    assert set(seen) == {before}
    assert faults[0] == pytest.approx(NBYTES / PAGE, abs=16)
    assert (measured.pages, measured.pages.requested) == ("as-is", "as-is")

    def interrupted() -> None:
        seen.append(allocator())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convtime.time_op(interrupted, pages="retained", **SIX_SAMPLES)
    assert seen[-1] != before == allocator()


def test_memory_is_bounded_and_goes_back_to_the_system() -> None:
    """At most twice the memory is taken that calls use at once."""
    sizes = [NBYTES // 4 >> shift for shift in (0, 2, 4, 6)]
    ones()
    before = resident_bytes()
    with governed_pages("retained", on_gpu=False):
        for size in sizes + sizes[::-1]:
            kept = [torch.ones(size) for _ in range(sizes[0] // size)]
            del kept
        assert resident_bytes() < before + 2.2 * NBYTES
    assert resident_bytes() < before + NBYTES // 2


@pytest.mark.parametrize("pages", ["fresh", "retained"])
def test_tensors_outlive_the_timing(pages: Pages) -> None:
    before = resident_bytes()
    with governed_pages(pages, on_gpu=False):
        kept = torch.arange(NBYTES // 4, dtype=torch.int32)
        del_later = torch.arange(5000)
    assert torch.equal(kept[::100_000], torch.arange(0, NBYTES // 4, 100_000, dtype=torch.int32))
    del_later.resize_(500_000).fill_(3)  # by the allocator that a tensor remembers
    assert int(del_later.sum()) == 1_500_000
    storage = weakref.ref(kept)
    del kept
    gc.collect()
    assert storage() is None
    assert resident_bytes() < before + NBYTES // 2


@pytest.mark.parametrize(("inner", "used"), [("retained", "retained"), ("fresh", "as-is")])
def test_a_nested_timing_does_not_end_the_outer_one(inner: Pages, used: str) -> None:
    before = allocator()
    with governed_pages("retained", on_gpu=False) as outer:
        governs = allocator()
        with governed_pages(inner, on_gpu=False) as nested:
            told = nested()
        assert allocator() == governs != before
        assert outer() == "retained"
    assert allocator() == before
    assert told == used
    assert bool(told.reason) == (used == "as-is")


def test_an_allocator_of_somebody_elses_stays() -> None:
    with other_allocator():
        theirs, seen = allocator(), set()
        measured = convtime.time_op(lambda: seen.add(allocator()), pages="retained", **SIX_SAMPLES)
        assert seen == {theirs}
    assert measured.pages == "as-is"
    assert "replaced" in measured.pages.reason
    assert "pages as-is where retained was asked for" in str(measured)
    with governed_pages("retained", on_gpu=False) as outcome, other_allocator():
        told = outcome()
    assert told == "as-is"
    assert "replaced" in told.reason


def test_pages_are_for_work_on_the_cpu() -> None:
    gpu = WorkDevices(torch.device("cuda", 0), (), "")
    for pages in ("fresh", "retained"):
        with pytest.raises(ValueError, match=f"{pages}.*CPU.*cuda:0.*as-is"):
            _refuse_contradictions([], Options(pages=pages), gpu)
    for unaffected in ("auto", "as-is"):
        _refuse_contradictions([], Options(pages=unaffected), gpu)
        with governed_pages(unaffected, on_gpu=True) as outcome:
            assert outcome() == "as-is"


def test_huge_pages_are_part_of_the_provenance(tmp_path: Path) -> None:
    setting = tmp_path / "enabled"
    assert provenance.huge_pages(setting) is None
    for chosen, text in {
        "always": "[always] madvise never",
        "never": "always madvise [never]",
    }.items():
        setting.write_text(text + "\n")
        assert provenance.huge_pages(setting) == chosen
    measured = convtime.time_op(torch.neg, ones(PAGE), **SIX_SAMPLES)
    assert measured.provenance["huge_pages"] == provenance.huge_pages()
