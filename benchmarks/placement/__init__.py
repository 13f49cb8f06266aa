"""Whether medians, intervals and verdicts hold for other tensors than those that were timed.

A row is a process, in which each operation is timed once by time_op, and compared twice: with
itself on tensors that were allocated apart, and with itself on 2 % more data; all with default
options. One more row has the truth of the latter by torch.profiler, over random places of arguments
and results that are not convtime's. Where 2 % more data take another time than that (a matmul's
tiles, a launch of a few microseconds), the pair is shown and does not count. Another row, for the
picture, has the samples of one kernel at sixteen addresses, and sixteen times at one of them.

The spread of an operation is the range of the processes' medians, less one tick of the clock that
CUPTI's records are from, over the median of the medians.
"""

import math
import statistics
from typing import Any

import results
from common import summaries

TICK_SECONDS = 32e-9
TOLERANCE = 0.005  # of a true ratio of 1.02
TRUTH = "truth"
ADDRESSES = "addresses"


def summarise(rows: list[results.Row]) -> dict[str, float]:
    processes = processes_of(rows)
    if not processes:
        return {"processes": 0}
    found = [entry for row in processes for entry in row["operations"].values()]
    again, more = ([entry[what] for entry in found] for what in ("other tensors", "more data"))
    medians = medians_of(processes)
    grand = {name: statistics.median(times) for name, times in medians.items()}
    counted = [
        row["operations"][name]["more data"]
        for name, ratio in true_ratios(rows).items()
        if abs(ratio - 1.02) <= TOLERANCE
        for row in processes
    ]
    return summaries.known(
        processes=len(processes),
        ops=len(processes[0]["operations"]),
        aa_other_tensors_false_verdicts=summaries.share(
            summaries.is_certain(pair["verdict"]) for pair in again
        ),
        aa_other_tensors_same=summaries.share(pair["verdict"] == "same" for pair in again),
        aa_other_tensors_interval_covers_one=summaries.share(
            pair["low"] <= 1 <= pair["high"] for pair in again
        ),
        time_op_interval_covers_grand_median=summaries.share(
            entry["low"] <= grand[name] <= entry["high"]
            for row in processes
            for name, entry in row["operations"].items()
        ),
        worst_spread_less_one_tick=(
            max(map(spread_less_one_tick, medians.values())) if len(processes) > 1 else None
        ),
        true_2pct_found=summaries.share(pair["verdict"] == "slower" for pair in counted),
        slowest_verdict_s=summaries.most(pair["seconds"] for pair in (*again, *more)),
    )


def processes_of(rows: list[results.Row]) -> list[results.Row]:
    return [row for row in rows if row["key"] not in (TRUTH, ADDRESSES)]


def medians_of(processes: list[results.Row]) -> dict[str, list[float]]:
    names = processes[0]["operations"]
    return {name: [row["operations"][name]["median"] for row in processes] for name in names}


def spread_less_one_tick(medians: list[float]) -> float:
    return max(0.0, max(medians) - min(medians) - TICK_SECONDS) / statistics.median(medians)


def true_ratios(rows: list[results.Row]) -> dict[str, float]:
    return {
        name: seconds[1] / seconds[0]
        for row in rows
        if row["key"] == TRUTH
        for name, seconds in row["seconds"].items()
    }


def table(rows: list[results.Row]) -> str:
    processes = processes_of(rows)
    ratios = true_ratios(rows)
    lines = []
    for name, medians in medians_of(processes).items() if processes else ():
        entries = [row["operations"][name] for row in processes]
        grand = statistics.median(medians)
        again = [entry["other tensors"] for entry in entries]
        lines.append(
            {
                "name": name,
                "grand": grand,
                "spread": spread_less_one_tick(medians),
                "covering": sum(entry["low"] <= grand <= entry["high"] for entry in entries),
                "count": len(entries),
                "ratios": summaries.least_to_most((pair["ratio"] for pair in again), ".4f"),
                "same": sum(pair["verdict"] == "same" for pair in again),
                "true": ratios.get(name, math.nan),
                "slower": sum(entry["more data"]["verdict"] == "slower" for entry in entries),
            }
        )
    return summaries.filled(
        "operation | median (µs): | spread less a tick: | intervals that have the median of all: "
        "| other tensors: ratios: | same: | 2 % more data, true ratio: | found slower:",
        "{name} | {grand:.2fµ} | {spread:.2%} | {covering} of {count} | {ratios} "
        "| {same} of {count} | {true:.4f} | {slower} of {count}",
        lines,
    )


def picture(document: dict[str, Any]) -> bytes:
    from convtime.view.figure import BLUE, ORANGE, numbers, quantity

    row = summaries.by_key(document["rows"])[ADDRESSES]
    across = quantity("place", "in the order of their medians")
    time = quantity("time", "time of a call (µs)")
    band = {end: numbers([row["default"][end]], 1e6) for end in ("low", "high")}
    box = {"type": "rect", "color": BLUE, "opacity": 0.25}
    dot = {"type": "point", "filled": True, "size": 8, "style": "ink"}
    tick = {"type": "tick", "orient": "horizontal", "thickness": 3, "color": ORANGE}
    panels = []
    titles = ("the same tensors, sixteen times", "sixteen other addresses")
    for kind, title in zip(("same", "other"), titles, strict=True):
        found = sorted(row[kind], key=statistics.median)
        samples = {
            "place": [place for place, seconds in enumerate(found, 1) for _ in seconds],
            "time": numbers([each for seconds in found for each in seconds], 1e6),
        }
        medians = {
            "place": range(1, len(found) + 1),
            "time": numbers(map(statistics.median, found), 1e6),
        }
        layers = [
            summaries.layer(box, band, y=time | {"field": "low"}, y2={"field": "high"}),
            summaries.layer(dot, samples, x=across, y=time),
            summaries.layer(tick, medians, x=across, y=time),
        ]
        panels.append({"title": title, "width": 380, "height": 300, "layer": layers})
    return summaries.picture(
        document,
        f"{row['operation']}, cold cache",
        "Samples of one kernel at one address and at sixteen, with their medians.",
        {"hconcat": panels, "resolve": {"scale": {"y": "shared"}}},
        key="dot: sample; line: median; band: time_op's interval by default",
    )
