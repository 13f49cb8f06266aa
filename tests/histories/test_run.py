from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import convtime
from convtime.histories.run import append_run
from tests.helpers.measurements import make

pytest.importorskip("ruptures")


def test_a_run_is_stored_and_read(tmp_path: Path) -> None:
    provenance = {
        **make().provenance,
        "date": "2026-03-01T10:00:00+00:00",
        "git": {"commit": "a" * 40, "dirty": True},
        "torch": "2.11",
    }
    measured = make(seconds=tuple(1e-6 * (1 + n % 7) for n in range(70)), provenance=provenance)
    path = append_run(tmp_path, {"test_b": measured})
    assert path.name.startswith("20260301T100000Z-aaaaaaaa-")
    found = convtime.history(tmp_path)
    (run,), (series,) = found.runs, found.series
    assert (run.commit, run.dirty, run.label) == ("a" * 40, True, "a" * 12 + "+")
    assert run.machine == {"gpu": "NVIDIA H200", "cpu": "x", "torch": "2.11", "threads": "2"}
    assert (series.name, series.hardware) == ("test_b", "NVIDIA H200")
    assert "method event" in series.conditions
    assert series.seconds[0] == pytest.approx(np.median(measured.seconds), rel=1e-6)
    assert series.low[0] == pytest.approx(measured.median_interval[0], rel=1e-6)
    assert not series.judged


def test_writers_do_not_disturb_each_other(tmp_path: Path) -> None:
    measured = make(provenance={"date": "2026-03-01T10:00:00+00:00", "gpu": "a GPU"})

    def write(writer: int) -> None:
        for number in range(20):
            append_run(tmp_path, {f"test_{writer}_{number}": measured})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    found = convtime.history(tmp_path)
    assert len(found.runs) == len(found.series) == 160
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json"] * 160
