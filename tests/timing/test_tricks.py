"""What a timed function can do to look faster than it is, and what becomes of that.

The tricks are those of published attacks on kernel benchmarks. Each is counted (its work is in the
time), detected (the result says so), or without effect; what cannot be seen is in
docs/explanation/sampling.md.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from convtime import Candidate, Comparison, compare, time_op
from tests.helpers.texts import flat

QUICK: dict[str, Any] = {"max_samples": 60, "stop": "count", "warmup": 3}


def heavy(x: torch.Tensor) -> torch.Tensor:
    return torch.sort(x).values


@pytest.mark.cuda
class TestOnGpu:
    @pytest.fixture
    def x(self) -> torch.Tensor:
        return torch.rand(1 << 20, device="cuda")

    @pytest.fixture
    def honest(self, x: torch.Tensor) -> float:
        return time_op(heavy, x, **QUICK).median

    def test_work_on_a_stream_or_in_a_graph_is_counted(
        self, x: torch.Tensor, honest: float
    ) -> None:
        side, before = torch.cuda.Stream(), torch.cuda.current_stream()

        def trick() -> None:
            with torch.cuda.stream(side):
                heavy(x)

        def another() -> None:
            torch.cuda.set_stream(side)
            heavy(x)

        one = time_op(trick, **QUICK)
        assert one.median > 0.7 * honest
        assert "idle" in one.queue.reason
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            heavy(x)
        assert time_op(graph.replay, **QUICK).median > 0.7 * honest
        try:
            assert time_op(another, **QUICK).median > 0.7 * honest
        finally:
            torch.cuda.set_stream(before)

    def test_patched_events_and_clocks_change_nothing(
        self, x: torch.Tensor, honest: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda *_, **__: 0.0)
        monkeypatch.setattr(torch.cuda.Event, "record", lambda *_, **__: None)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_, **__: None)
        monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
        monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
        for method in ("kernel", "event", "sync"):
            assert time_op(heavy, x, method=method, **QUICK).median > 0.7 * honest

    def test_results_remembered_by_address_do_not_help(self, x: torch.Tensor) -> None:
        """Placements give each call other addresses."""
        known: dict[int, torch.Tensor] = {}

        def trick(values: torch.Tensor) -> torch.Tensor:
            if values.data_ptr() not in known:
                known[values.data_ptr()] = heavy(values)
            return known[values.data_ptr()]

        one = time_op(trick, x, **QUICK)
        assert one.no_gpu_work or one.method == "cpu" or len(known) > 1


def against(honest: Callable[..., object], trick: Callable[..., object], size: int) -> Comparison:
    values = torch.rand(size)
    candidates = [Candidate(honest, values.clone()), Candidate(trick, values, name="trick")]
    return compare(candidates, **QUICK)


def test_results_of_no_work_are_told() -> None:
    # Memory that nobody wrote to: it is where the baseline's result was.
    assert against(torch.clone, torch.empty_like, 1 << 16).same_results["trick"].same is not True
    assert "zeros" in flat(time_op(torch.relu, torch.zeros(1000), **QUICK))
    for trick in (torch.clone, lambda given: given, torch.Tensor.zero_):
        compared = against(heavy, trick, 1000)
        assert compared.same_results["trick"].same is False
        assert compared.exit_code("different") == 1


def test_patched_clocks_do_not_reach_the_core_and_a_call_that_is_skipped_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert time_op(time.sleep, 0.002, device="cpu", **QUICK).min >= 0.002
    calls = itertools.count()

    def trick() -> None:
        if next(calls) % 2:
            time.sleep(0.002)

    one = time_op(trick, device="cpu", **QUICK)
    assert one.max >= 0.002
    assert one.min < 0.001
