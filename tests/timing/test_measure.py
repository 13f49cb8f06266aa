"""Where work is, and under which clocks and in which regime of its GPU it is sampled.

The rest of the regimes is in cpp/regime_test.cpp.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import convtime
from convtime.core.load import _C
from convtime.timing.candidate import Candidate
from convtime.timing.options import Options
from convtime.timing.sampling import measure as sampling
from convtime.timing.sampling.measure import controlled_clocks, find_devices
from convtime.timing.sampling.object_graph import Walk, tensors_of
from tests.helpers.measurements import changed
from tests.helpers.texts import flat

QUICK: dict[str, Any] = {"warmup": 1, "budget": 0.2, "max_samples": 20}
GPU = torch.device("cuda", 1)


def test_the_device_is_found_in_the_tensors(device: torch.device) -> None:
    x = torch.ones(1, 1, device=device)
    for candidate in (
        Candidate(torch.relu, kwargs={"input": x}, name="kwargs"),
        Candidate(lambda: x + 1, name="closure"),
        Candidate(functools.partial(torch.add, x, other=x), name="partial"),
        Candidate(torch.nn.Linear(1, 1).to(device), name="module"),
        Candidate(x.relu, name="method of a tensor"),
    ):
        place = find_devices([candidate], None)
        assert place.device.type == device.type, candidate.name
        assert "found" in place.reason, candidate.name

    for devices, on in (
        (["meta"], "meta (without data)"),
        (["cpu", "meta", "cpu"], "the CPU and meta (without data)"),
    ):
        tensors = [torch.ones(1, device=device) for device in devices]
        place = find_devices([Candidate(torch.cat, tensors, name="one")], None)
        assert (str(place.device), place.reason) == ("cpu", f"only tensors on {on} were found")


def machine(
    monkeypatch: pytest.MonkeyPatch, gpus: int, tensors_on: list[str]
) -> Callable[[str | None], tuple[str, list[str], str, list[str]]]:
    """Finds places on a machine with so many GPUs, and says which tensors were looked at."""
    searched: list[str] = []

    def placed(candidate: Candidate, walk: Walk) -> Iterator[object]:
        for name in tensors_on:
            searched.append(name)
            yield types.SimpleNamespace(device=torch.device(name))

    def place(requested: str | None) -> tuple[str, list[str], str, list[str]]:
        searched.clear()
        found = find_devices([Candidate(int, name="one")], requested)
        return str(found.device), [*map(str, found.others)], found.reason, [*searched]

    monkeypatch.setattr(_C, "cuda_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(sampling, "resolve_device", torch.device)
    monkeypatch.setattr(sampling, "tensors_of", placed)
    return place


def test_the_search_ends_where_it_can_say_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    found = "a tensor on it was found"
    one = machine(monkeypatch, 1, ["cpu", "cuda:0", "cpu"])
    assert one(None) == ("cuda:0", [], found, ["cpu", "cuda:0"])
    assert one("cuda:0") == ("cuda:0", [], "asked for", [])
    assert one("cpu") == ("cpu", [], "asked for", [])
    several = machine(monkeypatch, 3, ["cuda:2", "cuda:1"])
    assert several("cuda:1") == ("cuda:1", ["cuda:2"], "asked for", ["cuda:2", "cuda:1"])
    assert several(None) == ("cuda:2", ["cuda:1"], found, ["cuda:2", "cuda:1"])
    assert machine(monkeypatch, 0, [])(None) == ("cpu", [], "there is no GPU", [])
    machine(monkeypatch, 1, [])
    monkeypatch.setattr(sampling, "tensors_of", tensors_of)
    monkeypatch.setattr(sampling, "_MOST_OBJECTS", 100)
    many = [[index] for index in range(200)]
    assumed = "assumed: no tensor was found, and there is a GPU"
    assert find_devices([Candidate(len, [], name="one")], None).reason == assumed
    assert find_devices([Candidate(len, many, name="one")], None).reason == (
        f"{assumed}; of the objects that the calls refer to, 100 were searched"
    )


@pytest.mark.parametrize("asked", ["burst", "sustained", "as-is", "auto"])
def test_a_cpu_has_no_regimes_and_says_so_where_one_is_asked_for(asked: Any) -> None:
    one = convtime.time_op(torch.relu, torch.ones(4), regime=asked, **QUICK)
    assert (one.regime, one.regime.requested, one.clocks) == ("as-is", asked, "observe")
    assert one.regime.reason == (
        "" if asked == "as-is" else "the work is on the CPU, and regimes are a GPU's"
    )
    assert ("regime:" in flat(one)) == (asked in ("burst", "sustained"))
    assert (one.idle_seconds, one.conditions) == (0, ())
    on_gpu = changed(one, device="cuda:0", regime="burst", regime_requested="auto",
                     regime_reason="the clock fell", idle_seconds=0.8)  # fmt: skip
    said = "regime: burst (asked for auto: the clock fell); idled for 800.0 ms"
    assert said in flat(on_gpu)


@pytest.mark.parametrize(
    ("warmup", "calls", "seconds"),
    [("steady", 3, 0.0), (5, 5, 0.0), (np.int8(5), 5, 0.0), (np.float32(0.5), 1, 0.5)],
)
def test_a_warm_up_has_a_number_of_calls_or_a_time_or_ends_when_it_is_steady(
    warmup: Any, calls: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def time_candidates(**options: Any) -> None:
        asked.update(options)
        raise KeyError("seen")

    monkeypatch.setattr(_C, "time_candidates", time_candidates)
    for budget, longest in ((0.3, 0.3), (5.0, 1.0)):
        with pytest.raises(KeyError, match="seen"):
            convtime.time_op(int, device="cpu", warmup=warmup, budget=budget)
        found = (asked["warmup_calls"], asked["warmup_seconds"], asked["max_steady_seconds"])
        assert found == (calls, seconds, longest)
        assert asked["warmup_steady"] == (calls == 3)


def fake_clocks(monkeypatch: pytest.MonkeyPatch, *, permitted: bool = True) -> list[str]:
    """Puts fakes in the place of what reads and locks clocks; returns what is asked of them."""
    log: list[str] = []

    @contextlib.contextmanager
    def noting(what: str, device: torch.device) -> Iterator[types.SimpleNamespace]:
        log.append(f"{what} {device}")
        try:
            yield types.SimpleNamespace(readings=("a reading",))
        finally:
            log.append(f"end {what}")

    def locked_clocks(*, device: torch.device) -> contextlib.AbstractContextManager[object]:
        if not permitted:
            raise PermissionError("run: sudo nvidia-smi -lgc 1500")
        return noting("lock", device)

    monkeypatch.setattr("convtime.device.clock_lock.locked_clocks", locked_clocks)
    monkeypatch.setattr("convtime.device.clocks.ClockMonitor", functools.partial(noting, "monitor"))
    return log


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, []),
        ({"regime": "as-is"}, []),
        ({"regime": "burst"}, ["monitor cuda:1", "end monitor"]),
        ({"regime": "sustained"}, ["monitor cuda:1", "end monitor"]),
        ({"clocks": "lock"}, ["lock cuda:1", "monitor cuda:1", "end monitor", "end lock"]),
    ],
)
def test_clocks_are_read_and_locked_only_where_that_matters(
    options: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake_clocks(monkeypatch)
    with contextlib.suppress(KeyError), controlled_clocks(GPU, Options(**options)) as monitor:
        assert (monitor is not None and monitor.readings) == (bool(expected) and ("a reading",))
        raise KeyError("mine")
    assert log == expected


def test_who_may_not_lock_clocks_is_told_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    log = fake_clocks(monkeypatch, permitted=False)
    options = Options(clocks="lock")
    with pytest.raises(PermissionError, match="nvidia-smi"), controlled_clocks(GPU, options):
        pytest.fail("timed although the clocks are not locked")
    assert log == []


@pytest.mark.timing
@pytest.mark.cuda
class TestRegimes:
    @pytest.fixture(scope="class")
    def heavy(self) -> Candidate:
        """A matmul that is heavy enough to make the clock fall."""
        a = torch.randn(4096, 4096, device="cuda").bfloat16()
        return Candidate(torch.mm, a, a)

    @pytest.fixture(scope="class")
    def measured(self, heavy: Candidate) -> dict[str, convtime.Measurement]:
        return {
            regime: convtime.time_op(heavy, cache="warm", regime=regime)
            for regime in ("burst", "sustained")
        }

    def test_each_regime_is_reached(self, measured: dict[str, convtime.Measurement]) -> None:
        for regime, one in measured.items():
            assert (one.regime, one.regime.reason) == (regime, ""), repr(one)
            assert len(one.seconds) >= 10
            assert len(one.conditions) > 5, one.conditions_reason
            assert any(reading.power for reading in one.conditions)
        assert 0.3 <= measured["burst"].idle_seconds <= 11
        assert measured["sustained"].idle_seconds == 0
        assert 2.5 <= measured["sustained"].warmup_seconds < 12

    def test_the_clock_explains_the_difference(
        self, measured: dict[str, convtime.Measurement]
    ) -> None:
        burst, sustained = measured["burst"], measured["sustained"]
        assert max(burst.seconds) < min(sustained.seconds)
        assert 1.02 < sustained.median / burst.median < 1.5
        assert sustained.median_cycles == pytest.approx(burst.median_cycles, rel=0.05)

    def test_auto_takes_bursts_where_the_clock_falls(
        self, heavy: Candidate, measured: dict[str, convtime.Measurement]
    ) -> None:
        for load in (0, 3000):
            for _ in range(load):
                heavy.fn(*heavy.args)
            one = convtime.time_op(heavy, cache="warm")
            assert (one.regime, one.regime.requested) == ("burst", "auto"), repr(one)
            assert one.regime.reason.startswith("the clock fell from ")
            assert one.idle_seconds <= 11
            assert one.median == pytest.approx(measured["burst"].median, rel=0.02)
        light = convtime.time_op(torch.relu, torch.randn(1 << 21, device="cuda"))
        assert (light.regime, light.idle_seconds, light.conditions) == ("as-is", 0, ())
        assert light.regime.reason == "the clock did not fall under the calls"

    def test_every_method_and_all_candidates_have_the_regime(self, heavy: Candidate) -> None:
        x = torch.randn(1 << 24, device="cuda")
        for method in ("event", "graph"):
            one = convtime.time_op(torch.relu, x, method=method, regime="burst")
            assert (one.method, one.regime) == (method, "burst"), repr(one)
        result = convtime.compare([heavy, Candidate(torch.relu, x)], regime="burst")
        assert {measurement.regime for measurement in result.measurements.values()} == {"burst"}
        one = convtime.time_op(lambda: None, device="cuda", regime="burst", **QUICK)
        assert (one.method, one.regime) == ("cpu", "as-is")
        assert one.regime.reason == "the calls issue no work to the GPU"

    def test_an_interrupt_ends_the_idling(self) -> None:
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
