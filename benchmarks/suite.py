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

import dataclasses
import functools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import results
from common import installing, running, summaries

PARTS = ("command", "ci", "loaded", "python", "cpp")
RUNS = 20
MUTANTS = {"python": 80, "cpp": 22}
SEED = 20261128
UNCHANGED = "unchanged"
ROOT = installing.ROOT
QUICK_TESTS = (sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider")


def measure_command(environment: Path) -> results.Row:
    """Runs README's second command, and shows its output."""
    variables = installing.user_variables(environment)
    command = ["bash", "-euo", "pipefail", "-c", installing.readme_command(2)]
    begin = time.perf_counter()
    lines = installing.run(command, variables)
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
    seconds = running.seconds_of(lambda: subprocess.run([ROOT / ".ci" / "run"], check=True))
    return {"seconds": seconds}


def measure_loaded() -> results.Row:
    """Runs the quick suite on two cores, one of which another process keeps busy."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    busy = subprocess.Popen(
        [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {cores[:1]})\nwhile True: pass"]
    )
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            QUICK_TESTS,
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


PACKAGE = ROOT / "python" / "convtime"
# Folders of csrc whose code judges, and what is in the files that need a GPU for it.
JUDGING = ("timing/judge", "timing/calibration", "timing/conditions", "conv")
GPU_CALL = re.compile(r"\bcu(da|dnn|pti)?[A-Z]\w+\(|cudnn_frontend::")
# Of C++, where it is not a comment: what stands there, and what takes its place.
CPP_CHANGES = (
    (" < ", " <= "),
    (" > ", " >= "),
    (" == ", " != "),
    (" && ", " || "),
    (" + ", " - "),
    (" - ", " + "),
    (" * ", " / "),
    (" / ", " * "),
    ("std::min(", "std::max("),
    ("std::max(", "std::min("),
    ("if (!", "if (!!"),
    (" return true;", " return false;"),
    (" return false;", " return true;"),
)
# cosmic-ray's operators that change a meaning: those of `|` would change type annotations, too.
PYTHON_OPERATORS = re.compile(
    r"core/(ReplaceComparisonOperator_(?!.*Is).*|ReplaceBinaryOperator_(Add|Sub|Mul|Div|FloorDiv)_"
    r"(Add|Sub|Mul|Div)|Replace(And|Or)With.*|ReplaceUnaryOperator_(Delete_Not|USub_UAdd)"
    r"|Replace(True|False)With.*|NumberReplacer|AddNot)"
)
COMPILER = "compiler"
# Programs of C++ tests, and those of their tests that measure no duration.
CPP_TESTS = {
    "timing_test": "*",
    "conv_test": "*",
    "duration_test": "SamplerTest.*:AutomaticRegimeTest.*:PlacesTest.*",
}
SECONDS = 600  # after which a run of tests has noticed, since without the change it takes less


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A file of the repository with one line changed."""

    path: Path
    line: int
    before: str
    after: str
    text: str  # of the whole file

    @property
    def tests(self) -> Path:
        """Those of the room that is changed."""
        return ROOT / "tests" / self.path.relative_to(ROOT).parts[2]


def draw(language: str, index: int) -> Mutant:
    """The mutant of this index: of a room of the package, or of C++ code that judges."""
    source = random.Random(f"mutant/{language}/{SEED}/{index}")  # noqa: S311
    drawn = None
    while drawn is None:
        drawn = _draw_cpp(source) if language == "cpp" else _draw_python(source)
    return drawn


def _draw_python(source: random.Random) -> Mutant | None:
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    rooms = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
    path = source.choice(sorted((PACKAGE / source.choice(rooms)).rglob("*.py")))
    code = path.read_text(encoding="utf-8")
    nodes = list(ast_nodes(get_ast(code)))
    found = []
    for name in sorted(filter(PYTHON_OPERATORS.fullmatch, operator_names())):
        operator = get_operator(name)()
        positions = [at for node in nodes for at in operator.mutation_positions(node)]
        found += [(name, occurrence) for occurrence in range(len(positions))]
    if not found:
        return None
    # A kind first: numbers are more than all others together.
    kind = source.choice(sorted({name.split("_")[0] for name, _ in found}))
    name, occurrence = source.choice([each for each in found if each[0].split("_")[0] == kind])
    return _mutant(path, code, mutate_code(code, get_operator(name)(), occurrence) or code)


def _draw_cpp(source: random.Random) -> Mutant | None:
    files = [
        path
        for folder in JUDGING
        for path in sorted((ROOT / "csrc" / folder).rglob("*"))
        if path.suffix in (".h", ".cpp")
    ]
    path = source.choice(files)
    pair = [each for each in map(path.with_suffix, (".h", ".cpp")) if each.exists()]
    if any(GPU_CALL.search(each.read_text(encoding="utf-8")) for each in pair):
        return None
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    found = [
        (number, before, after)
        for number, line in enumerate(lines)
        for before, after in CPP_CHANGES
        if before in line.partition("//")[0] and not re.match(r"\s*(//|#|template)", line)
    ]
    if not found:
        return None
    number, before, after = source.choice(found)
    changed = [*lines]
    changed[number] = lines[number].replace(before, after, 1)
    return _mutant(path, "".join(lines), "".join(changed))


def _mutant(path: Path, old: str, new: str) -> Mutant | None:
    pairs = zip(old.splitlines(), new.splitlines(), strict=False)
    for number, (before, after) in enumerate(pairs, start=1):
        # Options of a decorator are hardly a meaning.
        if before != after and not before.lstrip().startswith("@"):
            return Mutant(path, number, before.strip(), after.strip(), new)
    return None


def measure_mutant(language: str, index: int, build: Path | None) -> results.Row:
    """Whether the tests of the mutant's own room notice, or else the whole quick suite.

    C++ is built in `build`, a CMake build with tests, whose source folder, which must be a copy, is
    changed and changed back.
    """
    mutant = draw(language, index)
    with tempfile.TemporaryDirectory(prefix="mutant") as folder:
        site = _copy_package(Path(folder))
        if language == "cpp":
            assert build is not None
            noticed = _try_cpp(mutant, site, build)
        else:
            copy = site / "convtime" / mutant.path.relative_to(PACKAGE)
            copy.write_text(mutant.text, encoding="utf-8")
            noticed = _try_suite(site, mutant.tests)
    return {
        "path": str(mutant.path.relative_to(ROOT)),
        "line": mutant.line,
        "before": mutant.before,
        "after": mutant.after,
        "noticed_by": noticed,
    }


def measure_unchanged() -> results.Row:
    """Whether the quick suite fails for no change, so that it could not tell of any."""
    with tempfile.TemporaryDirectory(prefix="mutant") as folder:
        return {"noticed_by": _try_suite(_copy_package(Path(folder)), None)}


def _copy_package(folder: Path) -> Path:
    """A folder with a copy of the installed package, whose libraries are links."""
    import convtime

    def copy(source: str, target: str) -> None:
        if source.endswith(".so"):
            os.symlink(source, target)
        else:
            shutil.copyfile(source, target)

    ignored = shutil.ignore_patterns("__pycache__")
    installed = Path(convtime.__file__).parent
    shutil.copytree(installed, folder / "convtime", copy_function=copy, ignore=ignored)
    return folder


def _try_cpp(mutant: Mutant, site: Path, build: Path) -> str | None:
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    source = re.findall(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache, re.M)[0]
    place = Path(source) / mutant.path.relative_to(ROOT)
    original = place.read_text(encoding="utf-8")
    place.write_text(mutant.text, encoding="utf-8")
    try:
        if _fails(["cmake", "--build", build, "-j", "2", "--target", "convtime", *CPP_TESTS]):
            return COMPILER
        for name, tests in CPP_TESTS.items():
            if _fails([build / "tests" / "cpp" / name, f"--gtest_filter={tests}"]):
                return name
        for library in site.rglob("libconvtime.so"):
            library.unlink()
            shutil.copyfile(build / "libconvtime.so", library)
        return _try_suite(site, mutant.tests)
    finally:
        place.write_text(original, encoding="utf-8")


def _try_suite(site: Path, first: Path | None) -> str | None:
    """The folder's name if its tests, which run first, fail; "suite" if other quick tests do."""
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])),
        "XDG_CACHE_HOME": str(site / "cache"),
        "CUDA_VISIBLE_DEVICES": "",  # as in CI, whatever this machine has
        "FAIL_WITHOUT_CUDA": "0",
    }
    if first and first.is_dir() and _fails([*QUICK_TESTS, "-x", first], **variables):
        return first.name
    return "suite" if _fails([*QUICK_TESTS, "-x"], **variables) else None


def _fails(command: Sequence[str | Path], **variables: str) -> bool:
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(SECONDS) != 0
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with pytest's workers
        process.wait()
        return True


def summarise(rows: list[results.Row]) -> dict[str, float]:
    by_key = summaries.by_key(rows)
    command, loaded = by_key.get("command", {}), _of(rows, "loaded ")
    noticed = [row["noticed_by"] for row in _of(rows, "mutant ") if row["noticed_by"] != COMPILER]
    # Mutants count where the unchanged package passes.
    if by_key.get(UNCHANGED, {"noticed_by": "nothing"})["noticed_by"] is not None:
        noticed = []
    return summaries.known(
        second_command_s=command.get("seconds"),
        cases=command.get("cases"),
        ci_s=by_key.get("ci", {}).get("seconds"),
        failures_of_20_loaded_runs=(
            sum(row["failed"] > 0 for row in loaded[:RUNS]) if len(loaded) >= RUNS else None
        ),
        mutants=len(noticed) or None,
        mutants_caught=summaries.share(each is not None for each in noticed),
    )


def _of(rows: list[results.Row], kind: str) -> list[results.Row]:
    return [row for row in rows if row["key"].startswith(kind)]


def main() -> None:
    parser = results.argument_parser(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--environment", type=Path, help="folder of the part command")
    parser.add_argument("--build", type=Path, help="CMake build where C++ mutants are compiled")
    options = parser.parse_args()

    cases: dict[str, running.Measure] = {}
    if "command" in options.parts:
        cases["command"] = functools.partial(measure_command, options.environment)
    if "ci" in options.parts:
        cases["ci"] = measure_ci
    if "loaded" in options.parts:
        cases |= {f"loaded {number}": measure_loaded for number in range(1, RUNS + 1)}
    for language, count in MUTANTS.items():
        if language in options.parts:
            cases[UNCHANGED] = measure_unchanged
            cases |= {
                f"mutant {language} {index}": functools.partial(
                    measure_mutant, language, index, options.build
                )
                for index in range(count)
            }
    file = running.open_file("suite", options, running.find_device("cpu"))
    running.measure_pending(file, cases)


if __name__ == "__main__":
    main()
