"""What convtime costs before it times anything: to install, to import, to compile its kernels.

Parts (--part):

imports  `import convtime` over `import torch`, and the idle plugin over a start of pytest. All of
         it is measured in fresh interpreters by turns. A row is a pair: the seconds that `import
         torch` takes in one interpreter, and `import torch, convtime` in another; which of them
         comes first changes from pair to pair. What the interpreter itself takes to start and to
         end does not count. Both are imported once before, so that no pair compiles Python files
         or reads them from the disk. Judged is what of the second is convtime's, by that
         interpreter's own clock. Each pair has starts of pytest on a file with one empty test,
         too, with the plugin and by `-p no:convtime`. Of several of each kind the shortest counts,
         and judged is the median over the pairs of how much these two differ.
kernels  The first call of each kind of kernel in a process, by an empty and by a filled cache of
         compiled kernels. Needs a GPU.
install  README's first command in an empty environment, word for word, by empty caches of pip's
         and convtime's, and where its time goes.
wheel    A wheel for several torches (--wheel FILE): its size, and the seconds to install it where
         torch is installed (--environment FOLDER).

All but imports add their rows to the file that imports made (--into), which may have been measured
on another machine: each row says where it was.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import os
import statistics
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import results
from common import running
from packaging_parts import installing
from packaging_parts.uses import TIME_OP, USES

PAIRS = 21
STARTS = 5  # of each kind, for a pair
FLAGS = {"plugin_s": (), "no_plugin_s": ("-p", "no:convtime")}
IMPORTS = {"torch_s": ("torch",), "convtime_s": ("torch", "convtime")}  # of each pair


def summarise(rows: list[results.Row]) -> dict[str, float]:
    by_key = {row["key"]: row for row in rows}
    pairs = [row for row in rows if "after_torch_s" in row]
    summary: dict[str, float] = {}
    if len(pairs) >= PAIRS:
        summary["import_over_torch_s"] = statistics.median(row["after_torch_s"] for row in pairs)
        idle = _idle_plugin(pairs)
        if len(idle) == len(pairs):  # older files lack it
            summary["idle_plugin_ms"] = 1e3 * statistics.median(idle)
    if "install" in by_key:
        installed = by_key["install"]
        summary |= {
            name: installed[name] for name in ("compile_s", "first_command_s", "library_mb")
        }
        summary["main_job_cpu_s"] = installed["main_job_s"]
    if "wheel" in by_key:
        wheel = by_key["wheel"]
        summary |= {name: wheel[name] for name in ("wheel_mb", "wheel_install_s", "wheel_torches")}
    uses = [row for row in rows if row["key"] in USES and row["key"] != TIME_OP]
    if len(uses) == len(USES) - 1:
        summary["kernels_first_use_s"] = max(row["empty_first_s"] for row in uses)
        summary["kernels_cached_use_ms"] = 1e3 * max(row["filled_first_s"] for row in uses)
    if TIME_OP in by_key:
        summary["first_time_op_empty_cache_s"] = by_key[TIME_OP]["empty_first_s"]
    return summary


def _idle_plugin(rows: list[results.Row]) -> list[float]:
    return [row["plugin_s"] - row["no_plugin_s"] for row in rows if "plugin_s" in row]


def table(rows: list[results.Row]) -> str:
    """Markdown, a table for each part."""
    pairs = [row for row in rows if "after_torch_s" in row]
    columns = {
        f"`import {', '.join(modules)}`": [row[name] for row in pairs]
        for name, modules in IMPORTS.items()
    }
    columns["difference of a pair"] = [row["convtime_s"] - row["torch_s"] for row in pairs]
    columns["`import convtime` after torch"] = [row["after_torch_s"] for row in pairs]
    columns["a start of pytest"] = [row["plugin_s"] for row in pairs if "plugin_s" in row]
    columns["an idle plugin of it"] = _idle_plugin(pairs)
    header = (
        "| | pairs | median (ms) | quartiles (ms) | least to most (ms) |",
        "|---|--:|--:|--:|--:|",
    )
    lines = [_line(name, seconds) for name, seconds in columns.items() if len(seconds) > 1]
    parts = ["\n".join((*header, *lines))] if lines else []
    uses = [row for row in rows if row["key"] in USES]
    if uses:
        head = "| first call of a process | empty cache (ms) | filled cache (ms) | next call (ms) |"
        told = [
            f"| {row['key']} | {1e3 * row['empty_first_s']:.0f} "
            f"| {1e3 * row['filled_first_s']:.1f} | {1e3 * row['filled_second_s']:.2f} |"
            for row in uses
        ]
        parts.append("\n".join((head, "|---|--:|--:|--:|", *told)))
    for key, title in (("install", "phase of README's first command"), ("wheel", "wheel")):
        for row in rows:
            if row["key"] == key:
                told = [
                    f"| {name.removesuffix('_s')} | {value:.1f} |"
                    for name, value in row.items()
                    if name.endswith("_s") and value is not None
                ]
                parts.append("\n".join((f"| {title} | s |", "|---|--:|", *told)))
    return "\n\n".join(parts)


def _line(name: str, seconds: list[float]) -> str:
    milliseconds = [1e3 * value for value in seconds]
    low, median, high = statistics.quantiles(milliseconds, n=4, method="inclusive")
    return (
        f"| {name} | {len(seconds)} | {median:.1f} | {low:.1f} to {high:.1f} "
        f"| {min(milliseconds):.1f} to {max(milliseconds):.1f} |"
    )


def measure_pair(names: tuple[str, ...]) -> results.Row:
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


def measure_wheel(wheel: Path, environment: Path) -> results.Row:
    """Installs a wheel where torch and all dependencies are installed, and imports it."""
    python = environment / "bin" / "python"
    begin = time.perf_counter()
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    seconds = time.perf_counter() - begin
    subprocess.run([python, "-c", "import convtime; convtime.time_op(abs, -1)"], check=True)
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.endswith("/libconvtime.so")]
    return {
        "wheel_mb": wheel.stat().st_size / 1e6,
        "wheel_install_s": seconds,
        "wheel_torches": len(libraries),
    }


def add_rows(path: Path, rows: Mapping[str, results.Row], **where: object) -> None:
    """Adds rows to a result file, or replaces those of the same keys, and judges the file."""
    document = json.loads(path.read_text(encoding="utf-8"))
    kept = [row for row in document["rows"] if row["key"] not in rows]
    added = [{"key": key, **row, **where} for key, row in rows.items()]
    path.write_text(json.dumps(document | {"rows": kept + added}), encoding="utf-8")
    results.judge("packaging", summarise, path.parent)


def main() -> None:
    parser = results.argument_parser(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--part", required=True, choices=("imports", "kernels", "install", "wheel"))
    parser.add_argument("--wheel", type=Path, help="file of the part wheel")
    parser.add_argument("--environment", type=Path, help="folder of the part install or wheel")
    parser.add_argument(
        "--into", type=Path, help="packaging.json that gets the rows of such a part"
    )
    parser.add_argument("--probe", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        print_first_use(options)
        return
    where = {"cpu_count": os.cpu_count(), "commit": options.commit or results.find_commit()}
    if options.part == "install":
        # Its caches are where its environment is, so that both are empty.
        caches = options.environment / "caches" if options.into else None
        rows = {"install": installing.install(options.environment, caches)}
    elif options.part == "wheel":
        rows = {"wheel": measure_wheel(options.wheel, options.environment)}
    else:
        measure_here(options, where)
        return
    print(json.dumps(rows))
    if options.into:
        add_rows(options.into, rows, **where)


def print_first_use(options: argparse.Namespace) -> None:
    from packaging_parts import first_use

    from convtime.device.resolve import resolve_device

    running.print_result(first_use.probe(resolve_device(options.device), options.probe[-1]))


def measure_here(options: argparse.Namespace, where: dict[str, object]) -> None:
    """The parts that need convtime in this environment."""
    from convtime.core.provenance import provenance
    from convtime.device.resolve import resolve_device

    device = resolve_device(options.device)
    facts = provenance(device)
    if options.part == "imports":
        check_plugin()
        file = results.ResultFile("packaging", summarise, options, facts)
        orders = (tuple(IMPORTS), tuple(reversed(IMPORTS)))
        cases = {
            f"pair {number}": functools.partial(measure_pair, orders[number % 2])
            for number in range(1, PAIRS + 1)
        }
        if file.pending(cases):
            measure_pair(tuple(IMPORTS))
        running.measure_pending(file, cases)
        return
    from packaging_parts import first_use

    where |= {"gpu": facts["gpu"], "torch": facts["torch"]}
    for use in USES:
        row = first_use.measure(use, device)
        print(use, json.dumps(row), flush=True)
        add_rows(options.into, {use: row}, **where)


if __name__ == "__main__":
    main()
