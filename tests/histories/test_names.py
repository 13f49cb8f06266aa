import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import convtime
from convtime.cli import main
from tests.helpers.histories import noise, write_run, write_runs

pytest.importorskip("ruptures")


def test_a_renamed_test_is_told_and_joined(tmp_path: Path) -> None:
    for number, value in enumerate(1e-5 * np.exp(noise(1, 40))):
        name = "a.py::test_old" if number < 20 else "b.py::test_new"
        write_run(tmp_path, number, {name: float(value), "other": 1e-6})
    apart = convtime.history(tmp_path)
    (remark,) = apart.remarks
    assert "--renamed a.py::test_old=b.py::test_new joins them" in remark
    assert len(apart["a.py::test_old"].runs) == len(apart["b.py::test_new"].runs) == 20
    joined = convtime.history(tmp_path, renamed={"a.py::test_old": "b.py::test_new"})
    assert joined.remarks == ()
    assert joined["b.py::test_new"].runs == tuple(range(40))
    with pytest.raises(KeyError):
        joined["a.py::test_old"]


def test_removed_and_parametrized_tests_are_told(tmp_path: Path) -> None:
    for number in range(6):
        names = (
            ["test_x", "test_y a[0]", "test_gone", "test_kept", "test_also"]
            if number < 3
            else ["test_x[1]", "test_x[2]", "test_y[3] a[0]", "test_kept"]
        )
        write_run(tmp_path, number, dict.fromkeys(names, 1e-5))
    found = convtime.history(tmp_path)
    parametrized, with_label, removed = found.remarks
    assert "'test_x' was parametrized at 000000000000" in parametrized
    assert "'test_x[1]', 'test_x[2]'" in parametrized
    assert "'test_y a[0]' was parametrized at 000000000000: 'test_y[3] a[0]'" in with_label
    assert removed.startswith("'test_gone', 'test_also': last measured at")
    assert len(found["test_gone"].runs) == 3


def test_a_wrong_renaming_is_told(tmp_path: Path) -> None:
    write_runs(tmp_path, 3)
    assert "no run has" in convtime.history(tmp_path, renamed={"none": "b"}).remarks[0]
    with pytest.raises(convtime.InputError, match="lead back"):
        convtime.history(tmp_path, renamed={"a": "b", "b": "a"})


def test_a_time_of_zero_is_told(tmp_path: Path) -> None:
    for number in range(4):
        write_run(tmp_path, number, {"test_a": 1e-5, "test_b": 0.0 if number == 1 else 1e-5})
    found = convtime.history(tmp_path)
    assert found.remarks == (
        "'test_b' has a time of 0 in 1 of the runs, which are left out of its series",
    )
    assert found["test_b"].runs == (0, 2, 3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("test_a[(]", "test_b[it's]"),
        ("test_a", "test_b 'y'=2"),
    ],
)
def test_the_suggested_option_joins_names_with_any_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str
) -> None:
    for number in range(4):
        write_run(tmp_path, number, {old if number < 2 else new: 1e-5})
    (remark,) = convtime.history(tmp_path).remarks
    option = re.search(r"--renamed .*(?= joins them)", remark)
    assert option is not None
    assert main(["history", str(tmp_path), *shlex.split(option[0])]) == 0
    assert "4 runs (2026-01-01 to 2026-01-01), 1 series" in capsys.readouterr().out
    assert main(["history", str(tmp_path), "--renamed", "test_c[x=1]=test_d[y=2]"]) == 0
    assert "'test_c[x=1]' is to be renamed" in capsys.readouterr().out
