"""Measurements as rows of samples: data frames and CSV files."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from convtime.core.errors import InputError
from convtime.exchange.files import read_measurements, write_measurements
from convtime.timing.comparison import Comparison
from tests.helpers.foreign import assert_says_that_nothing_is_known, make, write


def test_frames_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"pip install 'convtime\[frame\]'") as raised:
        make().to_frame()
    assert isinstance(raised.value, ImportError)  # as for pictures without vl-convert


def test_frames_and_csv_keep_samples_and_conditions(tmp_path: Path) -> None:
    compared = Comparison({"a": make(name="a"), "b": make(name='b, "quoted"\nand more')})
    path = tmp_path / "file.csv"
    write_measurements(compared, path)
    sources: list[Any] = [path, compared.to_frame(), pandas.read_csv(path)]
    for source in sources:
        found = read_measurements(source)
        assert list(found) == ["a", "b"]
        one, expected = found["a"], compared.measurements["a"]
        assert (one.seconds, one.discarded) == (expected.seconds, expected.discarded)
        assert one.sm_clocks_hz == expected.sm_clocks_hz
        assert (one.method, one.cache, one.regime) == ("event", "cold", "as-is")
        assert (one.method.requested, one.clocks) == ("unknown", "unknown")
        assert one.provenance["gpu"] == "NVIDIA H200"
    few = pandas.DataFrame({"name": ["a", "a"], "seconds": [1e-6, 2e-6]})
    assert_says_that_nothing_is_known(read_measurements(few)["a"], "data frame")


TIMES = st.lists(st.floats(0, 1e9), min_size=1, max_size=4).map(tuple)


@settings(max_examples=30)
@given(st.dictionaries(st.text(min_size=1), TIMES, min_size=1, max_size=3))
@example({"a\rb": (1.0,), "\r\n": (1.0,), '"': (1.0,), " a, ": (1.0,), "NA": (0.1 + 0.2,)})
def test_csv_keeps_any_name_and_every_digit(runs: dict[str, tuple[float, ...]]) -> None:
    named = {name: make(seconds=seconds, batches=()) for name, seconds in runs.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.csv"
        write_measurements(named, path)
        found = read_measurements(path)
        assert b"gpu\n" in path.read_bytes()
    assert {name: each.seconds for name, each in found.items()} == runs


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "no measurement"),
        ("name,time\na,1\n", "has no seconds"),
        ("name,seconds\na,fast\n", "sample 1: seconds must be a number, got 'fast'"),
        ("name,seconds\na,1\na,inf\n", "sample 2: seconds must be a number, got 'inf'"),
        ("name,seconds\na,1\na,\n", "sample 2 has no seconds"),
        ("name,seconds\na,1\na\n", "line 3 must have one cell per column, got fewer"),
        ("name,seconds\na,1\na,1,5\n", "line 3 must have one cell per column, got more"),
        ("name,seconds,discarded\na,1,perhaps\n", "discarded must be True or False"),
        ("name,seconds,discarded\na,1,True\n", "all samples of 'a' are discarded"),
        ("name,seconds,method\na,1,kernel\na,1,event\n", "more than one method"),
        ('name,seconds\n"a,1\n', "not valid CSV"),
        ("name,seconds,seconds\na,1,2\n", "the column 'seconds' more than once"),
    ],
)
def test_bad_csv_is_one_sentence(text: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"file.csv: .*{error}") as raised:
        read_measurements(write(tmp_path / "file.csv", text))
    assert "\n" not in str(raised.value)


def test_a_bad_data_frame_is_one_sentence() -> None:
    for columns, row, error in (
        (["name", "seconds"], ["a", 10**400], "sample 1: seconds must be at most 1.8e.308"),
        (["name", "seconds"], ["a", None], "sample 1 has no seconds"),
        (["name", "seconds"], [pandas.NA, 1.0], "sample 1 has no name"),
        (["name", "seconds", "name"], ["a", 1.0, "b"], "the column 'name' more than once"),
    ):
        with pytest.raises(InputError, match=f"^the data frame: .*{error}"):
            read_measurements(pandas.DataFrame([row], columns=columns, dtype=object))
