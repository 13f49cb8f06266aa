"""What a row of each kind is measured by."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
import torch
from common import running

from integrity_parts.interleavings import INTERLEAVINGS, Scene

if TYPE_CHECKING:
    import convtime

REPOSITORY = Path(__file__).parents[2]
CASES_AT_ONCE = 10
LAUNCHES = 20  # of kernels, in a call
NODES = 200  # of a graph, which is launched beside them
CALLS = 5_000
MOMENTS = {
    "in a fresh process": (0, False),
    "behind 20 profiles": (20, False),
    "beside a busy thread": (0, True),
}
PLANTED = "PlantedLoss"


def make_cases(device: torch.device) -> dict[str, running.Measure]:
    measures: dict[str, running.Measure] = {
        name: functools.partial(measure_interleaving, name, device) for name in INTERLEAVINGS
    }
    for moment in MOMENTS:
        measures[f"records {moment}"] = functools.partial(
            running.run_probe, "integrity", "records", device, moment, timeout=300
        )
    measures["planted losses"] = measure_planted_losses
    ahead = Ahead(measures)
    return {key: functools.partial(ahead.measure, key) for key in measures}


class Ahead:
    """Measures cases on threads, several ahead of the one that is asked for.

    Their processes take seconds to start, and no row depends on how fast they are.
    """

    def __init__(self, measures: Mapping[str, running.Measure]) -> None:
        self._measures = measures
        self._pool = ThreadPoolExecutor(CASES_AT_ONCE)
        self._begun: dict[str, Future[results.Row]] = {}

    def measure(self, key: str) -> results.Row:
        names = list(self._measures)
        first = names.index(key)
        for name in names[first : first + CASES_AT_ONCE]:
            if name not in self._begun:
                self._begun[name] = self._pool.submit(self._measures[name])
        return self._begun[key].result()


def measure_interleaving(name: str, device: torch.device) -> results.Row:
    """The same with timings and without, in a process each."""
    with_timings, ended = run_process(name, device, "timed")
    control, control_ended = run_process(name, device, "control")
    return {
        "kind": "interleaving",
        **with_timings,
        "launched_in_control": control.get("launched"),
        "in_control": control.get("in_profile"),
        "exit": ended,
        "control_exit": control_ended,
    }


def run_process(name: str, device: torch.device, part: str) -> tuple[results.Row, int]:
    """A row of a fresh process, empty where it gave none, and what the process ended with."""
    script = str(results.scripts()["integrity"])
    command = [sys.executable, script, "--probe", "interleaving", name, part]
    command += ["--device", str(device)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            # Without it, kineto cannot be had on demand; with it, it looks for its daemon.
            env={**os.environ, **({"KINETO_USE_DAEMON": "1"} if "demand" in name else {})},
        )
    except subprocess.TimeoutExpired:
        return {}, -signal.SIGKILL
    row: results.Row = next(iter(running.printed_results(done.stdout)), {})
    if not row:
        said = done.stderr.strip().splitlines() or [""]
        print(f"{name}, {part}: ended with {done.returncode}: {said[-1]}", flush=True)
    return row, done.returncode


def probe_interleaving(device: torch.device, name: str, part: str) -> results.Row:
    scene = Scene(device, control=part == "control")
    INTERLEAVINGS[name](scene)
    return {
        "launched": scene.launched,
        "in_profile": scene.seen,
        "timings": [describe(measured) for measured in scene.measurements],
    }


def describe(measured: convtime.Measurement) -> results.Row:
    return {
        "method": measured.method.used,
        "reason": measured.method.reason,
        "samples": len(measured.seconds),
        "incomplete": count_incomplete(measured, None),
        "faulty_batches": measured.faulty_batches,
        "other_launches": measured.other_launches,
    }


def count_incomplete(measured: convtime.Measurement, expected: int | None) -> int:
    """Samples that lack an activity which others have, or of the number that is expected."""
    if measured.method != "kernel":
        return 0
    columns = [activity.seconds for activity in measured.activities]
    wanted = len(columns) if expected is None else expected
    return sum(
        sum(duration is not None for duration in call) != wanted
        for call in zip(*columns, strict=True)
    )


def probe_records(device: torch.device, moment: str) -> results.Row:
    """Kernels whose number is known, times CALLS."""
    from convtime import time_op

    profiles, beside = MOMENTS[moment]
    scene = Scene(device, control=False)
    for _ in range(profiles):
        scene.record()
    x = torch.rand(1 << 10, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(NODES):
            torch.relu(x)

    def call() -> None:
        graph.replay()
        for _ in range(LAUNCHES):
            torch.relu(x)

    done = False

    def keep_busy() -> None:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            while not done:
                for _ in range(20):
                    torch.erfinv(scene.relu())
                stream.synchronize()

    calls = CALLS if not beside else CALLS // 10
    options: dict[str, Any] = {"stop": "count", "max_samples": calls, "device": device}
    options["exclusive"] = False  # other cases time on this GPU, too
    if beside:
        with scene.meanwhile(keep_busy):
            try:
                measured = time_op(call, **options)
            finally:
                done = True
    else:
        measured = time_op(call, **options)
    durations = [second for activity in measured.activities for second in activity.seconds]
    return {
        "kind": "records",
        "records": sum(duration is not None for duration in durations),
        "shortest": min((duration for duration in durations if duration), default=0.0),
        **describe(measured),
        "incomplete": count_incomplete(measured, LAUNCHES + NODES),
    }


def measure_planted_losses() -> results.Row:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(os.environ.get("CONVTIME_CPP_TESTS") or build_tests(folder))
        report = Path(folder, "report.json")
        subprocess.run(
            [program / "trace_faults_test", f"--gtest_output=json:{report}"],
            env={**os.environ, "FAIL_WITHOUT_CUDA": "1"},
            check=False,
            capture_output=True,
        )
        return {"kind": "planted", **read_report(json.loads(report.read_text()))}


def read_report(report: Mapping[str, list[results.Row]]) -> results.Row:
    """Of GoogleTest's report: "tests", each passed or not, and "failures", what they said."""
    tests = {
        f"{test['classname']}.{test['name']}": test
        for suite in report["testsuites"]
        for test in suite["testsuite"]
        if PLANTED in test["classname"]
    }
    failures = {
        name: [failure["failure"] for failure in test["failures"]]
        for name, test in tests.items()
        if test.get("failures")
    }
    passed = {
        name: test["result"] == "COMPLETED" and name not in failures for name, test in tests.items()
    }
    return {"tests": passed, "failures": failures}


def build_tests(folder: str) -> str:
    build = Path(folder, "build")
    configure = ["cmake", "-S", str(REPOSITORY), "-B", str(build), "-G", "Ninja"]
    for command in (
        [*configure, "-DCONVTIME_TESTS=ON"],
        ["cmake", "--build", str(build), "--target", "trace_faults_test"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the C++ tests cannot be built: {done.stdout[-1000:]}")
    return str(build / "tests" / "cpp")


PROBES: dict[str, Callable[..., results.Row]] = {
    "interleaving": probe_interleaving,
    "records": probe_records,
}
