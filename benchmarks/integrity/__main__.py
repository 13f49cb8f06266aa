"""What a row of each kind is measured by."""

import contextlib
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import results
import torch
from common import running

from integrity.interleavings import INTERLEAVINGS, Scene

REPOSITORY = str(Path(__file__).parents[2])
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
    records = functools.partial(running.run_fresh, probe_records, device, timeout=300)
    measures: dict[str, running.Measure] = {
        **{name: functools.partial(measure_interleaving, name, device) for name in INTERLEAVINGS},
        **{f"records {moment}": functools.partial(records, moment) for moment in MOMENTS},
        "planted losses": measure_planted_losses,
    }
    names = list(measures)
    pool = ThreadPoolExecutor(CASES_AT_ONCE)
    begin = functools.cache(lambda name: pool.submit(measures[name]))

    def measure(key: str) -> results.Row:
        # Several ahead: processes take seconds to start, and no row depends on how fast they are.
        first = names.index(key)
        begun = [begin(name) for name in names[first : first + CASES_AT_ONCE]]
        return begun[0].result()

    return {key: functools.partial(measure, key) for key in measures}


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
    # Without it, kineto cannot be had on demand; with it, it looks for its daemon.
    variables = {"KINETO_USE_DAEMON": "1"} if "demand" in name else {}
    try:
        command = [sys.executable, *running.fresh_call(probe_interleaving, device, name, part)]
        done = running.capture(command, 100, **variables)
    except subprocess.TimeoutExpired:
        return {}, -signal.SIGKILL
    row: results.Row = next(iter(running.printed_results(done.stdout)), {})
    if not row:
        said = running.last_line(done.stderr)
        print(f"{name}, {part}: ended with {done.returncode}: {said}", flush=True)
    return row, done.returncode


def probe_interleaving(device: torch.device, name: str, part: str) -> results.Row:
    scene = Scene(device, control=part == "control")
    INTERLEAVINGS[name](scene)
    return {
        "launched": scene.launched,
        "in_profile": scene.seen,
        "timings": [describe(measured) for measured in scene.measurements],
    }


def describe(measured: Any) -> results.Row:
    return {
        "method": measured.method.used,
        "reason": measured.method.reason,
        "incomplete": count_incomplete(measured, None),
        "faulty_batches": measured.faulty_batches,
    }


def count_incomplete(measured: Any, expected: int | None) -> int:
    """Samples that lack an activity which others have, or of the number that is expected."""
    if measured.method != "kernel":
        return 0
    wanted = len(measured.activities) if expected is None else expected
    calls = zip(*(activity.seconds for activity in measured.activities), strict=True)
    return sum(len(call) - call.count(None) != wanted for call in calls)


def probe_records(device: torch.device, moment: str) -> results.Row:
    """Kernels whose number is known, times CALLS."""
    from convtime import time_op

    profiles, is_busy = MOMENTS[moment]
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

    def keep_busy(is_done: threading.Event) -> None:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            while not is_done.is_set():
                for _ in range(20):
                    torch.erfinv(scene.relu())
                stream.synchronize()

    with running.beside(keep_busy) if is_busy else contextlib.nullcontext():
        measured = time_op(
            call,
            stop="count",
            max_samples=CALLS // 10 if is_busy else CALLS,
            device=device,
            exclusive=False,  # other cases time on this GPU, too
        )
    found = (second for activity in measured.activities for second in activity.seconds)
    durations = [duration for duration in found if duration is not None]
    return {
        "kind": "records",
        "records": len(durations),
        "shortest": min(filter(None, durations), default=0.0),
        **describe(measured),
        "incomplete": count_incomplete(measured, LAUNCHES + NODES),
    }


def measure_planted_losses() -> results.Row:
    with tempfile.TemporaryDirectory() as folder:
        program = os.environ.get("CONVTIME_CPP_TESTS")
        if program is None:
            build = f"{folder}/build"
            command = ["cmake", "-S", REPOSITORY, "-B", build, "-G", "Ninja", "-DCONVTIME_TESTS=ON"]
            subprocess.run(command, check=True)
            command = ["cmake", "--build", build, "--target", "trace_faults_test"]
            subprocess.run(command, check=True)
            program = f"{build}/tests/cpp"
        report = Path(folder, "report.json")
        subprocess.run(
            [f"{program}/trace_faults_test", f"--gtest_output=json:{report}"],
            env={**os.environ, "FAIL_WITHOUT_CUDA": "1"},
            check=False,
            capture_output=True,
        )
        return {"kind": "planted", **read_report(json.loads(report.read_text()))}


def read_report(report: Mapping[str, list[results.Row]]) -> results.Row:
    """Of GoogleTest's report: "tests", each passed or not, and "failures", what they said."""
    tests: dict[str, bool] = {}
    failures: dict[str, list[str]] = {}
    for test in itertools.chain(*(suite["testsuite"] for suite in report["testsuites"])):
        if PLANTED in test["classname"]:
            name = f"{test['classname']}.{test['name']}"
            if said := [failure["failure"] for failure in test.get("failures", ())]:
                failures[name] = said
            tests[name] = test["result"] == "COMPLETED" and not said
    return {"tests": tests, "failures": failures}


if __name__ == "__main__":
    running.run("integrity", make_cases)
