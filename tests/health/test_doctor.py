"""What the doctor times, by methods and operations that are played or real."""

import itertools
import json
import types
from typing import Any

import pytest
import torch

import convtime
from convtime import cli
from convtime.health import doctor
from convtime.health.examination import OperationTiming
from convtime.timing.measurement import Condition
from tests.helpers.measurements import make

# What the host took to launch and to wait for relu, in microseconds, by `peers.sync` less `kernel`
# of one timing after the other of benchmarks/results/accuracy.json (H200).
HOST_MICROSECONDS = [18.1, 22.3, 14.7, 29.6, 15.9, 16.2]


def test_a_method_that_cannot_be_used_does_not_stop_the_doctor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("CUPTI is\ntaken")

    monkeypatch.setattr(doctor, "time_op", fail)
    monkeypatch.setattr(doctor, "measure", fail)
    (known,) = doctor._known_durations(torch.device("cpu"))
    assert (known.error, known.reason) == (None, "CUPTI is taken")
    timed = list(doctor._operations(torch.device("cpu")))
    assert len(timed) == 4
    assert {(timing.median, timing.reason) for timing in timed} == {(None, "CUPTI is taken")}


def test_a_host_whose_cost_drifts_from_timing_to_timing_fails_no_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = itertools.cycle(HOST_MICROSECONDS)

    def measure(candidates: Any, options: Any) -> list[Any]:
        cost = next(costs)
        return [
            make(
                seconds=tuple(
                    1e-9 * candidate.args[0] + 1e-6 * (cost + 0.1 * (each % 3))
                    for each in range(20)
                ),
                batches=tuple(range(20)),
            )
            for candidate in candidates
        ]

    monkeypatch.setattr(doctor, "measure", measure)
    monkeypatch.setattr(doctor, "_GPU_METHODS", ("sync",) * 6)
    found = list(doctor._known_durations(torch.device("cuda", 0)))
    assert len(found) == 6
    for each in found:
        assert each.expected == pytest.approx(80e-6)
        assert each.measured == pytest.approx(80e-6)
        assert each.interval is not None
        low, high = each.interval
        assert low <= each.measured <= high


def test_a_regime_that_was_not_reached_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(used: str, reason: str = "") -> OperationTiming:
        measured = types.SimpleNamespace(
            regime=Condition(used, "burst", reason),
            method=Condition("kernel", "auto"),
            median=2e-6,
            iqr=1e-7,
            median_interval=(1e-6, 3e-6),
        )
        monkeypatch.setattr(doctor, "time_op", lambda *_, **__: measured)
        return doctor._timed("matmul", print, torch.device("cuda"), "auto", "burst")

    assert timed("burst") == OperationTiming("matmul", "kernel", "burst", 2e-6, 0.05, (1e-6, 3e-6))
    told = OperationTiming("matmul", "auto", "burst", None, None, None, "the clock fell")
    assert timed("as-is", "the clock fell") == told


@pytest.mark.timing
def test_on_a_cpu_the_command_prints_its_findings(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["doctor", "--device", "cpu", "--json", "-"])
    seen = json.loads(capsys.readouterr().out)
    assert code == (0 if seen["passed"] else 1)
    (known,) = seen["known_durations"]
    assert known["expected"] == pytest.approx(400e-6)
    assert known["measured"] == pytest.approx(400e-6, rel=0.2)  # of a machine that may be busy
    assert [operation["method"] for operation in seen["operations"]] == ["cpu"] * 4
    assert all(operation["median"] > 0 for operation in seen["operations"])
    checks = {finding["check"] for finding in seen["findings"]}
    assert {"method cpu", "CPU load", "CPU threads"} <= checks


@pytest.mark.timing
@pytest.mark.cuda
def test_on_a_gpu_each_method_is_checked() -> None:
    seen = convtime.doctor("cuda:0")
    print(seen)  # for whoever reads the log of a machine that does not pass
    assert seen.seconds < 20
    assert seen.gpu is not None
    assert seen.gpu.uuid == f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    methods = [duration.method for duration in seen.known_durations]
    assert methods == ["kernel", "event", "graph", "sync", "cpu"]
    assert not any(duration.reason for duration in seen.known_durations)
    assert not any(timing.median is None for timing in seen.operations), seen
    judged = [finding for finding in seen.findings if finding.check.startswith("method ")]
    assert {finding.status for finding in judged} == {"ok"}
    kernel, event = (
        {timing.name: timing.median for timing in seen.operations if timing.method == method}
        for method in ("kernel", "event")
    )
    assert len(kernel) == 4
    for name, median in kernel.items():
        assert event[name] == pytest.approx(median, rel=0.3, abs=0.5e-6)
    json.dumps(seen.to_dict(), allow_nan=False)
    assert convtime.ceilings("cuda") == seen.ceilings
