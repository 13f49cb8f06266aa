"""The gate of the pytest plugin: it saves a run, and compares it with a run that was saved."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from convtime.core.checks import require
from convtime.core.errors import InputError, one_line
from convtime.core.files import check_distinct, check_writable, write_file
from convtime.device.gpu_turn import turn
from convtime.exchange.files import read_baseline
from convtime.histories.run import append_run, check_folder
from convtime.regression.baseline import Baseline, reference_of
from convtime.regression.changes import Change, Changes
from convtime.regression.compare_runs import compare_runs
from convtime.regression.differences import git_of
from convtime.regression.show_baseline import remarks
from convtime.timing.measurement import Measurement

if TYPE_CHECKING:
    from pytest_convtime import Recorder


# Runs of either side, alternating, that confirm a finding where both commits can be run.
_ROUNDS = 3

_PATIENCE_SECONDS = 60.0  # for other runs that save, which takes milliseconds

# In place of the commit of the folder, which both commits run in: the base is installed elsewhere.
_OF_BASE = {"commit": "the base's", "dirty": None}

# Starts pytest as its own command does: without the current folder among the folders of modules.
_WITHOUT_FOLDER = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); import pytest; sys.exit(pytest.main())"
)

_USE_RELATIVE = (
    "times on a shared CPU differ from process to process: time the call with compare, next to a "
    "reference operation, and judge it with --convtime-relative"
)


def _of_base(before: Baseline, after: Baseline) -> Baseline:
    """Return the base's run with another commit: one folder's commit for both says nothing."""
    measurements = dict(before.measurements)
    for name in measurements.keys() & after.measurements.keys():
        measured = measurements[name]
        commit = git_of(measured).get("commit")
        if commit is not None and commit == git_of(after.measurements[name]).get("commit"):
            provenance = {**measured.provenance, "git": _OF_BASE}
            measurements[name] = dataclasses.replace(measured, provenance=provenance)
    return dataclasses.replace(before, measurements=measurements)


def measurements_in(document: Mapping[str, Any]) -> dict[str, Measurement]:
    """Return the measurements of another process, by name, from its recorder's document."""
    return {
        name: Measurement.from_dict(fields) for name, fields in document["measurements"].items()
    }


class Gate:
    """Saves and judges the measurements of one pytest run.

    Attributes:
        changes: the changes since the other run; None before they are judged.
        remarks: sentences for the summary.

    Args:
        run: records the measurements of the run.
        folder: folder of the saved runs.
        margins: margins of ``compare_runs`` that differ from its defaults.
        folder_is_first: whether Python looks for modules in the current folder first.

    Raises:
        UsageError: a file cannot be written or read. This is known before hours of timing.
    """

    def __init__(
        self, run: Recorder, folder: Path, margins: Mapping[str, float], *, folder_is_first: bool
    ) -> None:
        self.changes: Changes | None = None
        self.remarks: list[str] = []
        self._run, self._margins = run, margins
        self._config, self._option = run.config, run.config.option
        self._folder, self._folder_is_first = folder, folder_is_first
        self._here = run.config.invocation_params.dir
        self._markdown = self._path(self._option.convtime_markdown)
        self._json = self._path(self._option.convtime_json)
        self._history = self._path(self._option.convtime_history)
        self._save: Path | None = None
        self._baseline: Baseline | None = None
        self._base_python: str | None = None
        try:
            self._find_python()
            self._prepare_files()
        except ValueError as error:  # convtime's InputError
            raise pytest.UsageError(str(error)) from error

    def _path(self, given: str | None) -> Path | None:
        return None if given is None else self._here / given

    def _prepare_files(self) -> None:
        name = self._option.convtime_save
        if name is not None:
            require(
                re.fullmatch(r"\w[\w.-]*", name),
                "--convtime-save must be a name of letters, digits, '_', '.' and '-', got "
                f"{name!r}",
            )
            try:
                self._folder.mkdir(exist_ok=True)
            except OSError as error:
                raise InputError(
                    f"{self._folder}: runs cannot be saved there ({error.strerror})"
                ) from error
            self._save = self._folder / f"{name}.json"
        written = {
            "--convtime-save": self._save,
            "--convtime-markdown": self._markdown,
            "--convtime-json": self._json,
        }
        check_distinct(written)
        for path in filter(None, written.values()):
            check_writable(path)
        if self._history is not None:
            check_folder(self._history)
        if self._option.convtime_against is not None:
            against = self._find_baseline(self._option.convtime_against)
            # The run may overwrite the file that it is compared with.
            check_distinct({**written, "--convtime-save": None, "--convtime-against": against})
            self._baseline = read_baseline(against)
        if self._save is not None and self._save.exists():
            read_baseline(self._save)

    def _find_python(self) -> None:
        given = self._option.convtime_base
        if given is not None:
            self._base_python = shutil.which(self._here / given) or shutil.which(given)
            require(
                self._base_python,
                "--convtime-base must be the Python of an environment with the earlier commit, got "
                f"{given!r}, which cannot be run",
            )

    def _find_baseline(self, given: str) -> Path:
        file, saved = self._here / given, self._folder / f"{given}.json"
        for path in (saved, file):
            if os.path.isfile(path):  # False for a name that is too long
                return path
        names = sorted(path.stem for path in self._folder.glob("*.json"))
        raise InputError(
            f"--convtime-against {given}: neither {saved} nor {file} is a file; saved runs are "
            f"{', '.join(names) or 'none'}; save one with --convtime-save NAME"
        )

    def leave_unchanged(self, reason: str) -> None:
        """Note that the run is not saved, because it lacks tests."""
        for path in filter(None, (self._save, self._history)):
            self.remarks.append(f"{reason}: {path} is unchanged")

    def finish(self, failures: tuple[str, ...]) -> str:
        """Save and judge the run, and return why that failed; empty if it did not.

        Args:
            failures: findings that fail the run; their tests run again.
        """
        measurements = self._run.measurements
        if not measurements:
            self.leave_unchanged("nothing was measured")
        try:
            if self._save is not None and measurements:
                self._save_run(self._save)
            if self._history is not None and measurements:
                path = append_run(self._history, measurements)
                self.remarks.append(f"{len(measurements)} measurements added as {path}")
            if self._baseline is not None:
                self._judge(self._baseline, failures)
        except (ValueError, OSError) as error:  # from reading or writing files
            self.remarks.append(f"error: {one_line(error)}")
            return one_line(error)
        return ""

    def _save_run(self, path: Path) -> None:
        tests = self._run.tests
        count = self._option.convtime_calibrate or self._option.convtime_runs
        runs = [self._run.measurements]
        for number in range(2, count + 1):
            self._say(f"run {number} of {count}")
            run, last = self._run_again(set(tests.values()))
            self._note_missing(tests.keys() - run.keys(), last, "they have fewer runs")
            runs.append(run)
        calibrated = self._option.convtime_calibrate is not None
        baseline = Baseline.of(runs, tests, calibrated=calibrated)
        self.remarks += remarks(baseline, calibrated=calibrated)
        new, others = len(baseline.measurements), 0
        # Another run may have saved other tests since this one began, or be about to.
        with turn(["saved-runs"], _PATIENCE_SECONDS):
            if path.exists():
                baseline = baseline.with_others_of(read_baseline(path), self._run.passed)
                others = len(baseline.measurements) - new
            baseline.save(path)
        earlier = f"; {others} of tests that did not run or did not pass are kept" if others else ""
        self.remarks.append(f"{len(tests)} measurements saved as {path}{earlier}")

    def _judge(self, baseline: Baseline, failures: tuple[str, ...]) -> None:
        changes = self._compare(baseline, Baseline(self._run.measurements))
        suspects = {
            change.name
            for change in changes.of("slower", "faster", "uncertain", "same")
            if not set(failures).isdisjoint(change.kinds)
        }
        if suspects:
            self._say(f"{len(suspects)} found, running again alone")
            changes = changes.confirmed(self._confirm(baseline, suspects, changes))
        elif self._base_python is not None:  # the saved times may be those of the wrong commit
            self._run_again((), self._base_python)
        self.changes = dataclasses.replace(changes, different=self._run.different)
        on_cpu = any(
            self._run.measurements[change.name].device == "cpu"
            for change in changes.of("slower", "faster")
        )
        if on_cpu and not self._option.convtime_relative:
            self.remarks.append(_USE_RELATIVE)
        if "margin" not in self._margins:
            self.remarks += baseline.too_noisy
        if self._markdown is not None:
            write_file(self._markdown, self.changes.to_markdown(failures))
        if self._json is not None:
            write_file(self._json, self.changes.to_json())

    def _compare(
        self, before: Baseline, after: Baseline, others: Collection[Change] = ()
    ) -> Changes:
        if self._base_python is not None:
            before = _of_base(before, after)
        return compare_runs(
            before,
            after,
            same_gpu=self._option.convtime_same_gpu,
            relative=self._option.convtime_relative,
            others=others,
            **self._margins,
        )

    def _confirm(self, baseline: Baseline, suspects: set[str], first: Changes) -> Changes:
        """Run the tests with findings again, and compare.

        If both commits can be run, they alternate: a drift of the machine affects both alike.
        """
        tests = {name: test for name, test in self._run.tests.items() if name in suspects}
        if self._option.convtime_relative:  # with the baselines, which are not judged then
            for name in [*tests]:
                reference = reference_of(name, self._run.measurements)
                if reference:
                    tests[reference] = self._run.tests[reference]
        rounds, pythons = 1, [sys.executable]
        if self._base_python is not None:
            rounds, pythons = _ROUNDS, [self._base_python, sys.executable]
        sides: list[list[dict[str, Measurement]]] = [[] for _ in pythons]
        last = ""
        for _ in range(rounds):
            for python, runs in zip(pythons, sides, strict=True):
                run, line = self._run_again(set(tests.values()), python, reproducers=True)
                runs.append(run)
                last = line if tests.keys() - run.keys() else last
        in_all = {
            name: test
            for name, test in tests.items()
            if all(name in run for runs in sides for run in runs)
        }
        *before, after = (
            Baseline.of(runs, in_all, calibrated=False).with_noise_of(baseline) for runs in sides
        )
        self._note_missing(suspects - in_all.keys(), last, "the first verdict counts")
        earlier = before[0] if before else baseline
        return self._compare(earlier.only(in_all), after, first.changes)

    def _note_missing(self, names: Collection[str], last: str, consequence: str) -> None:
        if names:
            self.remarks.append(
                f"run again alone, {', '.join(sorted(names))} gave no time ({last}): {consequence}"
            )

    def _say(self, sentence: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"\nconvtime: {sentence}")

    def _run_again(
        self, tests: Collection[str], python: str = "", *, reproducers: bool = False
    ) -> tuple[dict[str, Measurement], str]:
        """Run tests in a fresh process; return its measurements and its last line.

        Args:
            tests: the node ids.
            python: the Python of the environment to run them in; empty for this one.
            reproducers: whether the measurements need the commands that reproduce them.
        """
        python = python or sys.executable
        again: dict[str, Measurement] = {}
        with tempfile.TemporaryDirectory() as folder:
            request, output = Path(folder, "request.json"), Path(folder, "output.json")
            fields = {"tests": sorted(tests), "output": str(output), "reproducers": reproducers}
            request.write_text(json.dumps(fields), encoding="utf-8")
            done = subprocess.run(
                [*self._command(python, Path(folder, "cache")), f"--convtime-again={request}"],
                cwd=self._here,
                env={**os.environ, "COVERAGE_FILE": str(Path(folder, "coverage"))},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
            if output.exists():
                document = json.loads(output.read_text(encoding="utf-8"))
                if python == self._base_python:
                    self._check_imports(document)
                again = measurements_in(document)
        return again, " ".join((done.stdout + done.stderr).strip().splitlines()[-1:])

    def _check_imports(self, document: Mapping[str, Any]) -> None:
        """Refuse a base that imported the measured package from a folder of both commits."""
        for name, (folder, installed) in document.get("shadowed", {}).items():
            raise InputError(
                f"--convtime-base={self._option.convtime_base} must measure {name} as installed in "
                f"{installed}, but imports it from {folder}, which has one commit for both runs; "
                "keep that folder out of sys.path: use a src layout, no __init__.py in the tests' "
                "folders, or --import-mode=importlib"
            )

    def _command(self, python: str, cache: Path) -> list[str]:
        """Return the command of a pytest that finds the same modules as this one."""
        # For another Python, the folder has the other commit.
        is_first = self._folder_is_first and python == sys.executable
        start = ["-m", "pytest"] if is_first else ["-c", _WITHOUT_FOLDER]
        has = self._config.pluginmanager.hasplugin
        one_process = ["-n0"] if has("xdist") else []
        # The first run's last failures are not those of some of its tests.
        no_cache = ["-o", f"cache_dir={cache}"] if has("cacheprovider") else []
        # The base need not have what other tests import.
        given = (*map(str, self._config.invocation_params.args), "--continue-on-collection-errors")
        root = f"--rootdir={self._config.rootpath}"
        return [python, *start, *given, root, *one_process, *no_cache]
