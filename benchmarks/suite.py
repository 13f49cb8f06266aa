"""How long the tests take, how often they fail for no fault, and how many faults they find.

Parts (--parts):

command  README's second command, word for word, in an environment where its first one has run
         (--environment), and how many cases a plain pytest collects.
ci       The seconds that .ci/run takes.
loaded   The quick suite beside a process that keeps one core busy, --runs times.
python   One-line changes of the package's meaning, drawn by a seed over all rooms: of operators,
         comparisons, conditions and numbers. The quick tests of the changed room run first, then
         the whole quick suite.
cpp      The same of C++ code that judges: its C++ tests run first. --build names a CMake build with
         tests, of a copy of the sources.

Mutants can be measured in shards, on several machines or cores.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import results
from common import running
from packaging_parts import installing
from suite_parts import mutants

PARTS = ("command", "ci", "loaded", "python", "cpp")
RUNS = 20
MUTANTS = {"python": 80, "cpp": 22}
SEED = 20261128
UNCHANGED = "unchanged"
ROOT = installing.ROOT


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """The values of those parts that were measured."""
    by_key = {row["key"]: row for row in rows}
    summary: dict[str, float] = {}
    if "command" in by_key:
        summary["second_command_s"] = by_key["command"]["seconds"]
        summary["cases"] = by_key["command"]["cases"]
    if "ci" in by_key:
        summary["ci_s"] = by_key["ci"]["seconds"]
    loaded = [row for row in rows if row["key"].startswith("loaded ")]
    if len(loaded) >= RUNS:
        summary["failures_of_20_loaded_runs"] = sum(row["failed"] > 0 for row in loaded[:RUNS])
    if tried := _tried(rows):
        summary["mutants"] = len(tried)
        summary["mutants_caught"] = sum(row["noticed_by"] is not None for row in tried) / len(tried)
    return summary


def _tried(rows: list[results.Row]) -> list[results.Row]:
    """Mutants that compile, where the unchanged package passes."""
    if not any(row["key"] == UNCHANGED and row["noticed_by"] is None for row in rows):
        return []
    return [
        row
        for row in rows
        if row["key"].startswith("mutant ") and row["noticed_by"] != mutants.COMPILER
    ]


def table(rows: list[results.Row]) -> str:
    """Markdown: the mutants that no test noticed."""
    lines = ["| file | line | before | after |", "|---|--:|---|---|"]
    for row in _tried(rows):
        if row["noticed_by"] is None:
            code = (row[name].replace("|", "\\|") for name in ("before", "after"))
            lines.append(
                f"| {row['path']} | {row['line']} | {' | '.join(f'`{c}`' for c in code)} |"
            )
    return "\n".join(lines)


def measure_command(environment: Path) -> results.Row:
    """Runs README's second command, and shows its output."""
    variables = installing.user_variables(environment)
    begin = time.perf_counter()
    lines = installing.run(
        ["bash", "-euo", "pipefail", "-c", installing.readme_command(2)], variables
    )
    seconds = time.perf_counter() - begin
    collected = subprocess.run(
        [environment / "bin" / "pytest", "--collect-only", "-q"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        "seconds": seconds,
        "cases": int(re.findall(r"^(\d+)(?:/\d+)? tests collected", collected.stdout, re.M)[-1]),
        "said": lines[-1][1],
    }


def measure_ci() -> results.Row:
    begin = time.perf_counter()
    subprocess.run([ROOT / ".ci" / "run"], check=True)
    return {"seconds": time.perf_counter() - begin}


def measure_loaded() -> results.Row:
    """Runs the quick suite on two cores, one of which another process keeps busy."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    busy = subprocess.Popen(
        [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {cores[:1]})\nwhile True: pass"]
    )
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"],
            cwd=ROOT,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        busy.kill()
        busy.wait()
    passed = re.findall(r"(\d+) passed", done.stdout)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    return {
        "seconds": time.perf_counter() - begin,
        "passed": int(passed[-1]) if passed else 0,
        "failed": max(len(failed), done.returncode != 0),
        "names": failed,
        "torch": version("torch"),
    }


def main() -> None:
    parser = results.argument_parser(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--environment", type=Path, help="folder of the part command")
    parser.add_argument("--build", type=Path, help="CMake build where C++ mutants are compiled")
    options = parser.parse_args()

    from convtime.device.provenance import provenance
    from convtime.device.resolve import resolve_device

    cases: dict[str, running.Measure] = {}
    if "command" in options.parts:
        cases["command"] = functools.partial(measure_command, options.environment)
    if "ci" in options.parts:
        cases["ci"] = measure_ci
    if "loaded" in options.parts:
        cases |= {f"loaded {number}": measure_loaded for number in range(1, RUNS + 1)}
    for language, count in MUTANTS.items():
        if language in options.parts:
            cases[UNCHANGED] = mutants.measure_unchanged
            cases |= {
                f"mutant {language} {index}": functools.partial(
                    mutants.measure, language, SEED, index, options.build
                )
                for index in range(count)
            }
    file = results.ResultFile("suite", summarise, options, provenance(resolve_device("cpu")))
    running.measure_pending(file, cases)


if __name__ == "__main__":
    main()
