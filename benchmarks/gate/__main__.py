"""Runs that are saved, and compared with; how much longer operations take; and simulations."""

import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import results
import torch
from common import running
from common.truth import profiled_at_random

import gate
from convtime.device.resolve import resolve_device
from gate import CAUSES, PLANTED, PLANTS, SIMULATION, plants_of
from gate.operations import LARGER, ON_CPU, SIZES, call_of, names_on
from gate.simulation import attribute_planted, recorded, simulate

PAIRS = 8
FAIL_ON = "slower:2%"  # well below what is planted

_SUITE = Path(__file__).with_name("gate_suite.py")
# By its module's name, whether convtime is installed or stands in a folder of Python's path.
_PLUGIN = ("-p", "no:convtime", "-p", "pytest_convtime")
_TIMEOUT_SECONDS = 300


def make_cases(device: torch.device, file: results.ResultFile) -> dict[str, running.Measure]:
    plants = functools.cache(lambda: find_plants(device)["plants"])

    def measure(number: int) -> results.Row:
        names = enumerate(names_on(device))
        slower = [name for index, name in names if (index + number) % 2]
        # A shard perhaps has no row of plants.
        return measure_pair(device, plants_of(file.rows) or plants(), slower)

    return {
        PLANTS: functools.partial(find_plants, device),
        **{f"pair {each}": functools.partial(measure, each) for each in range(1, PAIRS + 1)},
        SIMULATION: lambda: simulate(recorded()),
        CAUSES: attribute_planted,
    }


def measure_pair(
    device: torch.device, plants: Mapping[str, results.Row], slower: Collection[str]
) -> results.Row:
    begin = time.perf_counter()
    sizes = {name: SIZES[name] for name in names_on(device)}
    larger = sizes | {name: plants[name]["size"] for name in slower}
    with tempfile.TemporaryDirectory() as folder:
        _pytest(folder, device, sizes, "--convtime-save", "before")
        output = _pytest(
            *(folder, device, larger, "--convtime-against", "before"),
            *("--convtime-fail-on", FAIL_ON, "--convtime-json", "changes.json"),
            "--convtime-relative",
        )
        changes = _changes(Path(folder, "changes.json"), output)
    return {
        "slower": list(slower),
        "found": {name: changes[name] for name in sizes},
        "seconds": time.perf_counter() - begin,
    }


def _pytest(folder: str, device: torch.device, sizes: Mapping[str, int], *arguments: str) -> str:
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", folder),
        *("-p", "no:cacheprovider", *_PLUGIN, str(_SUITE), *arguments),
    ]
    variables = {"GATE_SIZES": json.dumps(sizes), "GATE_DEVICE": str(device)}
    done = running.capture(command, _TIMEOUT_SECONDS, cwd=folder, **variables)
    output = done.stdout + done.stderr
    if done.returncode > 1 or f"{len(sizes)} passed" not in output:
        raise RuntimeError(f"pytest ended with {done.returncode}: {running.last_line(output)}")
    return output


def _changes(path: Path, output: str) -> dict[str, results.Row]:
    if not path.exists():
        raise RuntimeError(f"pytest compared nothing: {running.last_line(output)}")
    changes = json.loads(path.read_text(encoding="utf-8"))["changes"]
    fields = ("verdict", "ratio", "p_value", "sentence")
    return {
        change["name"].partition("[")[2].rpartition("]")[0]: {name: change[name] for name in fields}
        for change in changes
    }


CLOSEST, LOOKS = 4, 6
ROUNDS = 100  # of a look on the CPU


def find_plants(device: torch.device) -> results.Row:
    """By a look at all sizes, and several more at the closest.

    A look at a kernel of 4 µs is off by 1 %. So the closest one by a first look is often so by
    chance, and its ratio is that of the other looks.
    """
    plants = {}
    for name in names_on(device):
        ratios = {size: _ratio(name, device, size) for size in LARGER[name]}
        again = {
            size: statistics.fmean(_ratio(name, device, size) for _ in range(LOOKS))
            for size in closest(ratios, CLOSEST)
        }
        (best,) = closest(again, 1)
        plants[name] = {"size": best, "ratio": again[best]}
    return {"plants": plants}


def closest(ratios: Mapping[int, float], count: int) -> list[int]:
    return sorted(ratios, key=lambda size: abs(ratios[size] - PLANTED))[:count]


def _ratio(name: str, device: torch.device, size: int) -> float:
    longer, usual = calls = [call_of(name, device, each) for each in (size, SIZES[name])]
    if name not in ON_CPU:
        seconds = profiled_at_random(calls, device)
        torch.cuda.empty_cache()
        return seconds[0] / seconds[1]
    ratios = []
    for _ in range(ROUNDS):  # in each of which either is called first once
        times = [running.seconds_of(call) for call in (longer, usual, usual, longer)]
        ratios.append((times[0] + times[3]) / (times[1] + times[2]))
    return statistics.median(ratios)


if __name__ == "__main__":
    options = results.argument_parser(gate.__doc__).parse_args()
    device = resolve_device(options.device)
    file = running.open_file("gate", options, device)
    running.measure_pending(file, make_cases(device, file))
