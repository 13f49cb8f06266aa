"""How far medians in burst and in sustained lie apart in fresh processes, and from each other.

A row is a process, in which triton's do_bench times each operation first, as the GPU happens to be,
and time_op then in both regimes, with a warm cache. The spread is the range of the medians over the
median of the medians, of the operation where it is the largest. Processes in which a regime was not
reached do not count. Two more rows are a fresh process that samples the matmul as it comes from a
rest, for the picture, and one of `convtime doctor`.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import results
from common import running, summaries

if TYPE_CHECKING:
    import torch

    from convtime import Measurement
    from convtime.timing.options import Regime

PROCESSES = 10
OPERATIONS = {
    "memory_bound": "relu 64Mi fp32",
    "matmul": "matmul 4096 bf16",
    "conv": "conv 32x256x56x56 fp16 channels_last",
}
REGIMES: tuple[Regime, ...] = ("burst", "sustained")
BUDGET = 0.3  # seconds of sampling
FROM_REST = "from rest"
REST = 2.0  # seconds
LOAD = 2.0  # seconds
POINTS = 300  # of the picture
DOCTOR = "doctor"
DOCTOR_TIMEOUT = 120


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Spreads once two processes have given their medians, and the doctor's time once it ran."""
    processes = _processes(rows)
    summary: dict[str, float] = {"processes": len(processes)}
    if len(processes) > 1:
        for regime in REGIMES:
            summary[f"{regime}_spread"] = max(
                summaries.spread([row[regime][name]["median"] for row in processes])
                for name in OPERATIONS
            )
    summary["told_apart"] = sum(
        _is_below(row["burst"]["matmul"]["high"], row["sustained"]["matmul"]["low"])
        for row in processes
    )
    for row in rows:
        if row["key"] == DOCTOR:
            summary["doctor_s"] = row["seconds"]
    return summary


def _is_below(high: float | None, low: float | None) -> bool:
    return high is not None and low is not None and high < low


def _processes(rows: list[results.Row]) -> list[results.Row]:
    """Those in which every regime was reached."""
    return [
        row
        for row in rows
        if row["key"] not in (FROM_REST, DOCTOR)
        and all(row[regime][name]["regime"] == regime for regime in REGIMES for name in OPERATIONS)
    ]


def table(rows: list[results.Row]) -> str:
    """Markdown, a line per operation, of the processes in which every regime was reached."""
    processes = _processes(rows)
    return summaries.markdown(
        "operation | burst (µs): | MHz: | spread: | sustained (µs): | MHz: | spread: "
        "| triton do_bench (µs): | spread:",
        (_cells(processes, name) for name in OPERATIONS) if processes else (),
    )


def _cells(rows: list[results.Row], name: str) -> list[str]:
    cells = [OPERATIONS[name]]
    for regime in REGIMES:
        median, spread = summaries.median_and_spread([row[regime][name]["median"] for row in rows])
        clock = statistics.median(row[regime][name]["sm_clock_hz"] for row in rows)
        cells += [median, f"{clock / 1e6:.0f}", spread]
    triton = [row["triton"][name] for row in rows if name in row["triton"]]
    return [*cells, *summaries.median_and_spread(triton)]


def picture(document: dict[str, Any]) -> bytes:
    """A PNG: the matmul's times and clocks from a rest on, and its median in each regime."""
    from convtime.core.figure import BLUE, GREEN, ORANGE, Figure, columns, numbers, quantity

    (rested,) = (row for row in document["rows"] if row["key"] == FROM_REST)
    elapsed = numbers(rested["elapsed"])
    across = quantity("elapsed", f"seconds of load after {REST:g} s of rest", type="log")
    time = quantity("time", "time of a call (µs)")
    point = {"type": "point", "filled": True, "size": 12, "opacity": 1, "color": BLUE}
    medians = [
        {
            **columns(
                time=numbers(
                    [row[regime]["matmul"]["median"] for row in _processes(document["rows"])], 1e6
                )
            ),
            "mark": {"type": "rule", "color": colour, "opacity": 0.6},
            "encoding": {"y": time},
        }
        for regime, colour in zip(REGIMES, (GREEN, ORANGE), strict=True)
    ]
    times = {
        **columns(elapsed=elapsed, time=numbers(rested["seconds"], 1e6)),
        "mark": point,
        "encoding": {"x": across, "y": time},
    }
    clocks = {
        **columns(elapsed=elapsed, clock=numbers(rested["sm_clock_hz"], 1e-6)),
        "mark": point,
        "encoding": {"x": across, "y": quantity("clock", "SM clock (MHz)")},
    }
    facts = document["provenance"]
    return Figure(
        title=f"{OPERATIONS['matmul']}; {facts['gpu']}, torch {facts['torch']}",
        description="Times and clocks of a matmul from a rest on, and its medians in both regimes.",
        view={
            "vconcat": [
                {"width": 640, "height": 280, "layer": [*medians, times]},
                {"width": 640, "height": 130, **clocks},
            ]
        },
        key="dot: from a rest on; line: a process's median, in burst (green) or sustained (orange)",
    ).content(".png")


def operations(device: torch.device) -> dict[str, running.Call]:
    from common.operations import Operations

    make = Operations(device)
    return {
        "memory_bound": make.relu(1 << 26),
        "matmul": make.matmul(4096),
        "conv": make.conv(32, channels=256),
    }


def probe(device: torch.device) -> results.Row:
    """What each tool and regime says in this process; of triton nothing where it cannot be had."""
    from common.calls import do_bench_medians

    from convtime import time_op

    calls = operations(device)
    row = do_bench_medians(calls)
    for regime in REGIMES:
        row[regime] = {
            name: _facts(time_op(call, cache="warm", regime=regime, budget=BUDGET))
            for name, call in calls.items()
        }
    return row


def _facts(measurement: Measurement) -> results.Row:
    low, high = measurement.median_interval
    clocks = [clock for clock in measurement.sm_clocks_hz if clock is not None]
    assert measurement.warmup_seconds is not None
    assert measurement.sampling_seconds is not None
    power = [reading.power for reading in measurement.conditions if reading.power is not None]
    return {
        "regime": measurement.regime.used,
        "reason": measurement.regime.reason,
        "median": measurement.median,
        "low": low if math.isfinite(low) else None,
        "high": high if math.isfinite(high) else None,
        "samples": len(measurement.seconds),
        "discarded": len(measurement.discarded),
        "sm_clock_hz": statistics.median(clocks) if clocks else None,
        "max_power": max(power, default=None),
        "idle_seconds": measurement.idle_seconds,
        "seconds": measurement.warmup_seconds + measurement.sampling_seconds,
    }


def probe_from_rest(device: torch.device) -> results.Row:
    """Times and clocks of the matmul under load that begins after a rest, thinned to medians."""
    import torch

    from convtime import time_op

    call = operations(device)["matmul"]
    call()  # what is done only once
    torch.cuda.synchronize(device)
    time.sleep(REST)
    measurement = time_op(
        call, cache="warm", placement="as-is", regime="as-is", warmup=1, stop="budget", budget=LOAD
    )
    assert measurement.sampling_seconds is not None
    # The samples have no time stamps: what passed beside them is spread over them.
    stretch = measurement.sampling_seconds / sum(measurement.seconds)
    elapsed = [stretch * passed for passed in itertools.accumulate(measurement.seconds)]
    known = [
        (passed, second, clock)
        for passed, second, clock in zip(
            elapsed, measurement.seconds, measurement.sm_clocks_hz, strict=True
        )
        if clock is not None
    ]
    size = -(-len(known) // POINTS)
    points = [
        tuple(map(statistics.median, zip(*known[first : first + size], strict=True)))
        for first in range(0, len(known), size)
    ]
    return {
        "elapsed": [round(passed, 6) for passed, _, _ in points],
        "seconds": [round(second, 10) for _, second, _ in points],
        "sm_clock_hz": [round(clock) for _, _, clock in points],
    }


def time_doctor(device: torch.device) -> results.Row:
    """Wall time of a fresh `convtime doctor`, which exits with 1 where it finds something."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "convtime", "doctor", "--json", "-", "--device", str(device)],
        capture_output=True,
        text=True,
        timeout=DOCTOR_TIMEOUT,
        check=False,
    )
    seconds = time.perf_counter() - begin
    if done.returncode not in (0, 1):
        raise RuntimeError(f"convtime doctor ended with {done.returncode}: {done.stderr.strip()}")
    return {"seconds": seconds, "exit_code": done.returncode}


def make_cases(device: torch.device) -> dict[str, running.Measure]:
    process = functools.partial(running.run_probe, "regimes", "regimes", device)
    cases: dict[str, running.Measure] = {
        f"process {number}": process for number in range(1, PROCESSES + 1)
    }
    cases[FROM_REST] = functools.partial(running.run_probe, "regimes", "from-rest", device)
    cases[DOCTOR] = functools.partial(time_doctor, device)
    return cases


if __name__ == "__main__":
    running.run_on_gpu(
        "regimes",
        __doc__,
        summarise,
        make_cases,
        probes={"regimes": probe, "from-rest": probe_from_rest},
    )
