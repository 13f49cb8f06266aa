"""What `import convtime` costs over `import torch`, and its idle plugin over a start of pytest.

All of it is measured in fresh interpreters by turns. A row is a pair: the seconds that `import
torch` takes in one interpreter, and `import torch, convtime` in another; which of them comes first
changes from pair to pair. What the interpreter itself takes to start and to end does not count.
Both are imported once before, so that no pair compiles Python files or reads them from the disk.
Judged is what of the second is convtime's, by that interpreter's own clock. The difference of a
pair stands beside it: it holds whatever else makes one interpreter slower than the next, which on
an H200's host is more than convtime's part.

Each pair has starts of pytest on a file with one empty test, too, with the plugin and by `-p
no:convtime`. Whatever else a machine does only makes a start longer: of several of each kind the
shortest counts, and judged is the median over the pairs of how much these two differ.
"""

from __future__ import annotations

import functools
import importlib.metadata
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import results
from common import running

PAIRS = 21
STARTS = 5  # of each kind, for a pair
FLAGS = {"plugin_s": (), "no_plugin_s": ("-p", "no:convtime")}
IMPORTS = {"torch_s": ("torch",), "convtime_s": ("torch", "convtime")}  # of each pair


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Medians of convtime's parts, once there are as many pairs as there should be."""
    if len(rows) < PAIRS:
        return {}
    summary = {"import_over_torch_s": statistics.median(row["after_torch_s"] for row in rows)}
    idle = _idle_plugin(rows)
    if len(idle) == len(rows):  # older files lack it
        summary["idle_plugin_ms"] = 1e3 * statistics.median(idle)
    return summary


def _idle_plugin(rows: list[results.Row]) -> list[float]:
    return [row["plugin_s"] - row["no_plugin_s"] for row in rows if "plugin_s" in row]


def _differences(rows: list[results.Row]) -> list[float]:
    return [row["convtime_s"] - row["torch_s"] for row in rows]


def table(rows: list[results.Row]) -> str:
    """Markdown, a line for each import and one for the pairs' differences."""
    columns = {
        f"`import {', '.join(modules)}`": [row[name] for row in rows]
        for name, modules in IMPORTS.items()
    }
    columns["difference of a pair"] = _differences(rows)
    columns["`import convtime` after torch"] = [row["after_torch_s"] for row in rows]
    columns["a start of pytest"] = [row["plugin_s"] for row in rows if "plugin_s" in row]
    columns["an idle plugin of it"] = _idle_plugin(rows)
    header = (
        "| | pairs | median (ms) | quartiles (ms) | least to most (ms) |",
        "|---|--:|--:|--:|--:|",
    )
    lines = [_line(name, seconds) for name, seconds in columns.items() if len(seconds) > 1]
    return "\n".join((*header, *lines))


def _line(name: str, seconds: list[float]) -> str:
    milliseconds = [1e3 * value for value in seconds]
    low, median, high = statistics.quantiles(milliseconds, n=4, method="inclusive")
    return (
        f"| {name} | {len(seconds)} | {median:.1f} | {low:.1f} to {high:.1f} "
        f"| {min(milliseconds):.1f} to {max(milliseconds):.1f} |"
    )


def measure_pair(names: tuple[str, ...]) -> results.Row:
    """Both imports, in the order of the names, and the starts of pytest."""
    seconds = {name: measure_imports(IMPORTS[name]) for name in names}
    torch, both = seconds["convtime_s"]
    imports = {"torch_s": seconds["torch_s"][0], "convtime_s": both, "after_torch_s": both - torch}
    return imports | measure_starts()


def measure_starts() -> results.Row:
    """The shortest of several starts of each kind."""
    seconds: dict[str, list[float]] = {name: [] for name in FLAGS}
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder, "test_nothing.py")
        test.write_text("def test_nothing(): pass\n", encoding="utf-8")
        for _ in range(STARTS):
            for name, flags in FLAGS.items():
                seconds[name].append(measure_start(test, flags))
    return {name: min(found) for name, found in seconds.items()}


def measure_start(test: Path, flags: Sequence[str]) -> float:
    """Seconds that pytest takes in a fresh interpreter; errors as running.run_fresh."""
    arguments = ["-q", "-p", "no:cacheprovider", *flags, str(test)]
    program = (
        "import json, time",
        "begin = time.perf_counter()",
        "import pytest",
        f"assert pytest.main({arguments!r}) == 0",
        f"print('\\n' + {running.RESULT!r} + json.dumps(time.perf_counter() - begin))",
    )
    seconds: float = running.run_fresh(["-c", "\n".join(program)])
    return seconds


def check_plugin() -> None:
    """Raises SystemExit where pytest does not find the plugin by itself."""
    plugins = importlib.metadata.entry_points(group="pytest11")
    if "convtime" not in plugins.names:
        raise SystemExit("error: convtime must be installed, so that pytest loads its plugin")


def measure_imports(modules: Sequence[str]) -> list[float]:
    """Seconds after which a fresh interpreter has imported each; errors as running.run_fresh."""
    program = ["import json, time", "seconds = []", "begin = time.perf_counter()"]
    for module in modules:
        program += [f"import {module}", "seconds.append(time.perf_counter() - begin)"]
    program.append(f"print({running.RESULT!r} + json.dumps(seconds))")
    seconds: list[float] = running.run_fresh(["-c", "\n".join(program)])
    return seconds


def main() -> None:
    options = results.argument_parser(__doc__).parse_args()
    check_plugin()

    from convtime.core.provenance import provenance
    from convtime.device.resolve import resolve_device

    facts = provenance(resolve_device(options.device))
    file = results.ResultFile("packaging", summarise, options, facts)
    orders = (tuple(IMPORTS), tuple(reversed(IMPORTS)))
    cases = {
        f"pair {number}": functools.partial(measure_pair, orders[number % 2])
        for number in range(1, PAIRS + 1)
    }
    if file.pending(cases):
        measure_pair(tuple(IMPORTS))
    running.measure_pending(file, cases)


if __name__ == "__main__":
    main()
