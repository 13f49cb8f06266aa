"""What convtime costs before it times anything: to install, to import, to compile its kernels.

Parts (--part):

imports  `import convtime` over `import torch`, and the idle plugin over a start of pytest. A row is
         a pair of fresh interpreters, in alternating order: one imports torch, the other torch and
         convtime. Judged is what of the second is convtime's, by that interpreter's own clock. Each
         pair has starts of pytest on a file with one empty test, too, with the plugin and without.
         Of several of each kind the shortest counts; judged is the median of the differences.
kernels  The first call of each kind of kernel in a process, by an empty and by a filled cache of
         compiled kernels. Needs a GPU.
install  README's first command in an empty environment, word for word, by empty caches of pip's
         and convtime's, and where its time goes.
wheel    A wheel for several torches (--wheel FILE): its size, and the seconds to install it where
         torch is installed (--environment FOLDER).

All but imports add their rows to the file that imports made (--into), which may have been measured
on another machine: each row says where it was.
"""

import argparse
import functools
import importlib.metadata
import json
import operator
import os
import statistics
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import results
from common import installing, running, summaries

TIME_OP = "time_op"
# Kinds of calls that need kernels of convtime's own; common/first_use.py makes them.
USES = (
    *("pool", "pool channels_last", "pool backward", "epilogue", "mlp 64 inference"),
    *("mlp 64 training", "mlp 128 training", "mlp 256 training"),
)
PAIRS = 21
STARTS = 5  # of each kind, for a pair
FLAGS = {"plugin_s": (), "no_plugin_s": ("-p", "no:convtime")}
IMPORTS = {"torch_s": ("torch",), "convtime_s": ("torch", "convtime")}  # of each pair


def measure_pair(names: tuple[str, ...]) -> results.Row:
    seconds = {name: measure_imports(IMPORTS[name]) for name in names}
    torch, both = seconds["convtime_s"]
    imports = {"torch_s": seconds["torch_s"][0], "convtime_s": both, "after_torch_s": both - torch}
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder, "test_nothing.py")
        test.write_text("def test_nothing(): pass\n", encoding="utf-8")
        starts = [[measure_start(test, flags) for flags in FLAGS.values()] for _ in range(STARTS)]
    return imports | dict(zip(FLAGS, map(min, *starts), strict=True))


def measure_imports(modules: Sequence[str]) -> list[float]:
    program = ["result = []", "begin = time.perf_counter()"]
    for module in modules:
        program += [f"import {module}", "result.append(time.perf_counter() - begin)"]
    seconds: list[float] = running.run_program(*program)
    return seconds


def measure_start(test: Path, flags: Sequence[str]) -> float:
    arguments = ["-q", "-p", "no:cacheprovider", *flags, str(test)]
    seconds: float = running.run_program(
        "begin = time.perf_counter()",
        "import pytest",
        f"assert pytest.main({arguments!r}) == 0",
        "result = time.perf_counter() - begin",
    )
    return seconds


def measure_wheel(wheel: Path, environment: Path) -> results.Row:
    """Installs a wheel where torch and all dependencies are installed, and imports it."""
    python = environment / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", str(wheel)]
    seconds = running.seconds_of(lambda: subprocess.run(install, check=True))
    subprocess.run([python, "-c", "import convtime; convtime.time_op(abs, -1)"], check=True)
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.endswith("/libconvtime.so")]
    return {
        "wheel_mb": wheel.stat().st_size / 1e6,
        "wheel_install_s": seconds,
        "wheel_torches": len(libraries),
    }


def summarise(rows: list[results.Row]) -> dict[str, float]:
    by_key = summaries.by_key(rows)
    pairs = _pairs(rows)
    summary: dict[str, float] = {}
    if len(pairs) >= PAIRS:
        summary["import_over_torch_s"] = statistics.median(row["after_torch_s"] for row in pairs)
        summary["idle_plugin_ms"] = 1e3 * statistics.median(map(_idle_plugin, pairs))
    if install := by_key.get("install"):
        summary |= {name: install[name] for name in ("compile_s", "first_command_s", "library_mb")}
        summary["main_job_cpu_s"] = install["main_job_s"]
    if wheel := by_key.get("wheel"):
        names = ("wheel_mb", "wheel_install_s", "wheel_torches")
        summary |= {name: wheel[name] for name in names}
    if all(use in by_key for use in USES):
        uses = [by_key[use] for use in USES]
        summary["kernels_first_use_s"] = max(row["empty_first_s"] for row in uses)
        summary["kernels_cached_use_ms"] = 1e3 * max(row["filled_first_s"] for row in uses)
    if TIME_OP in by_key:
        summary["first_time_op_empty_cache_s"] = by_key[TIME_OP]["empty_first_s"]
    return summary


def _pairs(rows: list[results.Row]) -> list[results.Row]:
    return [row for row in rows if "after_torch_s" in row]


def _idle_plugin(row: results.Row) -> float:
    return float(row["plugin_s"] - row["no_plugin_s"])


def table(rows: list[results.Row]) -> str:
    columns: dict[str, Callable[[results.Row], float]] = {
        "`import torch`": operator.itemgetter("torch_s"),
        "`import torch, convtime`": operator.itemgetter("convtime_s"),
        "difference of a pair": lambda row: row["convtime_s"] - row["torch_s"],
        "`import convtime` after torch": operator.itemgetter("after_torch_s"),
        "a start of pytest": operator.itemgetter("plugin_s"),
        "an idle plugin of it": _idle_plugin,
    }
    lines = [_cells(name, map(get, _pairs(rows))) for name, get in columns.items()]
    header = " | pairs: | median (ms): | quartiles (ms): | least to most (ms):"
    parts = [summaries.markdown(header, lines)]
    by_key = summaries.by_key(rows)
    uses = []
    for use in (TIME_OP, *USES):
        row = by_key[use]
        first, again = (1e3 * row[f"filled_{which}_s"] for which in ("first", "second"))
        uses.append((use, f"{1e3 * row['empty_first_s']:.0f}", f"{first:.1f}", f"{again:.2f}"))
    header = "first call of a process | empty cache (ms): | filled cache (ms): "
    parts.append(summaries.markdown(f"{header}| next call (ms):", uses))
    for key, title in (("install", "phase of README's first command"), ("wheel", "wheel")):
        phases = [
            (name.removesuffix("_s"), f"{value:.1f}")
            for name, value in by_key[key].items()
            if name.endswith("_s") and value is not None
        ]
        parts.append(summaries.markdown(f"{title} | s:", phases))
    return "\n\n".join(parts)


def _cells(name: str, seconds: Iterable[float]) -> tuple[object, ...]:
    milliseconds = [1e3 * value for value in seconds]
    low, median, high = statistics.quantiles(milliseconds, n=4, method="inclusive")
    extremes = summaries.least_to_most(milliseconds, ".1f")
    return name, len(milliseconds), f"{median:.1f}", f"{low:.1f} to {high:.1f}", extremes


def add_row(options: argparse.Namespace, key: str, row: results.Row, **where: object) -> None:
    commit = options.commit or results.find_commit()
    path = options.into
    document = json.loads(path.read_text(encoding="utf-8"))
    rows = [each for each in document["rows"] if each["key"] != key]
    rows.append({"key": key, **row, "cpu_count": os.cpu_count(), "commit": commit, **where})
    path.write_text(json.dumps(document | {"rows": rows}), encoding="utf-8")
    results.judge("packaging", path.parent)


def main() -> None:
    parser = results.argument_parser(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--part", required=True, choices=("imports", "kernels", "install", "wheel"))
    add("--wheel", type=Path, help="file of the part wheel")
    add("--environment", type=Path, help="folder of the part install or wheel")
    add("--into", type=Path, help="packaging.json that gets the rows of such a part")
    options = parser.parse_args()
    if options.part in ("imports", "kernels"):
        measure_here(options)
        return
    if options.part == "install":
        # Its caches are where its environment is, so that both are empty.
        caches = options.environment / "caches" if options.into else None
        row = installing.install(options.environment, caches)
    else:
        row = measure_wheel(options.wheel, options.environment)
    print(json.dumps({options.part: row}))
    if options.into:
        add_row(options, options.part, row)


def measure_here(options: argparse.Namespace) -> None:
    from convtime.device.provenance import provenance

    device = running.find_device(options.device)
    if options.part == "imports":
        if "convtime" not in importlib.metadata.entry_points(group="pytest11").names:
            raise SystemExit("error: convtime must be installed, so that pytest loads its plugin")
        file = running.open_file("packaging", options, device)
        orders = (tuple(IMPORTS), tuple(reversed(IMPORTS)))
        cases = {
            f"pair {number}": functools.partial(measure_pair, orders[number % 2])
            for number in range(1, PAIRS + 1)
        }
        if file.pending(cases):
            measure_pair(tuple(IMPORTS))
        running.measure_pending(file, cases)
        return
    from common import first_use

    facts = provenance(device)
    for use in (TIME_OP, *USES):
        row = first_use.measure(use, device)
        print(use, json.dumps(row), flush=True)
        add_row(options, use, row, gpu=facts["gpu"], torch=facts["torch"])


if __name__ == "__main__":
    main()
