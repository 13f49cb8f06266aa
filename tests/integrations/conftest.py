"""Runs of pytest with the plugin, in which tests have times that are written down."""

import contextlib
import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Collection
from typing import Any

import pytest

from convtime.integrations.pytest_gate import Gate
from tests.helpers import ROOT

# What a pytest within this one imports, it forgets afterwards, but for what was there before.
for _module in (
    *("convtime.conv.model", "convtime.device.gpu_turn", "convtime.exchange.files"),
    *("convtime.exchange.nvbench", "convtime.exchange.pytest_benchmark"),
    *("convtime.histories.run", "convtime.integrations.gpu_benchmark"),
    *("convtime.regression.show", "convtime.timing.result_check", "convtime.timing.compare"),
    *("convtime.timing.show", "convtime.timing.time_op", "tests.helpers.measurements"),
):
    importlib.import_module(_module)
# pytest-benchmark's histograms import it. It replaces the standard library's finder of
# distributions by another, which pytester would take away.
with contextlib.suppress(ImportError):
    importlib.import_module("importlib_metadata")

# By its module's name, whether convtime is installed or stands in a folder of Python's path.
LOADED = ("-p", "no:convtime", "-p", "pytest_convtime")
# What every pytest would import anew takes seconds.
OTHERS = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:nbval", "--assert=plain")

# Times of slow tests are FACTOR times as long, FACTOR_AGAIN times where a process of its own runs
# them again, and of what is compared with a baseline, CALL_FACTOR times the baseline's.
SUITE = """
import os
import dataclasses, random
import pytest
from convtime.timing.sampling import measure as sampling
from convtime.timing.measurement import HostReading
from tests.helpers.measurements import on_cpu

def number(name, default="1"):
    return float(os.environ.get(name, default))

@pytest.fixture(autouse=True)
def written_times(monkeypatch, request):
    again = request.config.option.convtime_again and "FACTOR_AGAIN" in os.environ
    slow = number("FACTOR_AGAIN" if again else "FACTOR") if "slow" in request.node.name else 1.0
    counts = os.environ.get("INSTRUCTIONS")
    reading = HostReading(60, 0.06, 0.06, instructions=float(counts) if counts else None)
    commit = {"commit": "a" * 40, "dirty": False}

    def measure(candidates, options, **_):
        random.seed(1)
        spread = number("SPREAD", "0.01")
        noise = [1e-3 * random.uniform(1 - spread, 1 + spread) for _ in range(60)]
        return [
            on_cpu(
                tuple((number("CALL_FACTOR") if index else 1.0) * slow * one for one in noise),
                name=candidate.name,
                host=(reading,),
                counters_reason="" if counts else "perf is not allowed",
                provenance={"cpu": os.environ.get("CPU", "a CPU"), "torch": "2.15", "git": commit,
                            "date": "2026-01-01T00:00:00+00:00"},
            )
            for index, candidate in enumerate(candidates)
        ]

    monkeypatch.setattr(sampling, "measure", measure)

def test_slow(time_op):
    assert len(time_op(int).seconds) == 60

def test_quick(time_op):
    time_op(int)
"""
SAVED = ["test_it.py::test_slow", "test_it.py::test_quick"]
# Of candidates, of which the first is the others' baseline.
PAIR = """
def test_slow_pair(compare):
    assert compare({"quick": int, "call": int}, check=None).baseline == "quick"
"""


@dataclasses.dataclass
class Runs:
    """Runs pytest with variables of its environment; fresh processes are simulated or real."""

    pytester: pytest.Pytester
    monkeypatch: pytest.MonkeyPatch
    python: str = sys.executable

    def __call__(self, *arguments: str, **environment: str) -> pytest.RunResult:
        with self.monkeypatch.context() as variables:
            variables.delenv("PYTEST_XDIST_WORKER", raising=False)  # of the pytest around this one
            for name, value in environment.items():
                variables.setenv(name, value)
            variables.setattr(sys, "executable", self.python)
            runs = () if "--convtime-calibrate" in arguments else ("--convtime-runs=1",)
            return self.pytester.runpytest_inprocess(*LOADED, *OTHERS, *runs, *arguments)

    def saved(self, name: str = "main") -> dict[str, Any]:
        """The document that is saved under a name."""
        path = self.pytester.path / ".convtime" / f"{name}.json"
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document

    def save(self, more: str = "", **environment: str) -> None:
        """Write tests, and save their times."""
        self.pytester.makepyfile(test_it=SUITE + more)
        assert self("--convtime-save=main", **environment).ret == 0


def output(result: pytest.RunResult) -> str:
    return "\n".join((*result.outlines, *result.errlines))


def simulated_again(
    gate: Gate, tests: Collection[str], _python: str = "", **_reproducers: bool
) -> tuple[dict[str, Any], str]:
    """What a fresh process would give that takes FACTOR_AGAIN times as long, or none."""
    now = os.environ.get("FACTOR", "1")
    again = os.environ.get("FACTOR_AGAIN", now)
    if again == "none":
        return {}, "1 failed"
    found = {}
    for name, one in gate._run.measurements.items():
        if gate._run.tests[name] in tests:
            scale = float(again) / float(now) if "slow" in name else 1.0
            found[name] = dataclasses.replace(one, seconds=tuple(scale * s for s in one.seconds))
    return found, ""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Runs pytest in this process, also what would run in fresh ones."""
    monkeypatch.setattr(Gate, "_run_again", simulated_again)
    return Runs(pytester, monkeypatch)


@pytest.fixture
def real_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, warm_python: str) -> Runs:
    """Runs pytest in this process; fresh ones begin with torch, whose import takes seconds."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    return Runs(pytester, monkeypatch, warm_python)
