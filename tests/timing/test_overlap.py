"""Work that overlaps on a GPU is timed and compared by the time that it takes.

Kernels spin for a known time, in few blocks, so that several fit on the device at a time. Where
nothing says how long the work takes, stamps of the GPU's clock around it do.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable

import pytest
import torch
from overlap.pairs import backward_of
from overlap.truth import elapsed, ratio_interval

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


def check_halved(base: Call, other: Call) -> None:
    """Two spins in a row, and the same two at once."""
    found = convtime.compare({"in line": base, "other": other}, check=None, device="cuda")
    under, over = found.measurements.values()
    assert found.verdict("other") == "faster"
    assert found.ratio("other").value == pytest.approx(0.5, rel=0.03)
    assert under.median == pytest.approx(2 * SECONDS, rel=0.02)
    assert over.median == pytest.approx(SECONDS, rel=0.03)
    for one in (under, over):
        assert one.seconds == one.busy_seconds
        assert statistics.median(one.sum_seconds) == pytest.approx(2 * SECONDS, rel=0.02)
    assert statistics.median(over.span_seconds) == pytest.approx(SECONDS, rel=0.05)


def captured(call: Call) -> Call:
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


@pytest.mark.parametrize("form", [lambda call: call, captured], ids=["calls", "graphs"])
def test_work_on_two_streams_takes_half_as_long_as_on_one(form: Callable[[Call], Call]) -> None:
    side = torch.cuda.Stream()
    in_a_row = functools.partial(in_line, spin, spin)
    check_halved(form(in_a_row), form(functools.partial(forked, side, spin, spin)))


def test_backward_passes_overlap_on_the_streams_of_their_forward_passes() -> None:
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    base = backward_of([spin, spin], [current, current])
    other = backward_of([spin, spin], [side, current])
    under, over = elapsed([base, other], 15)
    assert ratio_interval(over, under)[0] == pytest.approx(0.5, rel=0.05)
    check_halved(base, other)


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
    assert statistics.median(one.sum_seconds) == pytest.approx(SECONDS * 4 / 3, rel=0.03)
    assert len(one.activities) == 2


def test_the_span_has_the_gaps_that_busy_time_leaves_out() -> None:
    def call() -> None:
        spin()
        torch.cuda._sleep(1)  # a kernel as short as can be, and gaps before and after it
        spin()

    one = convtime.time_op(call, metric="span", device="cuda")
    assert one.metric == "span"
    assert one.seconds == one.span_seconds
    assert statistics.median(one.busy_seconds) == pytest.approx(2 * SECONDS, rel=0.02)
    gaps = statistics.median(one.span_seconds) - statistics.median(one.busy_seconds)
    assert 0 < gaps < 20e-6
