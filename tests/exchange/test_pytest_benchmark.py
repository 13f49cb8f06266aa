"""pytest-benchmark's JSON."""

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
