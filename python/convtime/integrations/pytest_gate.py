"""The gate of the pytest plugin: it saves a run, and compares it with a run that was saved."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from convtime.core.files import check_distinct, check_writable, write_file
from convtime.exchange.files import read_measurements, write_measurements
from convtime.regression.changes import Changes, first_of
from convtime.regression.compare_runs import compare_runs
from convtime.timing.measurement import Measurement

if TYPE_CHECKING:
    from pytest_convtime import Recorder


def measurements_in(document: Mapping[str, Any]) -> dict[str, Measurement]:
    """Return the measurements of another process, by name, from its recorder's document."""
    return {
        name: Measurement.from_dict(fields) for name, fields in document["measurements"].items()
    }


class Gate:
    """Saves and judges the measurements of one pytest run.

    Attributes:
        changes: the changes since the other run; None before they are judged.
        told: sentences for the summary.

    Args:
        run: records the measurements of the run.
        folder: folder of the saved runs.
        margins: margins of ``compare_runs`` that differ from its defaults.

    Raises:
        UsageError: a file cannot be written or read. This is known before hours of timing.
    """

    def __init__(self, run: Recorder, folder: Path, margins: Mapping[str, float]) -> None:
        self.changes: Changes | None = None
        self.told: list[str] = []
        self._run, self._margins = run, margins
        self._config, self._option = run.config, run.config.option
        self._folder = folder
        self._save = self._saved_as(self._option.convtime_save)
        self._markdown = self._path(self._option.convtime_markdown)
        self._json = self._path(self._option.convtime_json)
        self._baseline: dict[str, Measurement] | None = None
        try:
            self._prepare_files()
        except ValueError as error:  # convtime's InputError
            raise pytest.UsageError(str(error)) from error

    def _path(self, given: str | None) -> Path | None:
        return None if given is None else self._config.invocation_params.dir / given

    def _saved_as(self, name: str | None) -> Path | None:
        if name is None:
            return None
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise pytest.UsageError(
                f"--convtime-save must be a name of letters, digits, '_', '.' and '-', got {name!r}"
            )
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(
                f"{self._folder}: runs cannot be saved there ({error.strerror})"
            ) from error
        return self._folder / f"{name}.json"

    def _prepare_files(self) -> None:
        written = {
            "--convtime-save": self._save,
            "--convtime-markdown": self._markdown,
            "--convtime-json": self._json,
        }
        check_distinct(written)
        for path in filter(None, written.values()):
            check_writable(path)
        if self._option.convtime_against is not None:
            against = self._find_baseline(self._option.convtime_against)
            # The run may overwrite the file that it is compared with.
            check_distinct({**written, "--convtime-save": None, "--convtime-against": against})
            self._baseline = read_measurements(against)

    def _find_baseline(self, given: str) -> Path:
        file, saved = self._config.invocation_params.dir / given, self._folder / f"{given}.json"
        for path in (saved, file):
            if os.path.isfile(path):  # False for a name that is too long
                return path
        names = sorted(path.stem for path in self._folder.glob("*.json"))
        raise pytest.UsageError(
            f"--convtime-against {given}: neither {saved} nor {file} is a file; saved runs are "
            f"{', '.join(names) or 'none'}; save one with --convtime-save NAME"
        )

    @property
    def kinds(self) -> set[str]:
        """The findings that an exit code can report; empty before the run is judged."""
        changes = () if self.changes is None else self.changes.changes
        return {kind for change in changes for kind in change.kinds}

    def stop_early(self) -> None:
        """Neither save nor judge the run, because it lacks tests."""
        if self._save is not None:
            self.told.append(f"the run stopped early: {self._save} is unchanged")

    def finish(self, exitstatus: int, failures: tuple[str, ...]) -> bool:
        """Save and judge the run, and return whether that worked.

        Args:
            exitstatus: pytest's exit code.
            failures: findings that fail the run; their tests run again.
        """
        try:
            self._save_run(exitstatus)
            if self._baseline is not None:
                self._judge(self._baseline, failures)
        except ValueError as error:  # from reading or writing files
            self.told.append(f"error: {error}")
            return False
        return True

    def _save_run(self, exitstatus: int) -> None:
        measurements = self._run.measurements
        if self._save is None:
            return
        if not measurements:
            self.told.append(f"nothing was measured: {self._save} is unchanged")
            return
        if exitstatus == pytest.ExitCode.TESTS_FAILED and self._save.exists():
            lost = sorted(read_measurements(self._save).keys() - measurements.keys())
            if lost:
                self.told.append(
                    f"{self._save} is unchanged: tests failed, and this run lacks "
                    f"{first_of(lost)}, which the file has; save the run under another name, or "
                    "remove the file first"
                )
                return
        write_measurements(measurements, self._save)
        self.told.append(f"{len(measurements)} measurements saved as {self._save}")

    def _judge(self, baseline: Mapping[str, Measurement], failures: tuple[str, ...]) -> None:
        changes = self._compare(baseline, self._run.measurements)
        red = {
            change.name
            for change in changes.of("slower", "faster", "uncertain", "same")
            if not set(failures).isdisjoint(change.kinds)
        }
        if red:
            changes = changes.confirmed(self._run_again(baseline, red))
        self.changes = dataclasses.replace(changes, different=self._run.different)
        if self._markdown is not None:
            write_file(self._markdown, self.changes.to_markdown())
        if self._json is not None:
            write_file(self._json, self.changes.to_json())

    def _compare(
        self, before: Mapping[str, Measurement], after: Mapping[str, Measurement]
    ) -> Changes:
        return compare_runs(
            before,
            after,
            same_gpu=self._option.convtime_same_gpu,
            relative=self._option.convtime_relative,
            **self._margins,
        )

    def _run_again(self, baseline: Mapping[str, Measurement], red: set[str]) -> Changes:
        """Run only the tests with findings in a fresh process, and return its changes."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"\nconvtime: {len(red)} found, running again alone")
        again: dict[str, Measurement] = {}
        with tempfile.TemporaryDirectory() as folder:
            asked, output = Path(folder, "asked.json"), Path(folder, "output.json")
            tests = sorted({self._run.tests[name] for name in red})
            asked.write_text(json.dumps({"tests": tests, "output": str(output)}), encoding="utf-8")
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "pytest", *self._arguments(Path(folder, "cache"))),
                    f"--convtime-again={asked}",
                ],
                cwd=self._config.invocation_params.dir,
                env={**os.environ, "COVERAGE_FILE": str(Path(folder, "coverage"))},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
            if output.exists():
                again = measurements_in(json.loads(output.read_text(encoding="utf-8")))
        lost = sorted(red - again.keys())
        if lost:
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            self.told.append(
                f"run again alone, {', '.join(lost)} gave no time ({' '.join(last)}): the first "
                "verdict counts"
            )
        found = red & again.keys()
        if self._option.convtime_relative:  # with the baselines, which are not judged then
            found |= {str(again[name].provenance.get("baseline", name)) for name in found}
        return self._compare(
            {name: baseline[name] for name in baseline if name in found},
            {name: again[name] for name in again if name in found},
        )

    def _arguments(self, cache: Path) -> list[str]:
        has = self._config.pluginmanager.hasplugin
        one_process = ["-n0"] if has("xdist") else []
        # The first run's last failures are not those of some of its tests.
        no_cache = ["-o", f"cache_dir={cache}"] if has("cacheprovider") else []
        given = map(str, self._config.invocation_params.args)
        return [*given, f"--rootdir={self._config.rootpath}", *one_process, *no_cache]
