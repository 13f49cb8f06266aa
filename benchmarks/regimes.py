"""How far medians in burst and in sustained lie apart in fresh processes, and from each other.

A row is a process, in which triton's do_bench times each operation first, as the GPU happens to be,
and time_op then in both regimes, with a warm cache. The spread is the range of the medians over the
median of the medians, of the operation where it is the largest. Processes in which a regime was not
reached do not count. Two more rows are a fresh process that samples the matmul as it comes from a
rest, for the picture, and one of `convtime doctor`.
"""

import functools
import itertools
import math
import statistics
import sys
import time
from typing import Any, Literal

import results
from common import running, summaries

PROCESSES = 10
OPERATIONS = {
    "memory_bound": "relu 64Mi fp32",
    "matmul": "matmul 4096 bf16",
    "conv": "conv 32x256x56x56 fp16 channels_last",
}
REGIMES: tuple[Literal["burst"], Literal["sustained"]] = ("burst", "sustained")
BUDGET = 0.3  # seconds of sampling
FROM_REST = "from rest"
REST = 2.0  # seconds
LOAD = 2.0  # seconds
POINTS = 300  # of the picture
DOCTOR = "doctor"


def medians(device: running.Device) -> results.Row:
    """What each tool and regime says in this process; of triton nothing where it cannot be had."""
    from common.calls import do_bench_medians
    from common.operations import operation

    from convtime import time_op

    calls = {name: operation(op, device) for name, op in OPERATIONS.items()}
    row = do_bench_medians(calls)
    for regime in REGIMES:
        row[regime] = {
            name: _facts(time_op(call, cache="warm", regime=regime, budget=BUDGET))
            for name, call in calls.items()
        }
    return row


def _facts(measurement: Any) -> results.Row:
    low, high = (end if math.isfinite(end) else None for end in measurement.median_interval)
    clocks = [clock for clock in measurement.sm_clocks_hz if clock is not None]
    return {
        "regime": measurement.regime.used,
        "median": measurement.median,
        "low": low,
        "high": high,
        "sm_clock_hz": statistics.median(clocks) if clocks else None,
    }


def from_rest(device: running.Device) -> results.Row:
    import torch
    from common.operations import operation

    from convtime import time_op

    call = operation(OPERATIONS["matmul"], device)
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
    samples = zip(elapsed, measurement.seconds, measurement.sm_clocks_hz, strict=True)
    known = [sample for sample in samples if sample[2] is not None]
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


def time_doctor(device: running.Device) -> results.Row:
    command = [sys.executable, "-m", "convtime", "doctor", "--json", "-", "--device", str(device)]
    begin = time.perf_counter()
    done = running.capture(command, timeout=120)
    seconds = time.perf_counter() - begin
    if done.returncode not in (0, 1):
        raise RuntimeError(f"convtime doctor ended with {done.returncode}: {done.stderr.strip()}")
    return {"seconds": seconds}


def make_cases(device: running.Device) -> dict[str, running.Measure]:
    return {
        **running.in_processes(medians, device, PROCESSES),
        FROM_REST: functools.partial(running.run_fresh, from_rest, device),
        DOCTOR: functools.partial(time_doctor, device),
    }


def _processes(rows: list[results.Row]) -> list[results.Row]:
    return [
        row
        for row in rows
        if row["key"] not in (FROM_REST, DOCTOR)
        and all(row[regime][name]["regime"] == regime for regime in REGIMES for name in OPERATIONS)
    ]


def _medians_of(processes: list[results.Row], regime: str, name: str) -> list[float]:
    return [row[regime][name]["median"] for row in processes]


def summarise(rows: list[results.Row]) -> dict[str, float]:
    processes = _processes(rows)
    ends = [
        (row["burst"]["matmul"]["high"], row["sustained"]["matmul"]["low"]) for row in processes
    ]
    spreads = {
        f"{regime}_spread": max(
            summaries.spread(_medians_of(processes, regime, name)) for name in OPERATIONS
        )
        for regime in (REGIMES if len(processes) > 1 else ())
    }
    return {
        "processes": len(processes),
        **spreads,
        "told_apart": sum(None not in pair and pair[0] < pair[1] for pair in ends),
        **summaries.known(doctor_s=summaries.by_key(rows).get(DOCTOR, {}).get("seconds")),
    }


def table(rows: list[results.Row]) -> str:
    processes = _processes(rows)
    return summaries.markdown(
        "operation | burst (µs): | MHz: | spread: | sustained (µs): | MHz: | spread: "
        "| triton do_bench (µs): | spread:",
        (_cells(processes, name) for name in OPERATIONS) if processes else (),
    )


def _cells(processes: list[results.Row], name: str) -> list[str]:
    cells = [OPERATIONS[name]]
    for regime in REGIMES:
        median, spread = summaries.median_and_spread(_medians_of(processes, regime, name))
        clock = statistics.median(row[regime][name]["sm_clock_hz"] for row in processes)
        cells += [median, f"{clock / 1e6:.0f}", spread]
    triton = [row["triton"][name] for row in processes if name in row["triton"]]
    return [*cells, *summaries.median_and_spread(triton)]


def picture(document: dict[str, Any]) -> bytes:
    from convtime.view.figure import BLUE, GREEN, ORANGE, numbers, quantity

    rested = summaries.by_key(document["rows"])[FROM_REST]
    across = quantity("elapsed", f"seconds of load after {REST:g} s of rest", type="log")
    time = quantity("time", "time of a call (µs)")
    clock = quantity("clock", "SM clock (MHz)")
    point = {"type": "point", "filled": True, "size": 12, "opacity": 1, "color": BLUE}
    processes = _processes(document["rows"])
    layers = []
    for regime, colour in zip(REGIMES, (GREEN, ORANGE), strict=True):
        medians = numbers(_medians_of(processes, regime, "matmul"), 1e6)
        rule = {"type": "rule", "color": colour, "opacity": 0.6}
        layers.append(summaries.layer(rule, {"time": medians}, y=time))
    elapsed = numbers(rested["elapsed"])
    times = {"elapsed": elapsed, "time": numbers(rested["seconds"], 1e6)}
    layers.append(summaries.layer(point, times, x=across, y=time))
    clocks = {"elapsed": elapsed, "clock": numbers(rested["sm_clock_hz"], 1e-6)}
    panels = [
        {"width": 640, "height": 280, "layer": layers},
        {"width": 640, "height": 130, **summaries.layer(point, clocks, x=across, y=clock)},
    ]
    return summaries.picture(
        document,
        OPERATIONS["matmul"],
        "Times and clocks of a matmul from a rest on, and its medians in both regimes.",
        {"vconcat": panels},
        key="dot: from a rest on; line: a process's median, in burst (green) or sustained (orange)",
    )


if __name__ == "__main__":
    running.run("regimes", make_cases)
