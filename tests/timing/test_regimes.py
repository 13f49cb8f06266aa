"""Regimes and clocks, as far as Python has a part in them; the rest is in cpp/regime_test.cpp."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import convtime
from convtime.device.clock_reading import ClockReading
from convtime.timing.options import Method, Options, Regime
from convtime.timing.sampling.measure import controlled_clocks
from tests.helpers.measurements import changed
from tests.helpers.texts import flat

QUICK: dict[str, Any] = {"warmup": 1, "budget": 0.2, "max_samples": 20}
GPU = torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regime": "hot"}, "regime must be one of 'auto', 'as-is', 'burst', .*got 'hot'"),
        ({"regime": None}, "regime must be one of .*, got None"),
        ({"clocks": "boost"}, "clocks must be one of 'observe', 'lock', got 'boost'"),
        ({"clocks": "lock"}, "clocks='lock' locks a GPU's clocks, and this work is on the CPU"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_called(
    options: dict[str, Any], message: str
) -> None:
    def never() -> None:
        raise AssertionError("called")

    with pytest.raises(ValueError, match=message):
        convtime.time_op(never, device="cpu", **options)


@pytest.mark.parametrize("regime", ["burst", "sustained"])
def test_a_cpu_has_no_regimes_and_says_so(regime: Regime) -> None:
    one = convtime.time_op(torch.relu, torch.ones(4), regime=regime, **QUICK)
    assert (one.regime, one.regime.requested) == ("as-is", regime)
    assert one.regime.reason == "the work is on the CPU, and regimes are a GPU's"
    assert f"regime: as-is (asked for {regime}: the work is on the CPU" in flat(one)
    assert (one.idle_seconds, one.conditions) == (0, ())
    assert one.seconds


@pytest.mark.parametrize(
    ("options", "requested", "reason"),
    [
        ({}, "auto", "the work is on the CPU, and regimes are a GPU's"),
        ({"regime": "as-is"}, "as-is", ""),
    ],
)
def test_unless_asked_for_there_is_no_regime(
    options: dict[str, Any], requested: str, reason: str
) -> None:
    result = convtime.compare(
        {"a": lambda: None, "b": lambda: None}, device="cpu", **QUICK, **options
    )
    for measurement in result.measurements.values():
        assert (measurement.regime, measurement.regime.requested, measurement.regime.reason) == (
            "as-is",
            requested,
            reason,
        )
        assert measurement.clocks == "observe"
        assert "regime" not in flat(measurement)


def test_what_auto_did_on_a_gpu_is_shown() -> None:
    one = changed(
        convtime.time_op(torch.relu, torch.ones(4), **QUICK),
        device="cuda:0",
        regime="burst",
        regime_reason="the clock fell from 1980 MHz to 1490 MHz under the calls",
        idle_seconds=0.8,
    )
    assert (
        "regime: burst (asked for auto: the clock fell from 1980 MHz to 1490 MHz under the calls); "
        "idled for 800.0 ms" in flat(one)
    )


class FakeClocks:
    """Stands for what reads and locks clocks, and writes down what is asked of it."""

    def __init__(self, log: list[str], *, permitted: bool = True) -> None:
        @contextlib.contextmanager
        def locked_clocks(*, device: torch.device) -> Iterator[None]:
            if not permitted:
                raise PermissionError("run: sudo nvidia-smi -lgc 1500")
            log.append(f"lock {device}")
            try:
                yield
            finally:
                log.append("unlock")

        class ClockMonitor:
            readings = ("a reading",)
            reason = ""

            def __init__(self, device: torch.device) -> None:
                self.device = device

            def __enter__(self) -> ClockMonitor:
                log.append(f"monitor {self.device}")
                return self

            def __exit__(self, *_: object) -> None:
                log.append("end")

        self.locked_clocks = locked_clocks
        self.ClockMonitor = ClockMonitor

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("convtime.device.clock_lock.locked_clocks", self.locked_clocks)
        monkeypatch.setattr("convtime.device.clocks.ClockMonitor", self.ClockMonitor)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, []),
        ({"regime": "as-is"}, []),
        ({"regime": "burst"}, ["monitor cuda:1", "end"]),
        ({"clocks": "lock"}, ["lock cuda:1", "monitor cuda:1", "end", "unlock"]),
    ],
)
def test_clocks_are_read_and_locked_only_where_that_matters(
    options: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    FakeClocks(log).install(monkeypatch)
    with controlled_clocks(GPU, Options(**options)) as monitor:
        readings = None if monitor is None else monitor.readings
    assert log == expected
    assert readings == (("a reading",) if expected else None)


def test_clocks_are_unlocked_where_the_call_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    FakeClocks(log).install(monkeypatch)
    with pytest.raises(KeyError), controlled_clocks(GPU, Options(clocks="lock")):
        raise KeyError("mine")
    assert log == ["lock cuda:1", "monitor cuda:1", "end", "unlock"]


def test_who_may_not_lock_clocks_is_told_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    FakeClocks(log, permitted=False).install(monkeypatch)
    with (
        pytest.raises(PermissionError, match="sudo nvidia-smi"),
        controlled_clocks(GPU, Options(clocks="lock")),
    ):
        pytest.fail("timed although the clocks are not locked")
    assert log == []


@pytest.mark.timing
@pytest.mark.cuda
class TestOnGpu:
    @pytest.fixture(scope="class")
    def measured(self) -> dict[str, convtime.Measurement]:
        """A matmul that is heavy enough to make the clock fall, in both regimes."""
        a = torch.randn(4096, 4096, device="cuda").bfloat16()
        measured = {}
        for regime in ("burst", "sustained"):
            begin = time.perf_counter()
            measured[regime] = convtime.time_op(torch.mm, a, a, cache="warm", regime=regime)
            assert time.perf_counter() - begin < 20
        return measured

    def test_each_regime_is_reached(self, measured: dict[str, convtime.Measurement]) -> None:
        for regime, measurement in measured.items():
            assert (measurement.regime, measurement.regime.reason) == (regime, ""), repr(
                measurement
            )
            assert len(measurement.seconds) >= 10

    def test_only_burst_idles(self, measured: dict[str, convtime.Measurement]) -> None:
        assert 0.3 <= measured["burst"].idle_seconds <= 11
        assert measured["sustained"].idle_seconds == 0
        assert 2.5 <= measured["sustained"].warmup_seconds < 12

    def test_they_are_told_apart(self, measured: dict[str, convtime.Measurement]) -> None:
        burst, sustained = measured["burst"], measured["sustained"]
        assert max(burst.seconds) < min(sustained.seconds)
        assert 1.02 < sustained.median / burst.median < 1.5

    def test_the_clock_explains_the_difference(
        self, measured: dict[str, convtime.Measurement]
    ) -> None:
        burst, sustained = measured["burst"], measured["sustained"]
        assert burst.median_cycles is not None
        assert sustained.median_cycles == pytest.approx(burst.median_cycles, rel=0.05)
        clock = sum(hertz for hertz in burst.sm_clocks_hz if hertz is not None) / len(
            burst.sm_clocks_hz
        )
        assert sustained.at_clock(clock / 1e6, other=burst).seconds == pytest.approx(
            burst.median, rel=0.02
        )

    def test_the_conditions_are_part_of_the_result(
        self, measured: dict[str, convtime.Measurement]
    ) -> None:
        for measurement in measured.values():
            assert len(measurement.conditions) > 5, measurement.conditions_reason
            assert any(reading.power for reading in measurement.conditions)
            assert convtime.Measurement.from_dict(measurement.to_dict()) == measurement

    def test_auto_takes_bursts_where_the_clock_falls(
        self, measured: dict[str, convtime.Measurement]
    ) -> None:
        a = torch.randn(4096, 4096, device="cuda").bfloat16()
        one = convtime.time_op(torch.mm, a, a, cache="warm")
        assert (one.regime, one.regime.requested) == ("burst", "auto"), repr(one)
        assert one.regime.reason.startswith("the clock fell from ")
        assert one.discarded
        assert one.idle_seconds <= 11
        assert one.median == pytest.approx(measured["burst"].median, rel=0.02)
        for _ in range(3000):
            torch.mm(a, a)
        behind_load = convtime.time_op(torch.mm, a, a, cache="warm")
        assert behind_load.regime == "burst", repr(behind_load)
        assert behind_load.median == pytest.approx(measured["burst"].median, rel=0.02)

    def test_auto_leaves_light_work_alone(self) -> None:
        x = torch.randn(1 << 21, device="cuda")
        for _ in range(10):
            one = convtime.time_op(torch.relu, x)
            assert (one.regime, one.idle_seconds, one.conditions) == ("as-is", 0, ())
            assert one.regime.reason == "the clock did not fall under the calls"

    def test_a_burst_is_faster_than_sustained_calls(self) -> None:
        a = torch.randn(4096, 4096, device="cuda").bfloat16()
        burst = convtime.time_op(torch.mm, a, a, cache="warm", regime="burst")
        sustained = convtime.time_op(torch.mm, a, a, cache="warm", regime="sustained")
        assert (burst.regime, sustained.regime) == ("burst", "sustained"), repr(burst)
        assert burst.median < sustained.median

    def test_candidates_of_different_clocks_share_a_regime(self) -> None:
        a = torch.randn(4096, 4096, device="cuda").bfloat16()
        x = torch.randn(1 << 24, device="cuda")
        result = convtime.compare(
            {"mm": lambda: torch.mm(a, a), "relu": lambda: torch.relu(x)}, regime="burst"
        )
        assert {measurement.regime for measurement in result.measurements.values()} == {"burst"}

    def test_calls_that_leave_the_gpu_alone_have_no_regime(self) -> None:
        one = convtime.time_op(lambda: None, device="cuda", regime="burst", **QUICK)
        assert (one.method, one.regime) == ("cpu", "as-is")
        assert one.regime.reason == "the calls issue no work to the GPU"

    @pytest.mark.parametrize("method", ["event", "graph"])
    def test_other_methods_have_regimes_too(self, method: Method) -> None:
        x = torch.randn(1 << 24, device="cuda")
        one = convtime.time_op(torch.relu, x, method=method, regime="burst")
        assert (one.method, one.regime) == (method, "burst"), repr(one)

    def test_an_interrupt_ends_the_idling(self) -> None:
        import signal

        def on_alarm(number: int, frame: object) -> None:
            raise InterruptedError("alarm")

        x = torch.randn(1 << 20, device="cuda")
        convtime.time_op(torch.relu, x, **QUICK)
        previous = signal.signal(signal.SIGALRM, on_alarm)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.15)
            begin = time.perf_counter()
            with pytest.raises(InterruptedError, match="alarm"):
                convtime.time_op(torch.relu, x, regime="burst", stop="count", max_samples=10_000)
            assert time.perf_counter() - begin < 2
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)


def test_what_was_read_of_the_clocks_round_trips_and_is_shown() -> None:
    one = convtime.time_op(torch.relu, torch.ones(4), **QUICK)
    readings = (
        ClockReading(0.0, None, None, 120.0, 40.0, ()),
        ClockReading(0.1, 1.5e9, None, 690.0, 40.0, ("sw_power_cap",)),
    )
    one = dataclasses.replace(one, conditions=readings)
    assert convtime.Measurement.from_dict(one.to_dict()) == one
    assert "power: 120 .. 690 W" in flat(one)
    assert "temperature: 40 .. 40 °C" in flat(one)
    assert "throttled by: sw_power_cap" in flat(one)
    unknown = dataclasses.replace(one, conditions=(), conditions_reason="NVML is not there")
    assert "conditions: unknown: NVML is not there" in flat(unknown)
