"""Result files of the benchmarks: resumable, shardable, and summed up against goals.json.

A benchmark is a script <name>.py next to this file, or a folder <name> with a __main__.py;
packaging is packaging_benchmark.py, because its name would hide a library. It defines, importing
nothing heavy for it, `summarise(rows) -> {name: value}` and `table(rows) -> str` (Markdown). Every
row has a "key" that is unique in its file.
"""

import argparse
import datetime
import importlib
import itertools
import json
import math
import operator
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

SCHEMA = 1
HERE = Path(__file__).resolve().parent
PROVENANCE = ("gpu", "driver", "cuda", "torch", "cudnn", "commit")

Row = dict[str, Any]
Summarise = Callable[[list[Row]], Mapping[str, float]]
Case = TypeVar("Case")

_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


def load_goals(path: Path = HERE / "goals.json") -> dict[str, dict[str, str]]:
    """Benchmark -> name of a summary value -> goal, e.g. ">= 0.97"."""
    goals = json.loads(path.read_text(encoding="utf-8"))
    return {benchmark: limits for benchmark, limits in goals.items() if benchmark != "_"}


def scripts() -> dict[str, Path]:
    """Benchmark -> what Python runs, of those benchmarks in goals.json that exist."""
    return {
        name: script
        for name in load_goals()
        for script in (HERE / name, HERE / f"{name}.py", HERE / f"{name}_benchmark.py")
        if script.is_file() or (script / "__main__.py").exists()
    }


def load_script(benchmark: str) -> ModuleType:
    return importlib.import_module(scripts()[benchmark].stem)


def meets(value: float, goal: str) -> bool:
    """Whether a value satisfies a goal such as ">= 0.97"."""
    match = re.fullmatch(r"(>=|<=|==|>|<) *(-?\d+(?:\.\d+)?)", goal)
    if match is None:
        raise ValueError(f"goal is {goal!r}, but must be a relation and a number, e.g. '>= 0.97'")
    relation, limit = match.groups()
    return _RELATIONS[relation](value, float(limit))


def make_summary(rows: list[Row], summarise: Summarise, goals: Mapping[str, str]) -> list[Row]:
    """One entry a goal; a value that the rows do not yield is null, and a miss."""
    values = summarise(rows) if rows else {}
    return [
        {
            "name": name,
            "value": values.get(name),
            "goal": goal,
            "met": name in values and meets(values[name], goal),
        }
        for name, goal in goals.items()
    ]


def find_commit() -> str:
    """The commit of this checkout, marked when its files differ from it (results aside)."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(HERE), *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    try:
        changes = git("status", "--porcelain", "--", ":/", f":(exclude,top){HERE.name}/results")
        return git("rev-parse", "HEAD") + ("-dirty" if changes else "")
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"error: no git history at {HERE}; give the commit by --commit") from error


def parse_shard(text: str) -> tuple[int, int]:
    """I and N of "I/N"; raises argparse's error for anything else."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"got {text!r}, but must be I/N with I from 1 to N")
    return int(match[1]), int(match[2])


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    # No abbreviations: the recorded command leaves options out by their full names.
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    add = parser.add_argument
    add("--output", type=Path, default=HERE / "results", help="directory")
    add("--shard", type=parse_shard, metavar="I/N", help="every Nth case, from the Ith")
    add("--commit", help="of the code that is measured (default: ask git)")
    add("--device", help="cpu, cuda or cuda:N (default: cuda if there is a GPU)")
    add("--resume", type=Path, metavar="FILE", help="rows of an earlier run")
    add("--seconds", type=float, default=math.inf, help="after which no case begins")
    return parser


class ResultFile:
    """The file of one benchmark, or of one shard of it, rewritten as a whole.

    A file that is there already is continued when its provenance and command are the same, so that
    a benchmark can be run in pieces; otherwise it is started anew.
    """

    def __init__(self, benchmark: str, options: argparse.Namespace, facts: Row) -> None:
        """Opens the file, before anything is measured; `facts` are its provenance."""
        self._benchmark = benchmark
        self._shard: tuple[int, int] | None = options.shard
        provenance = {key: facts.get(key) for key in PROVENANCE}
        self._provenance = provenance | {"commit": options.commit or find_commit()}
        self._command = _command(sys.argv)
        options.output.mkdir(parents=True, exist_ok=True)
        self.path = options.output / file_name(benchmark, self._shard)
        self.seconds: float = options.seconds
        self.rows: list[Row] = []
        self.lost: list[str] = []  # keys of cases that left the GPU unusable for a process
        if self.path.exists():
            old = _read(self.path)
            if old["provenance"] != self._provenance:
                print(f"{self.path}: is of another environment or commit; starting anew")
            elif old["command"] != self._command:
                made_by = f"was made by '{old['command']}', not by '{self._command}'"
                print(f"{self.path}: {made_by}; starting anew")
            else:
                self.rows = old["rows"]
                self.lost = old.get("lost", [])

    def pending(self, cases: Mapping[str, Case]) -> dict[str, Case]:
        """Those cases (by key) that this shard has to measure and has not yet; lost ones last."""
        first, step = self._shard or (1, 1)
        done = {row["key"] for row in self.rows}
        mine = itertools.islice(cases.items(), first - 1, None, step)
        left = {key: case for key, case in mine if key not in done}
        return dict(sorted(left.items(), key=lambda item: item[0] in self.lost))

    def note_lost(self, key: str) -> None:
        """Has a case that left the GPU unusable come last from now on, and saves the file."""
        self.lost = [*dict.fromkeys([*self.lost, key])]
        self.add_all({})

    def add(self, key: str, row: Row) -> None:
        self.add_all({key: row})

    def add_all(self, rows: Mapping[str, Row]) -> None:
        """Appends rows by their keys, and saves once: with thousands of rows, saving takes long."""
        self.rows += [{"key": key, **row} for key, row in rows.items()]
        self.lost = [key for key in self.lost if key not in rows]
        document = _document(self._benchmark, self._command, self.rows, self._provenance)
        _write(self.path, document | ({"lost": self.lost} if self.lost else {}))


def _command(argv: list[str]) -> str:
    """The command line, less what says only where rows go, and how many of them a process makes."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--output", "--shard", "--commit", "--resume", "--seconds"):
        parser.add_argument(option)
    parser.add_argument("--parts", nargs="+")
    _, recorded = parser.parse_known_args(argv[1:])
    script = Path(argv[0])
    return shlex.join([script.parent.name if script.stem == "__main__" else script.name, *recorded])


def file_name(benchmark: str, shard: tuple[int, int] | None) -> str:
    return f"{benchmark}.shard-{shard[0]}-of-{shard[1]}.json" if shard else f"{benchmark}.json"


def _document(benchmark: str, command: str, rows: list[Row], provenance: Row) -> Row:
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "schema": SCHEMA,
        "benchmark": benchmark,
        "command": command,
        "date": now.isoformat(timespec="seconds"),
        "provenance": provenance,
        "rows": rows,
        "summary": summary_of(benchmark, rows),
    }


def summary_of(benchmark: str, rows: list[Row]) -> list[Row]:
    return make_summary(rows, load_script(benchmark).summarise, load_goals()[benchmark])


def _read(path: Path) -> Row:
    document: Row = json.loads(path.read_text(encoding="utf-8"))
    return document


def _write(path: Path, document: Row) -> None:
    # Here, so that checking results needs neither torch nor an installed convtime.
    from convtime.core.codec import to_json
    from convtime.core.files import write_file

    write_file(path, to_json(document))


def judge(benchmark: str, directory: Path) -> Path:
    path = directory / file_name(benchmark, None)
    if not path.exists():
        raise ValueError(f"{directory} has no {path.name}; run the benchmark first")
    document = _read(path)
    _write(path, document | {"summary": summary_of(benchmark, document["rows"])})
    return path


def merge(benchmark: str, directory: Path) -> Path:
    """Makes one result file out of all shards of a benchmark, which stay where they are.

    ValueError where shards are missing or incomplete, or differ in environment or command.
    """
    shards: dict[tuple[int, int], Row] = {}
    for path in directory.glob(f"{benchmark}.shard-*-of-*.json"):
        if match := re.search(r"\.shard-(\d+)-of-(\d+)\.json$", path.name):
            shards[int(match[1]), int(match[2])] = _read(path)
    counts = sorted({count for _, count in shards})
    if len(counts) != 1:
        has = f"{benchmark} in shards of {counts or 'nothing'}"
        raise ValueError(f"{directory} has {has}, but they must all be of one number")
    (count,) = counts
    numbers = range(1, count + 1)
    missing = [f"{number}/{count}" for number in numbers if (number, count) not in shards]
    if missing:
        raise ValueError(f"{directory} lacks shards of {benchmark}: {', '.join(missing)}")
    documents = [shards[number, count] for number in numbers]
    command, provenance = documents[0]["command"], documents[0]["provenance"]
    expected = provenance | {"command": command}
    for number, document in zip(numbers, documents, strict=True):
        for key, value in (document["provenance"] | {"command": document["command"]}).items():
            if value != expected[key]:
                other = f"shard {number}/{count} of {benchmark} has {key} {value!r}"
                raise ValueError(f"{other}, but shard 1/{count} {expected[key]!r}")
    # Shards took the cases by turns: what an earlier shard has, a later one may lack once.
    lengths = [len(document["rows"]) for document in documents]
    leasts = [max(max(lengths) - 1, *lengths[index:]) for index in range(count)]
    short = [
        f"{number}/{count} has {length} rows of {least} or more"
        for number, length, least in zip(numbers, lengths, leasts, strict=True)
        if length < least
    ]
    if short:
        wrong = f"shards of {benchmark} are incomplete and must be run again"
        raise ValueError(f"{wrong}: {', '.join(short)}")
    turns = itertools.zip_longest(*(document["rows"] for document in documents))
    rows = [row for turn in turns for row in turn if row is not None]
    path = directory / file_name(benchmark, None)
    # Its first shard's command tells how the rows were made, which this process's does not.
    _write(path, _document(benchmark, command, rows, provenance))
    return path


def describe(summary: Iterable[Row]) -> str:
    return "\n".join(
        f"  {'met ' if entry['met'] else 'MISS'} {entry['name']} = {entry['value']}"
        f" (goal {entry['goal']})"
        for entry in summary
    )


def describe_file(path: Path) -> str:
    return f"{path}\n{describe(_read(path)['summary'])}"


def main() -> None:
    found = scripts()
    parser = argparse.ArgumentParser(description="Result files of the benchmarks.")
    actions = parser.add_subparsers(dest="action", required=True)
    for action, what, change in (
        ("merge", "make one file out of the shards", merge),
        ("judge", "sum the rows of a file up again, by goals.json as it is now", judge),
    ):
        subparser = actions.add_parser(action, help=what)
        subparser.set_defaults(change=change)
        subparser.add_argument("benchmark", choices=found)
        subparser.add_argument("--output", type=Path, default=HERE / "results", help="directory")
    listing = actions.add_parser("scripts", help="print name and script of benchmarks, or of all")
    listing.add_argument("benchmarks", nargs="*", metavar="benchmark")
    options = parser.parse_args()
    if options.action == "scripts":
        for name in options.benchmarks or found:
            if name not in found:
                raise SystemExit(f"error: benchmark is {name!r}, but must be of {', '.join(found)}")
            print(name, found[name], sep="\t")
        return
    try:
        print(describe_file(options.change(options.benchmark, options.output)))
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
