"""The pytest plugin: fixtures for timing, and a gate that compares a run with a stored one.

It is outside of the package, so a pytest run that does not use it imports neither torch nor
convtime. The functions that need them import them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import re
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from convtime.integrations.gpu_benchmark import GpuBenchmark
    from convtime.integrations.pytest_gate import Gate
    from convtime.regression.changes import Changes
    from convtime.timing.comparison import Comparison
    from convtime.timing.measurement import Measurement

FOLDER = ".convtime"  # in pytest's rootdir

_INSTRUCTIONS = "more-instructions"
# by comparison with a stored run
_JUDGED = ("slower", "faster", "uncertain", "missing", "contradictory", _INSTRUCTIONS)
_FAILURES = (*_JUDGED, "different")
# Those that can have a margin, with the option of compare_runs that takes it.
_MARGINS = {"slower": "margin", "faster": "margin", _INSTRUCTIONS: "instructions_margin"}
_CANNOT_TELL = 125  # makes `git bisect run` skip a commit
_PATIENCE_SECONDS = 60.0
_COLORS = {"failed": "red", "passed": "green", "inconclusive": "yellow"}  # of verdicts
# Whether Python finds the current folder's modules first, as with `python -m pytest`. This is
# imported before pytest adds the folders of conftest files and tests.
_FOLDER_IS_FIRST = sys.path[:1] in ([""], [os.getcwd()])
# Folders of modules that belong to this Python's environment.
_ENVIRONMENT = {*map(os.path.abspath, sys.path)} - {
    *map(os.path.abspath, os.environ.get("PYTHONPATH", "").split(os.pathsep))
}
_PATH_OPTIONS = tuple(
    f"--convtime-{name}" for name in ("against", "base", "markdown", "json", "history")
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("convtime", "timing of GPU operations (convtime)")
    group.addoption(
        "--convtime-save",
        metavar="NAME",
        help=f"save the fixtures' measurements as {FOLDER}/NAME.json in the rootdir; tests that "
        "are not run keep theirs",
    )
    group.addoption(
        "--convtime-runs",
        type=int,
        default=3,
        metavar="N",
        help="number of runs to save, all but the first in fresh processes; one that is outlying "
        "does not count (default: 3)",
    )
    group.addoption(
        "--convtime-calibrate",
        type=int,
        metavar="N",
        help="number of runs to save, with each test's noise and margin: the difference that is "
        "found with 95 %% power at 0.1 %% false alarms. Without a margin in --convtime-fail-on, "
        "each test has its own",
    )
    group.addoption(
        "--convtime-against",
        metavar="NAME|FILE",
        help="compare with a run saved under that name, or with a file that convtime, "
        "pytest-benchmark or nvbench wrote",
    )
    group.addoption(
        "--convtime-fail-on",
        action="append",
        default=[],
        metavar="WHAT",
        help=f"verdicts that fail the run, from {', '.join(_FAILURES)}, separated by commas; "
        f"slower and faster with a margin, as in slower:3%%, which is the default for tests that "
        f"are not calibrated, and {_INSTRUCTIONS} with a separate one (default: 1%%). Findings are "
        "measured again alone, and count only if they are confirmed",
    )
    group.addoption(
        "--convtime-base",
        metavar="PYTHON",
        help="the Python of an environment with the earlier commit: findings are then confirmed "
        "by alternating runs of both commits. Write --convtime-base=PYTHON, and likewise for all "
        "paths: pytest takes a separate word for a path of tests, which can change its rootdir",
    )
    group.addoption(
        "--convtime-bisect",
        action="store_true",
        help=f"exit with {_CANNOT_TELL} if it is unknown whether something is slower: a verdict is "
        "uncertain, a measurement is missing, a test failed or nothing can be run; for git "
        "bisect run",
    )
    group.addoption(
        "--convtime-same-gpu",
        choices=("model", "uuid"),
        default="model",
        help="which GPU counts as the same; times on others are not judged (default: model)",
    )
    group.addoption(
        "--convtime-relative",
        action="store_true",
        help="judge the measurements of compare by their ratio to the baseline, which is "
        "interleaved with them: a common slowdown cancels out, e.g. from a shared CPU's clock",
    )
    group.addoption(
        "--convtime-markdown",
        metavar="FILE",
        help="write the changes in Markdown, as for a pull request",
    )
    group.addoption("--convtime-json", metavar="FILE", help="write the changes as JSON")
    group.addoption(
        "--convtime-history",
        metavar="DIR",
        help="add the fixtures' measurements to a history as a file of their own, for "
        "`convtime history DIR`",
    )
    group.addoption("--convtime-again", metavar="FILE", help=argparse.SUPPRESS)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """Skip a commit whose conftest does not import; pytest's own exit code would make it bad."""
    try:
        return (yield)
    except Exception as error:
        if isinstance(error, pytest.UsageError) or not (
            early_config.known_args_namespace.convtime_bisect
        ):
            raise
        print(f"convtime: inconclusive: {error}", file=sys.stderr)
        sys.exit(_CANNOT_TELL)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "convtime(method, cache, regime, placement, ...): how the convtime fixtures time this "
        "test, with the options of convtime.time_op",
    )
    has = config.pluginmanager.hasplugin
    has_benchmark = has("benchmark") or has("pytest_benchmark.plugin")
    fixtures = _WithPytestBenchmark() if has_benchmark else _WithoutPytestBenchmark()
    config.pluginmanager.register(fixtures, "convtime-gpu-benchmark")
    kind = _Worker if hasattr(config, "workerinput") else _Main
    session = (_Again if config.option.convtime_again is not None else kind)(config)
    config.stash[_SESSION] = session
    config.pluginmanager.register(session, "convtime-session")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("convtime") is not None:
        _options_of(item)


def _options_of(node: Any) -> dict[str, Any]:
    """Return the options of a test's markers; the closest marker takes precedence."""
    from convtime.timing.options import Options, options_of

    options: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers("convtime"))):
        if marker.args:
            _fail(
                "pytest.mark.convtime needs named options, as in convtime(cache='warm'), got "
                f"{marker.args[0]!r}"
            )
        options |= marker.kwargs
    try:
        options_of("pytest.mark.convtime", Options, options)
    except (TypeError, ValueError) as error:
        _fail(str(error))
    return options


def _fail(sentence: str) -> NoReturn:
    pytest.fail(sentence, pytrace=False)


def _require(holds: object, sentence: str) -> None:
    """Refuse the command line with this sentence unless the condition holds."""
    if not holds:
        raise pytest.UsageError(sentence)


@pytest.fixture
def time_op(request: pytest.FixtureRequest) -> Callable[..., Measurement]:
    """``convtime.time_op`` with the options of the test's marker; its results are recorded."""
    return Timing(request).time_op


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Callable[..., Comparison]:
    """``convtime.compare`` with the options of the test's marker; its results are recorded."""
    return Timing(request).compare


class Timing:
    """Times code for one test, with the options of its marker, and records the results.

    Attributes:
        test: pytest's node of the test.
        options: the options of its marker.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.test = request.node
        self.options = _options_of(request.node)
        self._recorder = request.config.stash[_SESSION]

    @property
    def under_xdist(self) -> bool:
        """Whether this is one of several processes that run tests."""
        return isinstance(self._recorder, _Worker)

    @property
    def is_again(self) -> bool:
        """Whether the test is run again only for its times."""
        return isinstance(self._recorder, _Again)

    def time_op(self, fn: Callable[..., object], *args: Any, **options: Any) -> Measurement:
        import convtime
        from convtime.timing.candidate import candidate_and_options
        from convtime.timing.options import TimeOptions

        marked = {name: value for name, value in self.options.items() if name != "margin"}
        candidate, _ = candidate_and_options("time_op", TimeOptions, fn, args, options)
        with self._recorder.turn([candidate], self.options | options):
            measured = convtime.time_op(fn, *args, **marked | options)
        self._recorder.record(self.test.nodeid, options.get("name"), measured, candidate)
        return measured

    def compare(self, candidates: Any, **options: Any) -> Comparison:
        import convtime
        from convtime.timing.candidate import candidates_of

        if "over" in options:
            raise ValueError(
                "over is not for tests, whose times are saved one by one; parametrize the test, or "
                "call convtime.compare"
            )
        listed = candidates_of(candidates)
        options = self._recorder.of_compare | self.options | options
        with self._recorder.turn(listed, options):
            comparison: Comparison = convtime.compare(candidates, **options)
        baseline = ""  # its recorded name
        for candidate in sorted(listed, key=lambda other: other.name != comparison.baseline):
            measured = comparison.measurements[candidate.name]
            if baseline:
                measured = _with_provenance(measured, baseline=baseline)
            name = self._recorder.record(self.test.nodeid, candidate.name, measured, candidate)
            baseline = baseline or name
            agreement = comparison.same_results.get(candidate.name)
            if agreement is not None and agreement.same is False:
                sentences = (agreement.sentence, _reproducer(candidate))
                self._recorder.different[name] = "; again: ".join(filter(None, sentences))
        return comparison


def _with_provenance(measured: Measurement, **known: str) -> Measurement:
    return dataclasses.replace(measured, provenance={**measured.provenance, **known})


def _reproducer(candidate: Any) -> str:
    from convtime.conv.model import reproducer_of

    return reproducer_of(candidate)


class Recorder:
    """The measurements of the fixtures in this process, by name.

    A test's only measurement has the test's name; otherwise, their names follow the test's name.
    """

    adds_reproducers = False  # the commands that time convolutions again

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.measurements: dict[str, Measurement] = {}
        self.tests: dict[str, str] = {}  # name of a measurement: its test
        self.different: dict[str, str] = {}  # name: how its result differs from the baseline's
        self.passed: set[str] = set()  # tests

    @property
    def of_compare(self) -> dict[str, Any]:
        """Default options for compare.

        If runs are compared with each other, each measurement's interval counts. If sampling
        stopped with the verdict, that interval would stay wide for a clearly slower candidate.
        """
        option = self.config.option
        is_judged = option.convtime_save or option.convtime_against or option.convtime_again
        return {"stop": "interval"} if is_judged else {}

    def record(self, test: str, label: str | None, measured: Measurement, candidate: Any) -> str:
        """Store a measurement of a candidate, and return its recorded name."""
        if self.adds_reproducers:
            measured = _with_provenance(measured, reproducer=_reproducer(candidate))
        name = test if label is None else f"{test} {label}"
        numbered = (f"{name} {number}" for number in itertools.count(2))
        distinct = next(
            name for name in itertools.chain([name], numbered) if name not in self.measurements
        )
        self.measurements[distinct] = dataclasses.replace(measured, name=distinct)
        self.tests[distinct] = test
        return distinct

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remove what was recorded of a test that does not pass, also in its teardown."""
        if hasattr(report, "context") and not report.failed:  # of a subtest: its test goes on
            return
        if report.passed and report.when == "call":
            self.passed.add(report.nodeid)
        if not report.passed:
            self.passed.discard(report.nodeid)
            for name in [name for name, test in self.tests.items() if test == report.nodeid]:
                del self.tests[name], self.measurements[name]
                self.different.pop(name, None)

    def document(self, test: str | None = None) -> dict[str, Any]:
        """Return everything, or a test's share, as JSON for another process."""
        names = [name for name, of in self.tests.items() if test in (None, of)]
        return {
            "measurements": {name: self.measurements[name].to_dict() for name in names},
            "tests": {name: self.tests[name] for name in names},
            "different": {name: self.different[name] for name in names if name in self.different},
        }

    def add(self, document: Mapping[str, Any]) -> None:
        from convtime.integrations.pytest_gate import measurements_in

        self.measurements |= measurements_in(document)
        self.tests |= document["tests"]
        self.different |= document["different"]

    def turn(self, *_timing: object) -> contextlib.AbstractContextManager[object]:
        """Keep other processes of this pytest run from timing on the same device."""
        return contextlib.nullcontext()  # there are none


_SESSION = pytest.StashKey[Recorder]()


class _Worker(Recorder):
    """An xdist worker: it sends its measurements to the main process."""

    @contextlib.contextmanager
    def turn(self, candidates: Any, options: Any) -> Iterator[None]:  # type: ignore[override]
        from convtime.device.gpu_turn import turn
        from convtime.timing.sampling.measure import find_devices

        # Timings on a GPU already take turns.
        names = [] if find_devices(candidates, options.get("device")).on_gpu else ["cpu"]
        with turn(names, _PATIENCE_SECONDS) as own_turn:
            if own_turn.disturbed_by:
                warnings.warn(pytest.PytestWarning(own_turn.disturbed_by), stacklevel=4)
            yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send the times with a test's last report: the process may not live to the end."""
        report = yield
        if call.when == "teardown" and item.nodeid in self.tests.values():
            report.convtime = json.dumps(self.document(item.nodeid))  # type: ignore[attr-defined]
        return report


def pytest_cmdline_main(config: pytest.Config) -> None:
    """Keep the files of the first run in a process that runs tests again.

    It has the same arguments, and plugins have not opened their files yet.
    """
    option = config.option
    if option.convtime_again is None:
        return
    folder = Path(option.convtime_again).parent
    outputs: dict[str, Any] = {
        "basetemp": str(folder / "basetemp"),  # pytest empties it first
        "log_file": os.devnull,
        "xmlpath": None,
        "report_log": None,  # pytest-reportlog
        "htmlpath": None,  # pytest-html
        "cov_report": {},  # pytest-cov; COVERAGE_FILE redirects its data
        "benchmark_json": None,
        "benchmark_save": None,
        "benchmark_autosave": None,
        "benchmark_histogram": None,
    }
    for name, value in outputs.items():
        if hasattr(option, name):  # the plugin is loaded
            setattr(option, name, value)


class _Again(Recorder):
    """A process that runs tests again alone, for their measurements."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        request = json.loads(Path(config.option.convtime_again).read_text(encoding="utf-8"))
        self._tests: list[str] | None = request["tests"]  # None for all
        self._output = Path(request["output"])
        self.adds_reproducers = bool(request["reproducers"])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        """Select tests after all others: a plugin that takes a share of them gets all again."""
        result = yield
        if self._tests is not None:
            items[:] = [item for item in items if item.nodeid in self._tests]
        return result

    def pytest_sessionfinish(self) -> None:
        document = self.document() | {"shadowed": dict(_shadowed(self.config.rootpath))}
        self._output.write_text(json.dumps(document), encoding="utf-8")


def _shadowed(root: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield installed modules that were imported from pytest's rootdir, with both folders.

    For tests in packages, pytest puts the folder of the topmost package first in sys.path. There,
    it may have the modules of another commit.
    """
    import importlib.metadata

    added = {*map(os.path.abspath, sys.path)} - _ENVIRONMENT
    for name, distributions in importlib.metadata.packages_distributions().items():
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if file is None or name in ("test", "tests"):  # which some distributions install, too
            continue
        folder = Path(file).absolute().parents[hasattr(module, "__path__")]
        # A finder of an editable installation finds modules in folders that are not in sys.path.
        if str(folder) in added and folder.is_relative_to(root):
            distribution = importlib.metadata.distribution(distributions[0])
            installed = os.path.abspath(str(distribution.locate_file("")))
            if installed != str(folder):
                yield name, (str(folder), installed)


class _Main(Recorder):
    """The process that saves and judges the measurements."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        option = config.option
        self._failures, margins = _parse_failures(option.convtime_fail_on)
        self._gate: Gate | None = None
        self._verdict = ""
        self._is_interrupted = False
        if option.collectonly or option.help:
            return
        self._check_options()
        files = (
            *(option.convtime_save, option.convtime_against),
            *(option.convtime_markdown, option.convtime_json, option.convtime_history),
        )
        if any(file is not None for file in files):
            from convtime.integrations.pytest_gate import Gate

            self._gate = Gate(
                self, config.rootpath / FOLDER, margins, folder_is_first=_FOLDER_IS_FIRST
            )

    def _check_options(self) -> None:
        option = self.config.option
        _require(
            option.convtime_runs >= 1,
            f"--convtime-runs must be a number of runs, 1 or more, got {option.convtime_runs}",
        )
        if option.convtime_calibrate is not None:
            from convtime.regression.noise import LEAST_PROCESSES

            _require(
                option.convtime_calibrate >= LEAST_PROCESSES,
                f"--convtime-calibrate must be a number of runs, {LEAST_PROCESSES} or more, got "
                f"{option.convtime_calibrate}",
            )
            _require(
                option.convtime_save is not None,
                "--convtime-calibrate needs --convtime-save NAME, the baseline that it calibrates",
            )
            _require(
                not getattr(option, "numprocesses", None),  # xdist's -n
                "--convtime-calibrate needs runs in one process, but xdist distributes this run; "
                "leave out -n",
            )
        given = {
            "--convtime-base": option.convtime_base,
            "--convtime-bisect": option.convtime_bisect,
            "--convtime-relative": option.convtime_relative,
            "--convtime-markdown": option.convtime_markdown,
            "--convtime-json": option.convtime_json,
            f"--convtime-fail-on {','.join(self._failures)}": set(self._failures) & set(_JUDGED),
        }
        for name, value in given.items():
            _require(
                option.convtime_against is not None or not value,
                f"{name} needs --convtime-against NAME or FILE, the run to compare this run with",
            )
        _require(
            self._failures or not option.convtime_bisect,
            "--convtime-bisect needs --convtime-fail-on WHAT, what makes a commit bad, as in "
            "--convtime-fail-on slower",
        )
        self._check_rootdir()

    def _check_rootdir(self) -> None:
        """Refuse paths by which pytest may have chosen another rootdir than without them.

        It does not know this plugin's options yet when it looks for the tests' common folder, and
        the rootdir, if there is no file with its settings.
        """
        if self.config.option.rootdir is not None or self.config.inipath is not None:
            return
        arguments = map(str, self.config.invocation_params.args)
        here = self.config.invocation_params.dir
        for option, value in itertools.pairwise(arguments):
            path = Path(os.path.abspath(here / value))
            exists = option in _PATH_OPTIONS and os.path.exists(path)  # False for a name too long
            _require(
                not exists or path.is_relative_to(here),
                f"{option} {value}: pytest takes this path for one of tests, and chose the "
                f"rootdir {self.config.rootpath} by it; write {option}={value}",
            )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Receive the measurements of an xdist worker with the report of the test."""
        super().pytest_runtest_logreport(report)
        document = getattr(report, "convtime", None)
        if document is not None and report.passed:
            self.add(json.loads(document))

    def pytest_keyboard_interrupt(self) -> None:
        """Note also a pytest.exit, which can give any exit code."""
        self._is_interrupted = True

    @pytest.hookimpl(tryfirst=True)  # other plugins rewrite the files of the repeated run
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        cannot_tell = _CANNOT_TELL if self.config.option.convtime_bisect else None
        if self._stopped_early(session, exitstatus):
            if self._gate is not None:
                self._gate.leave_unchanged("the run stopped early")
                self._verdict = "inconclusive: the run stopped early" if self._failures else ""
            session.exitstatus = cannot_tell or exitstatus
        elif self._gate is not None and (error := self._gate.finish(self._failures)):
            session.exitstatus = cannot_tell or pytest.ExitCode.USAGE_ERROR
            self._verdict = f"{'inconclusive' if cannot_tell else 'failed'}: {error}"
        else:
            session.exitstatus = self._conclude(exitstatus)

    def _stopped_early(self, session: pytest.Session, exitstatus: int) -> bool:
        complete = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        return (
            exitstatus not in (*complete, pytest.ExitCode.NO_TESTS_COLLECTED)
            or self._is_interrupted
            or bool(session.shouldfail or session.shouldstop)  # e.g. by --maxfail
        )

    def _conclude(self, exitstatus: int) -> int:
        """Return the exit code, and keep the verdict, with names and reasons."""
        changes = self._changes
        findings = set() if changes is None else {kind for _, kind in changes.findings}
        findings |= {"different"} if self.different else set()
        fails = not findings.isdisjoint(self._failures)
        is_known = (
            exitstatus == pytest.ExitCode.OK
            and findings.isdisjoint(("uncertain", "missing"))
            and not self._unjudged
        )
        if self.config.option.convtime_bisect and not (fails or is_known):
            self._verdict = (
                f"inconclusive: exit code {_CANNOT_TELL} makes git bisect skip this commit"
            )
            return _CANNOT_TELL
        if fails and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            exitstatus = pytest.ExitCode.TESTS_FAILED
        if changes is not None and self._failures:
            from convtime.regression.show import headline

            verdict = headline(changes, self._failures)
            self._verdict = verdict if verdict.startswith("failed") or exitstatus == 0 else ""
        elif fails:
            self._verdict = f"failed: different: {', '.join(self.different)}"
        return exitstatus

    @property
    def _changes(self) -> Changes | None:
        """The changes since the other run; None if there is none, or before they are judged."""
        return None if self._gate is None else self._gate.changes

    @property
    def _unjudged(self) -> tuple[str, ...]:
        """Why instructions are not judged that are to be."""
        if self._changes is None or _INSTRUCTIONS not in self._failures:
            return ()
        return self._changes.unjudged_instructions

    def pytest_unconfigure(self) -> None:
        """Write the verdict below pytest's own last line, which counts only failing tests."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if self._verdict and reporter is not None:
            color = _COLORS[self._verdict.partition(":")[0]]
            reporter.write_line(f"convtime: {self._verdict}", **{color: True}, bold=True)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        lines = [*([] if self._gate is None else self._gate.remarks), *self._unjudged]
        if self._changes is not None:
            against = self.config.option.convtime_against
            lines += [f"against {against}:", self._changes.details()]
        else:
            lines += map(str, self.measurements.values())
            lines += [f"different: {name}: {how}" for name, how in self.different.items()]
        if lines:
            terminalreporter.section("convtime")
            terminalreporter.write("\n".join(lines) + "\n")


def _parse_failures(given: Sequence[str]) -> tuple[tuple[str, ...], dict[str, float]]:
    """Parse the verdicts that fail a run, and the margins as options of ``compare_runs``."""
    failures: list[str] = []
    margins: dict[str, float] = {}
    for entry in ",".join(given).split(",") if given else []:
        what, colon, share = (part.strip() for part in entry.partition(":"))
        percent = re.fullmatch(r"(\d{1,2}(?:\.\d+)?) ?%", share)
        option = _MARGINS.get(what)
        _require(
            what in _FAILURES and (not colon or (percent and option)),
            f"--convtime-fail-on must be some of {', '.join(_FAILURES)}, separated by commas, "
            f"slower and faster, {_INSTRUCTIONS} with a margin below 100 % as in slower:3%, got "
            f"{entry!r}",
        )
        failures.append(what)
        if percent and option:
            margin = float(percent[1]) / 100
            names = _INSTRUCTIONS if what == _INSTRUCTIONS else "slower and faster"
            _require(
                margins.setdefault(option, margin) == margin,
                f"--convtime-fail-on must have one margin for {names}, got {','.join(given)!r}",
            )
    return tuple(failures), margins


class _WithoutPytestBenchmark:
    @pytest.fixture
    def gpu_benchmark(self) -> None:
        """Fail with the requirement."""
        _fail(
            "gpu_benchmark passes its times to pytest-benchmark, which is not installed or is "
            "disabled; run pip install pytest-benchmark, or use the fixture time_op"
        )


class _WithPytestBenchmark:
    @pytest.fixture
    def gpu_benchmark(self, request: pytest.FixtureRequest, benchmark: Any) -> GpuBenchmark:
        """pytest-benchmark's ``benchmark``, with device times."""
        from convtime.integrations.gpu_benchmark import GpuBenchmark

        return GpuBenchmark(benchmark, Timing(request))

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Add GPUs, driver and torch, without importing torch."""
        import importlib.metadata

        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            machine_info["torch"] = importlib.metadata.version("torch")
        machine_info |= _gpus()


def _gpus() -> dict[str, Any]:
    """Return the names of the machine's GPUs and their driver; empty if NVML is unavailable."""
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            return {
                "gpus": [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles],
                "gpu_driver": str(pynvml.nvmlSystemGetDriverVersion()),
            }
        finally:
            pynvml.nvmlShutdown()
    return {}
