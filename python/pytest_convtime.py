"""The pytest plugin: fixtures for timing, and a gate that compares a run with a stored one.

It is outside of the package, so a pytest run that does not use it imports neither torch nor
convtime. The functions that need them import them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from convtime.integrations.gpu_benchmark import GpuBenchmark
    from convtime.regression.changes import Changes
    from convtime.timing.comparison import Comparison
    from convtime.timing.measurement import Measurement

FOLDER = ".convtime"  # in pytest's rootdir

_INSTRUCTIONS = "more-instructions"
# by comparison with a stored run
_JUDGED = ("slower", "faster", "uncertain", "missing", _INSTRUCTIONS)
_FAILURES = (*_JUDGED, "different", "contradictory")
_DEFAULT_MARGIN = 0.03
_DEFAULT_INSTRUCTIONS_MARGIN = 0.01
_CANNOT_TELL = 125  # makes `git bisect run` skip a commit
_PATIENCE_SECONDS = 60.0


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("convtime", "timing of GPU operations (convtime)")
    group.addoption(
        "--convtime-save",
        metavar="NAME",
        help=f"save the fixtures' measurements as {FOLDER}/NAME.json in the rootdir",
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
        f"slower and faster with a margin, as in slower:3%%, which is the default, and "
        f"{_INSTRUCTIONS} with a separate one (default: 1%%). Findings are measured again alone, "
        "and count only if they are confirmed",
    )
    group.addoption(
        "--convtime-bisect",
        action="store_true",
        help=f"exit with {_CANNOT_TELL} if it is unknown whether something is slower: a verdict is "
        "uncertain, a measurement is missing or a test failed; for git bisect run",
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
    group.addoption("--convtime-again", metavar="FILE", help=argparse.SUPPRESS)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "convtime(method, cache, regime, placement, ...): how the convtime fixtures time this "
        "test, with the options of convtime.time_op",
    )
    names = ("benchmark", "pytest_benchmark.plugin")
    has_benchmark = any(map(config.pluginmanager.hasplugin, names))
    fixtures = _WithPytestBenchmark() if has_benchmark else _WithoutPytestBenchmark()
    config.pluginmanager.register(fixtures, "convtime-gpu-benchmark")
    session = _session_of(config)
    config.stash[_SESSION] = session
    config.pluginmanager.register(session, "convtime-session")


def _session_of(config: pytest.Config) -> Recorder:
    if config.option.convtime_again is not None:
        return _Again(config)
    if hasattr(config, "workerinput"):
        return _Worker(config)
    return _Main(config)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("convtime") is not None:
        _options_of(item)


def _options_of(node: Any) -> dict[str, Any]:
    """Return the options of a test's markers; the closest marker takes precedence."""
    from convtime.timing.signature import options_of

    options: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers("convtime"))):
        if marker.args:
            _fail(
                "pytest.mark.convtime needs named options, as in convtime(cache='warm'), got "
                f"{marker.args[0]!r}"
            )
        options |= marker.kwargs
    try:
        options_of("pytest.mark.convtime", options)
    except (TypeError, ValueError) as error:
        _fail(str(error))
    return options


def _fail(sentence: str) -> NoReturn:
    pytest.fail(sentence, pytrace=False)


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
        from convtime.timing.signature import candidate_and_options

        marked = {name: value for name, value in self.options.items() if name != "margin"}
        candidate, _ = candidate_and_options("time_op", fn, args, options)
        with self._recorder.turn([candidate], self.options | options):
            measured = convtime.time_op(fn, *args, **marked | options)
        self._recorder.record(self.test.nodeid, options.get("name"), measured, candidate)
        return measured

    def compare(self, candidates: Any, **options: Any) -> Comparison:
        import convtime
        from convtime.timing.candidate import candidates_of

        listed = candidates_of(candidates)
        options = self._recorder.of_compare | self.options | options
        with self._recorder.turn(listed, options):
            comparison = convtime.compare(candidates, **options)
        baseline = ""  # its recorded name
        for candidate in sorted(listed, key=lambda one: one.name != comparison.baseline):
            measured = comparison.measurements[candidate.name]
            if baseline:
                provenance = {**measured.provenance, "baseline": baseline}
                measured = dataclasses.replace(measured, provenance=provenance)
            name = self._recorder.record(self.test.nodeid, candidate.name, measured, candidate)
            baseline = baseline or name
            agreement = comparison.same_results.get(candidate.name)
            if agreement is not None and agreement.same is False:
                said = (agreement.sentence, _reproducer(candidate))
                self._recorder.different[name] = "; again: ".join(filter(None, said))
        return comparison


def _reproducer(candidate: Any) -> str:
    from convtime.conv.sources.called import reproducer_of

    return reproducer_of(candidate)


class Recorder:
    """The measurements of the fixtures in this process, by name.

    A test's only measurement has the test's name; otherwise, their names follow the test's name.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.measurements: dict[str, Measurement] = {}
        self.tests: dict[str, str] = {}  # name of a measurement: its test
        self.different: dict[str, str] = {}  # name: how its result differs from the baseline's

    @property
    def of_compare(self) -> dict[str, Any]:
        """Default options for compare.

        If runs are compared with each other, each measurement's interval counts. If sampling
        stopped with the verdict, that interval would stay wide for a clearly slower candidate.
        """
        option = self.config.option
        is_judged = option.convtime_save or option.convtime_against or option.convtime_again
        return {"stop": "interval"} if is_judged else {}

    def record(
        self, test: str, label: str | None, measured: Measurement, _candidate: Any = None
    ) -> str:
        """Store a measurement of a candidate, and return its recorded name."""
        name = test if label is None else f"{test} {label}"
        distinct, number = name, 1
        while distinct in self.measurements:
            number += 1
            distinct = f"{name} {number}"
        self.measurements[distinct] = dataclasses.replace(measured, name=distinct)
        self.tests[distinct] = test
        return distinct

    def turn(self, *_timing: object) -> contextlib.AbstractContextManager[object]:
        """Keep other processes of this pytest run from timing on the same device."""
        return contextlib.nullcontext()  # there are none


_SESSION = pytest.StashKey[Recorder]()


class _Worker(Recorder):
    """An xdist worker: it sends its measurements to the main process."""

    @contextlib.contextmanager
    def turn(self, candidates: Any, options: Any) -> Iterator[None]:  # type: ignore[override]
        from convtime.device.gpu_turn import turn
        from convtime.timing.sampling.measure import find_place

        place = find_place(candidates, options.get("device"))
        if place.on_gpu:  # timings on a GPU already take turns
            yield
            return
        with turn(["cpu"], _PATIENCE_SECONDS) as came:
            if came.disturbed_by:
                warnings.warn(pytest.PytestWarning(came.disturbed_by), stacklevel=4)
            yield

    def pytest_sessionfinish(self) -> None:
        if self.measurements:
            output: dict[str, Any] = self.config.workeroutput  # type: ignore[attr-defined]
            output["convtime"] = json.dumps(_document(self))


class _Again(Recorder):
    """A process that runs tests again alone, for their measurements."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        asked = json.loads(Path(config.option.convtime_again).read_text(encoding="utf-8"))
        self._tests, self._output = set(asked["tests"]), Path(asked["output"])

    def record(
        self, test: str, label: str | None, measured: Measurement, candidate: Any = None
    ) -> str:
        """Add the command that times the convolutions again, because they were found slow."""
        if candidate is not None:
            provenance = {**measured.provenance, "reproducer": _reproducer(candidate)}
            measured = dataclasses.replace(measured, provenance=provenance)
        return super().record(test, label, measured)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._tests]

    def pytest_sessionfinish(self) -> None:
        self._output.write_text(json.dumps(_document(self)), encoding="utf-8")


def _document(recorder: Recorder) -> dict[str, Any]:
    return {
        "measurements": {
            name: measured.to_dict() for name, measured in recorder.measurements.items()
        },
        "tests": recorder.tests,
        "different": recorder.different,
    }


def _add_document(recorder: Recorder, document: Mapping[str, Any]) -> None:
    from convtime.timing.measurement import Measurement

    recorder.measurements |= {
        name: Measurement.from_dict(fields) for name, fields in document["measurements"].items()
    }
    recorder.tests |= document["tests"]
    recorder.different |= document["different"]


class _Main(Recorder):
    """The process that saves and judges the measurements."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self._folder = config.rootpath / FOLDER
        self._failures, self._margin, self._instructions_margin = _parse_failures(
            config.option.convtime_fail_on
        )
        self._save: Path | None = None
        self._markdown: Path | None = None
        self._json: Path | None = None
        self._baseline: dict[str, Measurement] | None = None
        self._changes: Changes | None = None
        self._told: list[str] = []
        if config.option.collectonly or config.option.help:
            return
        self._check_options()
        with _usage_errors():
            self._prepare_files()

    def _check_options(self) -> None:
        given = {
            "--convtime-bisect": self.config.option.convtime_bisect,
            "--convtime-relative": self.config.option.convtime_relative,
            "--convtime-markdown": self.config.option.convtime_markdown,
            "--convtime-json": self.config.option.convtime_json,
            f"--convtime-fail-on {','.join(self._failures)}": set(self._failures) & set(_JUDGED),
        }
        for option, value in given.items():
            if value and self.config.option.convtime_against is None:
                raise pytest.UsageError(
                    f"{option} needs --convtime-against NAME or FILE, the run to compare this run "
                    "with"
                )

    def _prepare_files(self) -> None:
        """Check all files before hours of timing."""
        option = self.config.option
        if option.convtime_save is not None:
            self._save = self._saved_as(option.convtime_save)
            _make_folder(self._folder)
        self._markdown, self._json = map(
            self._path, (option.convtime_markdown, option.convtime_json)
        )
        written = {
            "--convtime-save": self._save,
            "--convtime-markdown": self._markdown,
            "--convtime-json": self._json,
        }
        if any(written.values()):  # an idle plugin imports nothing from convtime
            from convtime.core.files import check_distinct, check_writable

            check_distinct(written)
            for path in filter(None, written.values()):
                check_writable(path)
        if option.convtime_against is not None:
            from convtime.core.files import check_distinct
            from convtime.exchange.files import read_measurements

            against = self._find_baseline(option.convtime_against)
            # The run may overwrite the file that it is compared with.
            check_distinct({**written, "--convtime-save": None, "--convtime-against": against})
            self._baseline = read_measurements(against)

    def _path(self, given: str | None) -> Path | None:
        return None if given is None else self.config.invocation_params.dir / given

    def _saved_as(self, name: str) -> Path:
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise pytest.UsageError(
                f"--convtime-save must be a name of letters, digits, '_', '.' and '-', got {name!r}"
            )
        return self._folder / f"{name}.json"

    def _find_baseline(self, given: str) -> Path:
        file, saved = self.config.invocation_params.dir / given, self._folder / f"{given}.json"
        for path in (saved, file):
            if os.path.isfile(path):  # False for a name that is too long
                return path
        names = sorted(path.stem for path in self._folder.glob("*.json"))
        raise pytest.UsageError(
            f"--convtime-against {given}: neither {saved} nor {file} is a file; saved runs are "
            f"{', '.join(names) or 'none'}; save one with --convtime-save NAME"
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Receive the measurements of an xdist worker."""
        told = getattr(node, "workeroutput", {}).get("convtime")
        if told is not None:
            _add_document(self, json.loads(told))

    @pytest.hookimpl(tryfirst=True)  # other plugins rewrite the files of the repeated run
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        complete = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        cannot_tell = _CANNOT_TELL if self.config.option.convtime_bisect else None
        if exitstatus not in (*complete, pytest.ExitCode.NO_TESTS_COLLECTED):
            if self._save is not None:
                self._told.append(f"the run stopped early: {self._save} is unchanged")
            session.exitstatus = cannot_tell or exitstatus
            return
        try:
            self._save_run(exitstatus)
            if self._baseline is not None:
                self._judge(self._baseline)
        except ValueError as error:  # from reading or writing files
            self._told.append(f"error: {error}")
            session.exitstatus = cannot_tell or pytest.ExitCode.USAGE_ERROR
            return
        session.exitstatus = self._exit_status(exitstatus)

    def _save_run(self, exitstatus: int) -> None:
        if self._save is None:
            return
        if not self.measurements:
            self._told.append(f"nothing was measured: {self._save} is unchanged")
            return
        from convtime.exchange.files import read_measurements, write_measurements

        if exitstatus == pytest.ExitCode.TESTS_FAILED and self._save.exists():
            lost = sorted(read_measurements(self._save).keys() - self.measurements.keys())
            if lost:
                self._told.append(
                    f"{self._save} is unchanged: tests failed, and this run lacks {_some(lost)}, "
                    "which the file has; save the run under another name, or remove the file first"
                )
                return
        write_measurements(self.measurements, self._save)
        self._told.append(f"{len(self.measurements)} measurements saved as {self._save}")

    def _judge(self, baseline: Mapping[str, Measurement]) -> None:
        changes = self._compare(baseline, self.measurements)
        red = {
            change.name
            for change in changes.of("slower", "faster", "uncertain", "same")
            if not set(self._failures).isdisjoint(change.kinds)
        }
        if red:
            changes = changes.confirmed(self._run_again(baseline, red))
        changes = dataclasses.replace(changes, different=self.different)
        self._changes = changes
        from convtime.core.files import write_file

        if self._markdown is not None:
            write_file(self._markdown, changes.to_markdown())
        if self._json is not None:
            write_file(self._json, changes.to_json())

    def _compare(
        self, before: Mapping[str, Measurement], after: Mapping[str, Measurement]
    ) -> Changes:
        from convtime.regression.compare_runs import compare_runs

        return compare_runs(
            before,
            after,
            margin=self._margin,
            same_gpu=self.config.option.convtime_same_gpu,
            relative=self.config.option.convtime_relative,
            instructions_margin=self._instructions_margin,
        )

    def _run_again(self, baseline: Mapping[str, Measurement], red: set[str]) -> Changes:
        """Run only the tests with findings in a fresh process, and return its changes."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"\nconvtime: {len(red)} found, running again alone")
        again = Recorder(self.config)
        with tempfile.TemporaryDirectory() as folder:
            asked, output = Path(folder, "asked.json"), Path(folder, "output.json")
            tests = sorted({self.tests[name] for name in red})
            asked.write_text(json.dumps({"tests": tests, "output": str(output)}), encoding="utf-8")
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *self._arguments(), f"--convtime-again={asked}"],
                cwd=self.config.invocation_params.dir,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
            if output.exists():
                _add_document(again, json.loads(output.read_text(encoding="utf-8")))
        lost = sorted(red - again.measurements.keys())
        if lost:
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            self._told.append(
                f"run again alone, {', '.join(lost)} gave no time ({' '.join(last)}): the first "
                "verdict counts"
            )
        found = red & again.measurements.keys()
        if self.config.option.convtime_relative:  # with the baselines, which are not judged then
            facts = {name: again.measurements[name].provenance for name in found}
            found |= {str(known.get("baseline", name)) for name, known in facts.items()}
        return self._compare(
            {name: baseline[name] for name in baseline if name in found},
            {name: again.measurements[name] for name in again.measurements if name in found},
        )

    def _arguments(self) -> list[str]:
        one_process = ["-n0"] if self.config.pluginmanager.hasplugin("xdist") else []
        given = map(str, self.config.invocation_params.args)
        return [*given, f"--rootdir={self.config.rootpath}", *one_process]

    def _exit_status(self, exitstatus: int) -> int:
        verdicts: set[str] = {"different"} if self.different else set()
        if self._changes is not None:
            verdicts |= {kind for change in self._changes.changes for kind in change.kinds}
        found = not verdicts.isdisjoint(self._failures)
        told = (
            exitstatus == pytest.ExitCode.OK
            and verdicts.isdisjoint(("uncertain", "missing"))
            and not self._unjudged
        )
        if self.config.option.convtime_bisect and not (found or told):
            return _CANNOT_TELL
        if found and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return pytest.ExitCode.TESTS_FAILED
        return exitstatus

    @property
    def _unjudged(self) -> tuple[str, ...]:
        """Why instructions are not judged that are to be."""
        if self._changes is None or _INSTRUCTIONS not in self._failures:
            return ()
        return self._changes.unjudged_instructions

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        lines = [*self._told, *self._unjudged]
        if self._changes is not None:
            lines += [f"against {self.config.option.convtime_against}:", self._changes.details()]
        else:
            lines += map(str, self.measurements.values())
            lines += [f"different: {name}: {said}" for name, said in self.different.items()]
        if lines:
            terminalreporter.section("convtime")
            terminalreporter.write("\n".join(lines) + "\n")


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _parse_failures(given: Sequence[str]) -> tuple[tuple[str, ...], float, float]:
    """Parse the verdicts that fail a run, and the margins of times and of instructions."""
    failures: list[str] = []
    margins: dict[str, set[float]] = {"slower and faster": set(), _INSTRUCTIONS: set()}
    for entry in ",".join(given).split(",") if given else []:
        what, colon, share = (part.strip() for part in entry.partition(":"))
        percent = re.fullmatch(r"(\d{1,2}(?:\.\d+)?) ?%", share)
        kind = "slower and faster" if what in ("slower", "faster") else what
        if what not in _FAILURES or (colon and not (percent and kind in margins)):
            raise pytest.UsageError(
                f"--convtime-fail-on must be some of {', '.join(_FAILURES)}, separated by commas, "
                f"{', '.join(margins)} with a margin below 100 % as in slower:3%, got {entry!r}"
            )
        failures.append(what)
        if percent:
            margins[kind].add(float(percent[1]) / 100)
    for kind, found in margins.items():
        if len(found) > 1:
            raise pytest.UsageError(
                f"--convtime-fail-on must have one margin for {kind}, got {','.join(given)!r}"
            )
    times, instructions = margins.values()
    return (
        tuple(failures),
        max(times, default=_DEFAULT_MARGIN),
        max(instructions, default=_DEFAULT_INSTRUCTIONS_MARGIN),
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise pytest.UsageError(
            f"{folder}: runs cannot be saved there ({error.strerror})"
        ) from error


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # convtime's InputError
        raise pytest.UsageError(str(error)) from error


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

    try:
        pynvml.nvmlInit()
        try:
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            return {
                "gpus": [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles],
                "gpu_driver": str(pynvml.nvmlSystemGetDriverVersion()),
            }
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return {}
