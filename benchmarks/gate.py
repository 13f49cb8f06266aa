"""Whether the pytest plugin's gate finds what is 5 % slower, and nothing else.

A row is a pair of runs of the same tests, each in fresh processes: the first is saved, with as many
repetitions as the plugin's default, and the second compared with it by `--convtime-fail-on`, whose
default second look in another process is part of it; what runs on the CPU is judged beside a
baseline (`--convtime-relative`). In the second run of each pair, every other operation has more
data to work on, so that half of all comparisons are of something slower. One more row has the
amounts of data that make it 5 %, by torch.profiler over random places of arguments and results, or
on the CPU by Python's own clock.

A false alarm is an operation that is not slower, and is found to be slower or faster. An operation
for which no amount of data comes within half a percent of 5 % does not count as found.

Two more rows need no GPU. One simulates calibrated gates, with what placement.py recorded of fresh
processes: every other operation is slower by its calibrated margin. The other attributes changes
whose causes are written into their measurements.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import results
from common import running, summaries

if TYPE_CHECKING:
    import torch

PAIRS = 8
PLANTS = "plants"
SIMULATION, CAUSES = "simulation", "causes"
SHORT_SECONDS = 1e-5  # a margin of shorter operations is that of the clock's tick
PLANTED = 1.05
TOLERANCE = 0.005


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """How many comparisons there were, and how much of either kind the gate judged rightly."""
    return {**_of_pairs(rows), **_of_simulation(rows), **_of_causes(rows)}


def _of_pairs(rows: list[results.Row]) -> dict[str, float]:
    pairs = pairs_of(rows)
    if not pairs:
        return {}
    plants = plants_of(rows)
    return {
        "pairs": sum(len(row["found"]) for row in pairs),
        "false_alarms": sum(
            summaries.is_certain(found["verdict"])
            for row in pairs
            for name, found in row["found"].items()
            if name not in row["slower"]
        ),
        "found_of_20": sum(
            row["found"][name]["verdict"] == "slower"
            for row in pairs
            for name in row["slower"]
            if name in plants and abs(plants[name]["ratio"] - PLANTED) <= TOLERANCE
        ),
    }


def _of_simulation(rows: list[results.Row]) -> dict[str, float]:
    from gate_parts.simulation import margin_over

    row = _row_of(SIMULATION, rows)
    if row is None:
        return {}
    return {
        "simulated_runs": row["runs"],
        "calibrated_found": row["found"] / row["planted"],
        "false_alarms_per_1000_test_runs": 1000 * row["false"] / row["equal"],
        "median_margin_over_10us": margin_over(row, SHORT_SECONDS),
    }


def _of_causes(rows: list[results.Row]) -> dict[str, float]:
    from gate_parts.simulation import right

    row = _row_of(CAUSES, rows)
    return {} if row is None else {"cause_right": right(row)}


def _row_of(key: str, rows: list[results.Row]) -> results.Row | None:
    return summaries.by_key(rows).get(key)


def pairs_of(rows: list[results.Row]) -> list[results.Row]:
    return [row for row in rows if row["key"] not in (PLANTS, SIMULATION, CAUSES)]


def plants_of(rows: list[results.Row]) -> dict[str, results.Row]:
    """What is planted, by operation; empty before it is known."""
    row = _row_of(PLANTS, rows)
    return {} if row is None else row["plants"]


def table(rows: list[results.Row]) -> str:
    pairs, plants = pairs_of(rows), plants_of(rows)
    lines = []
    for name in pairs[0]["found"] if pairs else ():
        planted = [row["found"][name] for row in pairs if name in row["slower"]]
        equal = [row["found"][name] for row in pairs if name not in row["slower"]]
        slower = sum(found["verdict"] == "slower" for found in planted)
        alarms = sum(summaries.is_certain(found["verdict"]) for found in equal)
        true = f"{plants[name]['ratio']:.4f}" if name in plants else "–"
        told = (_range(planted), f"{slower} of {len(planted)}")
        lines.append((name, true, *told, _range(equal), f"{alarms} of {len(equal)}"))
    return summaries.markdown(
        "operation | planted, true ratio: | ratios found: | found slower: "
        "| not slower: ratios found: | false alarms:",
        lines,
    )


def _range(found: list[results.Row]) -> str:
    ratios = (each["ratio"]["value"] for each in found if each["ratio"] is not None)
    return summaries.reach(ratios, ".4f")


class Gate:
    """What measures the rows of a file."""

    def __init__(self, device: torch.device, file: results.ResultFile) -> None:
        self._device = device
        self._file = file
        self._plants: dict[str, results.Row] = {}

    def cases(self) -> dict[str, running.Measure]:
        from gate_parts.pair import find_plants
        from gate_parts.simulation import attribute_planted, recorded, simulate

        pairs = {
            f"pair {number}": functools.partial(self._measure, number)
            for number in range(1, PAIRS + 1)
        }
        return {
            PLANTS: functools.partial(find_plants, self._device),
            **pairs,
            SIMULATION: lambda: simulate(recorded()),
            CAUSES: attribute_planted,
        }

    def _measure(self, number: int) -> results.Row:
        from gate_parts.operations import names_on
        from gate_parts.pair import find_plants, measure_pair

        if not self._plants:  # a shard perhaps has no row of them
            self._plants = plants_of(self._file.rows) or find_plants(self._device)["plants"]
        names = enumerate(names_on(self._device))
        slower = [name for index, name in names if (index + number) % 2]
        return measure_pair(self._device, self._plants, slower)


def tell(row: results.Row) -> str:
    if "plants" in row:
        return ", ".join(f"{name} {plant['ratio']:.4f}" for name, plant in row["plants"].items())
    for key, field in ((SIMULATION, "runs"), (CAUSES, "causes")):
        if field in row:
            values = summarise([{"key": key, **row}])
            return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    verdicts = (
        f"{name} {found['verdict']}{' (planted)' if name in row['slower'] else ''}"
        for name, found in row["found"].items()
    )
    return f"{', '.join(verdicts)}; {row['seconds']:.0f} s"


def main() -> None:
    options = results.argument_parser(__doc__).parse_args()

    from convtime.device.resolve import resolve_device

    device = resolve_device(options.device)
    file = running.open_file("gate", summarise, options, device)
    running.measure_pending(file, Gate(device, file).cases(), tell)


if __name__ == "__main__":
    main()
