"""Whether the pytest plugin's gate finds what is 5 % slower, and nothing else.

A row is a pair of runs of the same tests, each in fresh processes: the first is saved, and the
second compared with it by `--convtime-fail-on`; what runs on the CPU is judged beside a baseline.
In the second run, every other operation has more data to work on. One more row has the amounts of
data that make it 5 %, by torch.profiler over random places of arguments and results, or on the CPU
by Python's own clock. A false alarm is an operation that is not slower, and is found to be slower
or faster. An operation for which no amount of data comes within half a percent of 5 % does not
count as found.

Two more rows need no GPU. One simulates calibrated gates, with what placement recorded of fresh
processes: every other operation is slower by its calibrated margin. The other attributes changes
whose causes are written into their measurements.
"""

import statistics

import results
from common import summaries

PLANTS = "plants"
SIMULATION, CAUSES = "simulation", "causes"
SHORT_SECONDS = 1e-5  # a margin of shorter operations is that of the clock's tick
PLANTED = 1.05
TOLERANCE = 0.005


def summarise(rows: list[results.Row]) -> dict[str, float]:
    summary: dict[str, float] = {}
    pairs, plants, by_key = pairs_of(rows), plants_of(rows), summaries.by_key(rows)
    if pairs:
        exact = {
            name for name, plant in plants.items() if abs(plant["ratio"] - PLANTED) <= TOLERANCE
        }
        planted, equal = _found(pairs, planted=True), _found(pairs, planted=False)
        summary["pairs"] = len(planted) + len(equal)
        summary["false_alarms"] = sum(_is_alarm(found) for _, found in equal)
        summary["found_of_20"] = sum(
            found["verdict"] == "slower" for name, found in planted if name in exact
        )
    if row := by_key.get(SIMULATION):
        summary |= {
            "simulated_runs": row["runs"],
            "calibrated_found": row["found"] / row["planted"],
            "false_alarms_per_1000_test_runs": 1000 * row["false"] / row["equal"],
            "median_margin_over_10us": statistics.median(
                margin
                for name, margin in row["margins"].items()
                if row["medians"][name] > SHORT_SECONDS
            ),
        }
    if CAUSES in by_key:
        causes = by_key[CAUSES]["causes"]  # by what was planted, what it was attributed to
        right = sum(found.get(planted, 0) for planted, found in causes.items())
        summary["cause_right"] = right / sum(sum(found.values()) for found in causes.values())
    return summary


def _found(pairs: list[results.Row], *, planted: bool) -> list[tuple[str, results.Row]]:
    """Operation and what was found, where it is slower or where it is not."""
    return [
        (name, found)
        for row in pairs
        for name, found in row["found"].items()
        if (name in row["slower"]) == planted
    ]


def _is_alarm(found: results.Row) -> bool:
    return summaries.is_certain(found["verdict"])


def pairs_of(rows: list[results.Row]) -> list[results.Row]:
    return [row for row in rows if row["key"] not in (PLANTS, SIMULATION, CAUSES)]


def plants_of(rows: list[results.Row]) -> dict[str, results.Row]:
    """What is planted, by operation; empty before it is known."""
    plants: dict[str, results.Row] = summaries.by_key(rows).get(PLANTS, {}).get("plants", {})
    return plants


def table(rows: list[results.Row]) -> str:
    pairs, plants = pairs_of(rows), plants_of(rows)
    planted, equal = _found(pairs, planted=True), _found(pairs, planted=False)
    lines = []
    for name in pairs[0]["found"]:
        slower, others = ([row for op, row in each if op == name] for each in (planted, equal))
        found = sum(row["verdict"] == "slower" for row in slower)
        cells = [name, f"{plants[name]['ratio']:.4f}", _range(slower), f"{found} of {len(slower)}"]
        lines.append([*cells, _range(others), f"{sum(map(_is_alarm, others))} of {len(others)}"])
    header = "operation | planted, true ratio: | ratios found: | found slower: "
    return summaries.markdown(f"{header}| not slower: ratios found: | false alarms:", lines)


def _range(found: list[results.Row]) -> str:
    ratios = (each["ratio"]["value"] for each in found if each["ratio"] is not None)
    return summaries.least_to_most(ratios, ".4f")
