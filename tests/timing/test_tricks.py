"""What a timed function can do to look faster than it is, and what becomes of that.

The tricks are those of published attacks on kernel benchmarks. Each is counted (its work is in the
time), detected (the result says so), or without effect; what cannot be seen is in
docs/explanation/sampling.md.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from convtime import Candidate, compare, time_op
from tests.helpers.texts import flat

QUICK: dict[str, Any] = {"max_samples": 60, "stop": "count", "warmup": 3}


def heavy(x: torch.Tensor) -> torch.Tensor:
    return torch.sort(x).values


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(1 << 20, device="cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def honest(x: torch.Tensor) -> float:
    return time_op(heavy, x, **QUICK).median


@pytest.mark.cuda
def test_work_on_a_side_stream_is_counted(x: torch.Tensor, honest: float) -> None:
    side = torch.cuda.Stream()

    def trick() -> None:
        with torch.cuda.stream(side):
            heavy(x)

    one = time_op(trick, **QUICK)
    assert one.median > 0.7 * honest
    assert "idle" in one.queue.reason


@pytest.mark.cuda
def test_a_stream_set_by_the_call_is_counted(x: torch.Tensor, honest: float) -> None:
    side, before = torch.cuda.Stream(), torch.cuda.current_stream()

    def trick() -> None:
        torch.cuda.set_stream(side)
        heavy(x)

    try:
        one = time_op(trick, **QUICK)
    finally:
        torch.cuda.set_stream(before)
    assert one.median > 0.7 * honest


@pytest.mark.cuda
def test_work_deferred_to_a_thread_is_counted_or_told(x: torch.Tensor, honest: float) -> None:
    workers: list[threading.Thread] = []

    def trick() -> None:
        workers.append(threading.Thread(target=heavy, args=(x,)))
        workers[-1].start()

    one = time_op(trick, **QUICK)
    for worker in workers:
        worker.join()
    assert one.median > 0.7 * honest or one.other_launches or one.method != "kernel"


@pytest.mark.cuda
def test_work_of_a_replayed_graph_is_counted(x: torch.Tensor, honest: float) -> None:
    graph = torch.cuda.CUDAGraph()
    heavy(x)
    with torch.cuda.graph(graph):
        heavy(x)
    assert time_op(graph.replay, **QUICK).median > 0.7 * honest


@pytest.mark.cuda
def test_patched_events_and_clocks_change_nothing(
    x: torch.Tensor, honest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda *_, **__: 0.0)
    monkeypatch.setattr(torch.cuda.Event, "record", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_, **__: None)
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
    for method in ("kernel", "event", "sync"):
        assert time_op(heavy, x, method=method, **QUICK).median > 0.7 * honest


@pytest.mark.cuda
def test_memory_set_aside_of_the_cache_is_flushed_all_the_same(x: torch.Tensor) -> None:
    one = time_op(torch.relu, x, cache="cold", **QUICK)
    assert one.cache == "cold"
    assert one.median > time_op(torch.relu, x, cache="warm", **QUICK).median


@pytest.mark.cuda
def test_results_remembered_by_address_do_not_help(x: torch.Tensor) -> None:
    """Placements give each call other addresses."""
    known: dict[int, torch.Tensor] = {}

    def trick(values: torch.Tensor) -> torch.Tensor:
        if values.data_ptr() not in known:
            known[values.data_ptr()] = heavy(values)
        return known[values.data_ptr()]

    one = time_op(trick, x, **QUICK)
    assert one.no_gpu_work or one.method == "cpu" or len(known) > 1


def test_a_result_remembered_is_a_result_that_does_not_follow_its_input() -> None:
    """Remembered by nothing at all: the comparison's check calls it on the same values, and agrees.

    So that is undetectable by a check on equal inputs; docs/explanation/sampling.md says so.
    """
    values = torch.rand(1000)
    remembered: list[torch.Tensor] = []

    def trick(given: torch.Tensor) -> torch.Tensor:
        if not remembered:
            remembered.append(heavy(given))
        return remembered[0]

    compared = compare([Candidate(heavy, values), Candidate(trick, values)], **QUICK)
    assert compared.same_results["trick"].same


def test_memory_that_nobody_wrote_to_is_no_result() -> None:
    """It is where the baseline's result was."""
    values = torch.rand(1 << 16)
    compared = compare(
        [
            Candidate(torch.clone, values),
            Candidate(torch.empty_like, values, name="trick"),
        ],
        **QUICK,
    )
    assert compared.same_results["trick"].same is not True


def test_a_wrong_result_is_told() -> None:
    values = torch.rand(1000)
    compared = compare(
        [Candidate(heavy, values), Candidate(torch.clone, values, name="trick")], **QUICK
    )
    assert compared.same_results["trick"].same is False
    assert compared.exit_code("different") == 1


def test_an_output_that_is_the_input_is_told() -> None:
    values = torch.rand(1000)
    compared = compare(
        [Candidate(heavy, values), Candidate(lambda given: given, values, name="trick")], **QUICK
    )
    assert compared.same_results["trick"].same is False


def test_inputs_that_calls_make_trivial_are_told() -> None:
    values = torch.rand(1000)

    def trick(given: torch.Tensor) -> torch.Tensor:
        return given.zero_()

    compared = compare([Candidate(heavy, values.clone()), Candidate(trick, values)], **QUICK)
    assert compared.same_results["trick"].same is False


def test_trivial_inputs_are_told() -> None:
    assert "zeros" in flat(time_op(torch.relu, torch.zeros(1000), **QUICK))


def test_work_during_the_warm_up_alone_is_not_in_the_samples_but_in_the_first_call() -> None:
    calls = itertools.count()

    def trick() -> None:
        if next(calls) == 0:
            time.sleep(0.05)

    one = time_op(trick, device="cpu", **QUICK)
    assert one.median < 0.01
    assert one.first_call_seconds is not None
    assert one.first_call_seconds >= 0.05


def test_work_when_the_result_is_dropped_is_not_timed_as_documented() -> None:
    """Results are dropped after the timed region; that is where such work goes."""

    class Deferred:
        def __del__(self) -> None:
            time.sleep(0.002)

    assert time_op(Deferred, device="cpu", **QUICK).median < 0.001


def test_calls_that_end_after_some_are_an_error() -> None:
    calls = itertools.count()

    def trick() -> None:
        if next(calls) > 20:
            raise StopIteration("I know that I am timed")

    with pytest.raises(Exception, match="I know that I am timed"):
        time_op(trick, device="cpu", **QUICK)


def test_generators_and_patched_python_clocks_do_not_reach_the_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    slept: Callable[[float], None] = time.sleep
    assert time_op(slept, 0.002, device="cpu", **QUICK).median >= 0.002


def test_counting_calls_shows_a_varying_time() -> None:
    """Every second call is skipped: the spread of the samples shows both."""
    calls = itertools.count()

    def trick() -> None:
        if next(calls) % 2:
            time.sleep(0.001)

    one = time_op(trick, device="cpu", **QUICK)
    assert one.max >= 0.001
    assert one.min < 0.0005
