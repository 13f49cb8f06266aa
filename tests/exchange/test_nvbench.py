"""nvbench's JSON, and the files of samples next to it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convtime import cli
from convtime.core.errors import InputError
from convtime.exchange.files import read_measurements
from tests.helpers.commands import Capture
from tests.helpers.foreign import (
    assert_says_that_nothing_is_known,
    numbers,
    nvbench_document,
    nvbench_state,
    write,
)

FILE = "r.json-bin/0.bin"
SKIPPED = {"name": "N=2", "is_skipped": True, "skip_reason": "too\nlarge", "summaries": None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the samples of three calls."""
    numbers(tmp_path / FILE, 1e-5, 2e-5, 4e-5)
    return tmp_path


def test_samples_and_clocks_are_read(folder: Path, capsys: Capture) -> None:
    numbers(folder / "r.json-freqs-bin" / "0.bin", 1.98e9, 1.5e9, 1.98e9)
    clocks = ("elsewhere/r.json-freqs-bin/0.bin", 3)
    state = nvbench_state("Device=0 N=1", times=(f"elsewhere/{FILE}", 3), clocks=clocks)
    path = write(folder / "r.json", nvbench_document(state, SKIPPED))
    with pytest.warns(UserWarning, match=r"skipped 'copy \[N=2\]': 'too"):
        ((name, one),) = read_measurements(path).items()
    assert name == one.name == "copy [Device=0 N=1]"
    assert one.seconds == (1e-5, 2e-5, 4e-5)
    assert one.sm_clocks_hz == (1.98e9, 1.5e9, 1.98e9)
    assert one.throttled == (False, True, False)
    assert (one.device, one.provenance["gpu"]) == ("cuda:0", "NVIDIA H200")
    assert_says_that_nothing_is_known(one, "nvbench")
    assert cli.main(["show", str(path)]) == 0
    printed = capsys.readouterr()
    expected = f"convtime: warning: {path}: nvbench skipped 'copy [N=2]': 'too\\nlarge'\n"
    assert printed.err == expected
    assert name in printed.out


@pytest.mark.parametrize(
    ("filename", "size", "error"),
    [
        ("r.json-bin/none.bin", 3, "must be next to it"),
        ("../../r.json-bin/../0.bin", 3, "must be next to it"),
        ("r.json-bin/\0.bin", 3, "must be next to it"),
        (FILE, 2, "must contain the 2 numbers"),
        ("r.json-bin/nan.bin", 1, "finite numbers"),
        ("r.json-bin/negative.bin", 1, "finite numbers"),
        ("r.json-bin/empty.bin", 0, "took no samples"),
        (FILE, "abc", "r.json: the size of '0.bin' must be a whole number, got 'abc'"),
        ("r.json-bin/" + "a" * 5000, 3, "'aaa.* cannot be read .File name too long"),
    ],
)
def test_the_files_of_samples_are_checked(
    filename: str, size: Any, error: str, folder: Path
) -> None:
    for name, values in (("nan", [np.nan]), ("negative", [-1e-5]), ("empty", [])):
        numbers(folder / "r.json-bin" / f"{name}.bin", *values)
    state = nvbench_state("Device=0", times=(filename, size))
    with pytest.raises(InputError, match=error):
        read_measurements(write(folder / "r.json", nvbench_document(state)))


def test_samples_and_clocks_must_be_there_in_one_number(folder: Path) -> None:
    numbers(folder / "r.json-bin" / "1.bin", 1e9, 1e9)
    for files, error in (
        ({}, "no samples .*--jsonbin"),
        ({"times": (FILE, 3), "clocks": ("r.json-bin/1.bin", 2)}, "3 samples and 2 clocks"),
    ):
        document = nvbench_document(nvbench_state("Device=0", **files))
        with pytest.raises(InputError, match=error):
            read_measurements(write(folder / "r.json", document))


@pytest.mark.parametrize("link", ["r.json-bin", FILE])
def test_the_files_of_samples_may_not_be_links(link: str, folder: Path) -> None:
    (folder / link).rename(folder / "elsewhere")
    (folder / link).symlink_to(folder / "elsewhere")
    document = nvbench_document(nvbench_state("Device=0", times=(FILE, 3)))
    with pytest.raises(InputError, match=f"got a link in '{FILE}'; replace it by a copy"):
        read_measurements(write(folder / "r.json", document))


def test_the_folder_of_all_files_may_be_a_link(folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("folder")
    numbers(folder / "link" / "0.bin", 1e-5, 2e-5, 4e-5)
    numbers(folder / "link" / "bin" / "1.bin", 1e-5, 0.0)
    states = [
        nvbench_state("N=1", times=("0.bin", 3)),
        nvbench_state("N=2", times=("bin/1.bin", 2)),
    ]
    path = write(folder / "link" / "r.json", nvbench_document(*states))
    assert [one.seconds[1] for one in read_measurements(path).values()] == [2e-5, 0.0]
