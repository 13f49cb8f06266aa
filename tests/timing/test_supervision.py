"""How a timing is kept in sight and in bounds: its log, its timeout, and the interpreter's exit."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import time
from typing import Any

import pytest
import torch

import convtime
from convtime.timing.options import BatchRecord, Options
from convtime.timing.sampling.measure import TimeLimit, watch_with, watched
from tests.helpers.texts import flat

ON_CPU: dict[str, Any] = {"device": "cpu"}


def test_a_timeout_keeps_the_samples_that_there_are() -> None:
    calls = itertools.count()

    def slower_and_slower() -> None:
        time.sleep(0.002 * 1.5 ** next(calls))

    convtime.time_op(int, max_samples=10, **ON_CPU)  # what is done once in a process takes long
    long: dict[str, Any] = {"warmup": 1, "stop": "budget", "budget": 60, **ON_CPU}
    one = convtime.time_op(time.sleep, 0.01, timeout=0.5, **long)
    assert (one.stop_reason, one.steady) == ("timeout", None)
    assert 0 < len(one.seconds) <= 50
    assert "stopped by: timeout" in flat(one)
    warming = convtime.time_op(slower_and_slower, min_samples=1000, timeout=0.5, **ON_CPU)
    assert (warming.stop_reason, warming.steady) == ("timeout", False)
    assert 0 < len(warming.seconds) < 1000
    unhurried = convtime.time_op(int, max_samples=10, warmup=1, timeout=600, **ON_CPU)
    assert (len(unhurried.seconds), unhurried.stop_reason) == (10, "max_samples")


def test_a_timeout_without_a_sample_is_an_error() -> None:
    expected = r"^timeout=0\.05 s passed before there was a sample; allow more time$"
    with pytest.raises(TimeoutError, match=expected):
        convtime.compare({"a": lambda: time.sleep(0.1), "b": int}, timeout=0.05, **ON_CPU)
    with pytest.raises(TimeoutError, match=expected):
        convtime.time_op(time.sleep, 0, warmup=30.0, timeout=0.05, **ON_CPU)

    def times_out() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="^mine$"):
        convtime.time_op(times_out, timeout=60, **ON_CPU)


def test_a_limit_counts_down_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("convtime.timing.sampling.measure.monotonic", lambda: now[0])
    limit, endless = TimeLimit(2.5), TimeLimit(None)
    now[0] = 102.4
    assert limit.seconds_left == pytest.approx(0.1)
    limit.check("in time")
    now[0] = 102.5
    with pytest.raises(TimeoutError, match=r"^timeout=2.5 s passed .* \(the cause\); allow more"):
        limit.check("the cause")
    endless.check()
    assert endless.seconds_left == float("inf")


def test_every_batch_is_logged() -> None:
    records: list[BatchRecord] = []
    calls: list[int] = []
    limits: dict[str, Any] = {"stop": "count", "min_samples": 1, "max_samples": 200, "warmup": 5}
    one = convtime.time_op(lambda: calls.append(1), log=records.append, **limits, **ON_CPU)
    assert [record.number for record in records] == [*range(1, len(records) + 1)]
    assert sum(record.rounds for record in records) == len(one.seconds)
    assert len(calls) == one.warmup_calls + one.repeats * len(one.seconds)
    for record in records:
        assert (record.phase, record.fate, record.held) == ("sampling", "kept", None)
        assert (record.gap_seconds, record.idle_clock_hz) == (0, None)
        assert 0 < record.issue_seconds <= record.wall_seconds < one.sampling_seconds
    nothing: dict[BatchRecord, object] = {}
    with pytest.raises(KeyError, match="number=1,"):
        convtime.time_op(int, log=nothing.__getitem__, **ON_CPU)
    records.clear()
    convtime.time_op(int, stop="budget", budget=0.1, log=records.append, **ON_CPU)
    assert [*dict.fromkeys(record.phase for record in records)] == ["warm-up", "sampling"]


def test_a_watcher_logs_what_has_no_log() -> None:
    told: list[BatchRecord] = []
    watch_with(lambda options: contextlib.nullcontext(told.append))
    try:
        convtime.time_op(int, max_samples=10, **ON_CPU)
        with watched(Options(log=print)) as kept:
            assert kept.log is print
    finally:
        watch_with(None)
    assert told


def test_a_record_is_one_line() -> None:
    record = BatchRecord(
        3, "sampling", 64, True, "kept", 0.3, 1.98e9, 1.755e9, 1.98e9, 1.2e-3, 3.4e-3
    )
    assert str(record) == (
        "batch 3 (sampling): 64 rounds, held, kept; idle for 300.0 ms, then at 1980 MHz; clock "
        "1755 .. 1980 MHz; issued in 1.200 ms; done after 3.400 ms"
    )


# One after the other, each with a CPU to itself, in a process that has torch already.
_EXITS_WHILE_A_DAEMON_TIMES = """
import os, sys, threading, time
import convtime

def adds_up(*ignored):
    return sum(range(100))

class AddsUp:
    __del__ = adds_up

cases = [
    dict(fn=int, before=adds_up),
    dict(fn=AddsUp),
    dict(fn=int, log=adds_up),
    dict(fn=lambda: time.sleep(1e-5)),
]
options = dict(device="cpu", stop="budget", budget=60)
codes = []
for case in cases:
    child = os.fork()
    if child == 0:
        threading.Thread(target=convtime.time_op, kwargs=case | options, daemon=True).start()
        time.sleep(0.2)
        sys.exit(0)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(codes)
"""


@pytest.mark.thorough
def test_an_interpreter_can_exit_while_a_daemon_thread_times() -> None:
    command = [sys.executable, "-W", "ignore", "-c", _EXITS_WHILE_A_DAEMON_TIMES]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout == f"{[0] * 4}\n", result.stderr


@pytest.mark.cuda
@pytest.mark.parametrize("method", ["auto", "event", "sync"])
def test_a_timeout_ends_a_wait_for_the_gpu(method: Any) -> None:
    """The call returns at once, and leaves the GPU work for seconds."""
    limits: dict[str, Any] = {"device": "cuda", "method": method, "timeout": 0.5}
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="GPU was still busy"):
        convtime.time_op(torch.cuda._sleep, 6_000_000_000, **limits)
    assert time.monotonic() - start < 2.5
    torch.cuda.synchronize()
    x = torch.ones(1 << 20, device="cuda")
    assert convtime.time_op(torch.relu, x, timeout=10).median > 0


@pytest.mark.cuda
def test_nothing_is_timed_within_a_capture_which_goes_on() -> None:
    x, graph, side = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    y = x + 1
    with torch.cuda.graph(graph):
        y.add_(x)
        for refused in (
            lambda: convtime.time_op(torch.relu, x),
            lambda: convtime.time_op(torch.relu, x, stream=side),
            lambda: convtime.compare([lambda: torch.relu(x), lambda: torch.abs(x)]),
            lambda: convtime.counters(torch.relu, x),
            lambda: convtime.energy(torch.relu, x),
        ):
            with pytest.raises(ValueError, match="captured"):
                refused()
    graph.replay()
    assert y.tolist() == [3.0] * 4
    assert torch.rand(4, device="cuda").sum() > 0  # the generator is not in a capture
    assert convtime.time_op(torch.relu, x).method == "kernel"
