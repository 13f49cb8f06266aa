"""Work that overlaps on a GPU is timed and compared by the time that it takes.

Kernels spin for a known time, in few blocks, so that several fit on the device at a time. Where
nothing says how long the work takes, stamps of the GPU's clock around it do.
"""

from __future__ import annotations

import functools
import shutil
import statistics
from collections.abc import Callable

import pytest
import torch
from overlap_parts.dependent import dependent_launches
from overlap_parts.pairs import backward_of
from overlap_parts.truth import elapsed, ratio_interval

import convtime

pytestmark = [pytest.mark.cuda, pytest.mark.timing]

NS = 300_000
SECONDS = 1e-9 * NS
Call = Callable[[], object]


def spin(nanoseconds: int = NS) -> torch.Tensor:
    stamps: torch.Tensor = torch.ops.convtime.spin_ns(nanoseconds, 4, 128)
    return stamps


def in_line(*calls: Call) -> None:
    for call in calls:
        call()


def forked(side: torch.cuda.Stream, first: Call, second: Call) -> None:
    """The first on the current stream, the second on another one that it waits for."""
    current = torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        second()
    first()
    current.wait_stream(side)


def compared(base: Call, other: Call) -> convtime.Comparison:
    return convtime.compare({"in line": base, "other": other}, check=None, device="cuda")


def true_ratio(base: Call, other: Call) -> float:
    under, over = elapsed([base, other], 15)
    return ratio_interval(over, under)[0]


def median(seconds: tuple[float, ...]) -> float:
    return statistics.median(seconds)


def check_halved(base: Call, other: Call) -> None:
    """Two spins in a row, and the same two at once."""
    found = compared(base, other)
    under, over = (found.measurements[name] for name in ("in line", "other"))
    assert found.verdict("other") == "faster"
    assert found.ratio("other").value == pytest.approx(0.5, rel=0.03)
    assert under.median == pytest.approx(2 * SECONDS, rel=0.02)
    assert over.median == pytest.approx(SECONDS, rel=0.03)
    for one in (under, over):
        assert one.seconds == one.busy_seconds
        assert median(one.sum_seconds) == pytest.approx(2 * SECONDS, rel=0.02)
    assert median(over.span_seconds) == pytest.approx(SECONDS, rel=0.05)


def test_kernels_on_two_streams_take_half_as_long_as_on_one() -> None:
    side = torch.cuda.Stream()
    check_halved(
        functools.partial(in_line, spin, spin), functools.partial(forked, side, spin, spin)
    )


def test_branches_of_a_graph_take_half_as_long_as_the_same_nodes_in_line() -> None:
    side = torch.cuda.Stream()

    def captured(call: Call) -> Call:
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    check_halved(
        captured(functools.partial(in_line, spin, spin)),
        captured(functools.partial(forked, side, spin, spin)),
    )


def test_backward_passes_overlap_on_the_streams_of_their_forward_passes() -> None:
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    base = backward_of([spin, spin], [current, current])
    other = backward_of([spin, spin], [side, current])
    assert true_ratio(base, other) == pytest.approx(0.5, rel=0.05)
    check_halved(base, other)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc compiles these kernels")
def test_dependent_launches_count_what_overlaps_once() -> None:
    kernels, before, after = 3, 200_000, 150_000
    device = torch.device("cuda", torch.cuda.current_device())
    launch = functools.partial(dependent_launches, kernels, 4, before, after, device)
    found = compared(
        functools.partial(launch, overlap=False), functools.partial(launch, overlap=True)
    )
    # All begin at once, and what comes after a wait follows what comes after the wait before it.
    expected = (before + kernels * after) / (kernels * (before + after))
    assert found.verdict("other") == "faster"
    assert found.ratio("other").value == pytest.approx(expected, rel=0.02)


def test_a_copy_next_to_a_matmul_takes_as_long_as_the_longer_of_them() -> None:
    side = torch.cuda.Stream()
    host = torch.empty(64 << 20, dtype=torch.uint8).pin_memory()
    there = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    copy = functools.partial(there.copy_, host, non_blocking=True)
    matmul = functools.partial(torch.mm, a, a, out=out)
    base = functools.partial(in_line, matmul, copy)
    other = functools.partial(forked, side, matmul, copy)
    true = true_ratio(base, other)
    assert true < 0.95
    found = compared(base, other)
    assert found.verdict("other") == "faster"
    assert found.ratio("other").value == pytest.approx(true, rel=0.03)


def test_work_that_waits_for_nothing_is_timed_without_a_held_queue() -> None:
    side = torch.cuda.Stream()

    def call() -> None:
        with torch.cuda.stream(side):
            spin()
        spin(NS // 3)

    one = convtime.time_op(call, device="cuda")
    assert one.method == "kernel"
    assert one.queue == "none"
    assert "stream" in one.queue.reason
    assert one.median == pytest.approx(SECONDS, rel=0.03)
    assert median(one.sum_seconds) == pytest.approx(SECONDS * 4 / 3, rel=0.03)
    assert len(one.activities) == 2


def test_the_span_has_the_gaps_that_busy_time_leaves_out() -> None:
    def call() -> None:
        spin()
        torch.cuda._sleep(1)  # a kernel as short as can be, and gaps before and after it
        spin()

    one = convtime.time_op(call, metric="span", device="cuda")
    assert one.metric == "span"
    assert one.seconds == one.span_seconds
    assert median(one.busy_seconds) == pytest.approx(2 * SECONDS, rel=0.02)
    gaps = median(one.span_seconds) - median(one.busy_seconds)
    assert 0 < gaps < 20e-6
