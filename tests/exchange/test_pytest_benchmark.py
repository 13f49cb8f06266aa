"""pytest-benchmark's JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from convtime.core.errors import InputError
from convtime.exchange.files import read_measurements
from tests.helpers.foreign import assert_says_that_nothing_is_known, write


@pytest.mark.parametrize(("iterations", "averaged"), [(1, False), (3, True)])
def test_samples_and_the_state_of_the_source_are_read(
    tmp_path: Path, iterations: int, averaged: bool
) -> None:
    stats = {"data": [1e-3, 2e-3], "iterations": iterations, "median": 1.0}
    document: dict[str, Any] = {
        "machine_info": {"cpu": {"brand_raw": "EPYC"}},
        "commit_info": {"id": "abc", "dirty": True},
        "benchmarks": [{"fullname": "t.py::test", "stats": stats}],
        "datetime": "2026-01-01",
        "version": "5.1",
    }
    (one,) = read_measurements(write(tmp_path / "a.json", document)).values()
    assert (one.name, one.seconds) == ("t.py::test", (1e-3, 2e-3))
    assert ("; each sample is the mean of" in one.method.reason) == averaged
    facts = {"cpu": "EPYC", "date": "2026-01-01", "git": {"commit": "abc", "dirty": True}}
    assert facts.items() <= one.provenance.items()
    assert_says_that_nothing_is_known(one, "pytest-benchmark 5.1")
    document["commit_info"] = {"id": "unversioned"}
    (one,) = read_measurements(write(tmp_path / "a.json", document)).values()
    assert one.provenance["git"]["commit"] is None
    del stats["data"]
    with pytest.raises(InputError, match="no samples .* --benchmark-save-data"):
        read_measurements(write(tmp_path / "a.json", document))


@pytest.mark.thorough
def test_its_own_files_are_read(tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark")
    write(
        tmp_path / "test_it.py",
        "def test_sum(benchmark):\n    benchmark.pedantic(sum, ([1],), rounds=7, iterations=3)\n",
    )
    options = ["--benchmark-json=full.json", "--benchmark-save=short"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    # By a variable of xdist's, pytest-benchmark would take itself for a worker's, and do nothing.
    own = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    subprocess.run(command, cwd=tmp_path, env=own, check=True, timeout=120)
    (one,) = read_measurements(tmp_path / "full.json").values()
    theirs = json.loads((tmp_path / "full.json").read_text())["benchmarks"][0]
    assert one.name == "test_it.py::test_sum"
    assert list(one.seconds) == theirs["stats"]["data"]
    # Not the medians: ours lies within the clock's tick where samples are equal.
    assert (one.min, one.max) == (theirs["stats"]["min"], theirs["stats"]["max"])
    assert "mean of 3 calls" in one.method.reason
    (short,) = tmp_path.glob(".benchmarks/*/*.json")
    with pytest.raises(InputError, match="no samples"):
        read_measurements(short)
