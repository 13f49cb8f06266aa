"""Tables and files made from compared layers."""

import csv
import dataclasses
import io
import json
import os
from pathlib import Path

import pytest
import torch

from convtime.conv.compare import compare_layers
from convtime.conv.problem import ConvLayer
from convtime.core.errors import InputError
from convtime.results.activity import DeviceActivity
from convtime.results.comparison import Ratio
from convtime.results.units import format_seconds
from convtime.show import convolutions as report


@pytest.fixture(scope="module")
def results():
    first = ConvLayer(
        names=("first", "twin"),
        batch=2,
        in_channels=4,
        size=(9, 9),
        out_channels=6,
        kernel_size=(3, 5),
    )
    second = dataclasses.replace(first, names=("second",), padding="same")
    found = compare_layers([first, second], device=torch.device("cpu"), budget=0.02, max_samples=20)
    ratios = Ratio(2.0, 1.9, 2.1), Ratio(0.5, 0.4, 0.6)
    one, two = (
        # However slow this machine is, there are enough samples for no remark on it.
        dataclasses.replace(
            r, ratio=q, convtime=dataclasses.replace(r.convtime, seconds=(1e-5, 2e-5) * 5)
        )
        for r, q in zip(found, ratios, strict=True)
    )
    return [one, dataclasses.replace(two, bit_identical=False)]


def test_table(results):
    header, _, one, two, blank, last = report.table(results).splitlines()
    assert blank == ""
    for title in ("layer", "PyTorch median", "convtime median", "bit-identical", "GFLOP/s"):
        assert title in header
    assert one.startswith("first (×2)  ")
    assert "2×4×9×9 → 6, 3×5" in one
    assert format_seconds(results[0].pytorch.median) in one
    assert format_seconds(results[0].convtime.median) in one
    assert "2.000 [1.900, 2.100]" in one
    assert one.split()[-2] == "yes"
    assert two.startswith("second  ")
    assert two.split()[-2] == "NO"
    assert last == (
        "2 distinct layers, 1 bit-identical; time convtime/PyTorch: geometric mean 1.000, "
        "0.500 to 2.000"
    )


def test_names_cannot_steer_the_terminal(results):
    layer = dataclasses.replace(results[0].layer, names=("µ\n\x1b[31m\u202e",))
    text = report.table([dataclasses.replace(results[0], layer=layer)])
    assert text.splitlines()[2].startswith(r"µ\n\x1b[31m\u202e  ")


def test_table_says_where_samples_are_few(results):
    few = dataclasses.replace(results[0].convtime, seconds=(1e-5,) * 9)
    text = report.table([dataclasses.replace(results[0], convtime=few), results[1]])
    assert "\n1 of the layers had time for fewer than 10 samples: a larger --budget" in text


def recorded(measurement, *launches):
    """The measurement with kernels, each of a name and a grid's first number."""
    activities = tuple(
        DeviceActivity("kernel", name, (grid, 1, 1), (128, 1, 1), 32, 0, 0, (1e-6 * grid,))
        for name, grid in launches
    )
    return dataclasses.replace(measurement, activities=activities)


def test_kernels_side_by_side(results):
    same = dataclasses.replace(
        results[0],
        pytorch=recorded(results[0].pytorch, ("gemm", 8), ("pad", 2)),
        convtime=recorded(results[0].convtime, ("pad", 2), ("gemm", 8)),
    )
    other = dataclasses.replace(
        same, convtime=recorded(results[0].convtime, ("gemm", 9)), pass_name="backward"
    )
    assert (same.same_kernels, other.same_kernels, results[0].same_kernels) == (True, False, None)
    assert report.kernels([same, results[1], other]).splitlines() == [
        "first, the same in PyTorch and in convtime:",
        "  gemm, grid 8×1×1, block 128×1×1, 8.000 µs, 8.000 µs",
        "  pad, grid 2×1×1, block 128×1×1, 2.000 µs, 2.000 µs",
        "first backward, PyTorch alone:",
        "  gemm, grid 8×1×1, block 128×1×1, 8.000 µs",
        "  pad, grid 2×1×1, block 128×1×1, 2.000 µs",
        "first backward, convtime alone:",
        "  gemm, grid 9×1×1, block 128×1×1, 9.000 µs",
    ]
    header, _, one, two, *_ = report.table([same, other]).splitlines()
    assert "kernels" in header
    assert "  2, same  " in one
    assert "first backward (×2)" in two
    assert "  1, PyTorch 2: OTHERS  " in two


def test_json(results):
    text = report.to_json(results, {"gpu": None, "torch": "2.11"})

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    document = json.loads(text, parse_constant=refuse)
    assert document["schema"] == report.SCHEMA
    assert document["provenance"] == {"gpu": None, "torch": "2.11"}
    assert [row["layer"]["names"] for row in document["rows"]] == [["first", "twin"], ["second"]]
    assert document["rows"][0]["ratio"] == 2.0
    assert len(document["rows"][0]["pytorch"]["seconds"]) == len(results[0].pytorch.seconds)
    assert sum('"pytorch"' in line for line in text.splitlines()) == 2  # a line a row


def test_json_has_no_nan(results):
    odd = dataclasses.replace(results[0], ratio=Ratio(float("inf"), float("nan"), 1.0))
    (row,) = json.loads(report.to_json([odd], {}))["rows"]
    assert (row["ratio"], row["ratio_low"], row["ratio_high"]) == (None, None, 1.0)


def test_csv(results):
    one, two = csv.DictReader(io.StringIO(report.to_csv(results)))
    assert one["layer"] == "first"
    assert one["count"] == "2"
    assert one["kernel_size"] == "3x5"
    assert one["padding"] == "0x0"
    assert two["padding"] == "same"
    assert float(one["pytorch_median_s"]) == results[0].pytorch.median
    assert (one["bit_identical"], two["bit_identical"]) == ("True", "False")


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "out.json"
    report.write_file(path, "old µ")
    report.write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["out.json"]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_replaced_file_keeps_its_mode(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    path.chmod(0o640)
    report.write_file(path, "new")
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    report.write_file(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch, step, failure):
    path = tmp_path / "out.json"
    path.write_text("old")

    def fail(*arguments):
        raise failure

    monkeypatch.setattr(*{"fsync": (os, "fsync"), "replace": (Path, "replace")}[step], fail)
    expected = InputError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        report.write_file(path, "new")
    if expected is InputError:
        assert str(caught.value) == f"{path}: cannot be written (No space left on device)"
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.json"]


def test_check_writable_leaves_nothing(tmp_path):
    report.check_writable(tmp_path / "new.json")
    assert os.listdir(tmp_path) == []
    (tmp_path / "old.json").write_text("old")
    report.check_writable(tmp_path / "old.json")
    assert (tmp_path / "old.json").read_text() == "old"


def test_check_writable_says_why_not(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for path, why in (
        (tmp_path / "none" / "out.json", "No such file or directory"),
        (tmp_path / "file" / "out.json", "Not a directory"),
        (tmp_path / ("a" * 300), "File name too long"),
        (tmp_path / "loop", "not a regular file"),
        (tmp_path, "not a regular file"),
        (Path("/dev/null"), "not a regular file"),
    ):
        with pytest.raises(InputError, match=f"^{path}: cannot be written.*{why}"):
            report.check_writable(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_check_writable_in_a_locked_directory(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="Permission denied"):
        report.check_writable(tmp_path / "out.json")
    tmp_path.chmod(0o700)
