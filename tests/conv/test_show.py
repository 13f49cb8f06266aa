"""Tables, JSON and CSV made from compared layers."""

import csv
import dataclasses
import io
import json

import pytest
import torch

from convtime.conv import show as convolutions
from convtime.conv.compare import LayerResult, compare_layers
from convtime.conv.problem import PASSES, ConvLayer, ConvProblem
from convtime.core import codec
from convtime.core.units import format_seconds
from convtime.timing.activity import DeviceActivity
from convtime.timing.measurement import Measurement
from convtime.timing.verdict import Ratio


@pytest.fixture(scope="module")
def results():
    problem = ConvProblem(
        batch=2,
        in_channels=4,
        size=(9, 9),
        out_channels=6,
        kernel_size=(3, 5),
    )
    layers = [
        ConvLayer(("first", "twin"), problem),
        ConvLayer(("second",), dataclasses.replace(problem, padding="same")),
    ]
    found = compare_layers(layers, device=torch.device("cpu"), budget=0.02, max_samples=20)
    ratios = Ratio(2.0, 1.9, 2.1), Ratio(0.5, 0.4, 0.6)
    first, second = (
        # However slow this machine is, there are enough samples for no remark on it.
        dataclasses.replace(
            result,
            ratio=ratio,
            convtime=dataclasses.replace(result.convtime, seconds=(1e-5, 2e-5) * 5, batches=()),
        )
        for result, ratio in zip(found, ratios, strict=True)
    )
    return [first, dataclasses.replace(second, bit_identical=False)]


def table(results):
    known = [("", ""), *convolutions.titles_and_labels([r.layer for r in results], PASSES)]
    return "\n".join(convolutions.table_lines(results, known)).splitlines()


def test_a_row_is_there_before_the_next_result(results):
    def awaited():
        yield results[0]
        raise AssertionError("the second result was asked for before the first row was shown")

    known = convolutions.titles_and_labels([result.layer for result in results], PASSES)
    lines = convolutions.table_lines(awaited(), known)
    assert next(lines).startswith("layer ")
    assert next(lines).startswith("first (×2) ")


def test_columns_are_aligned(results):
    header, rule, *rows = table(results)
    assert {len(rule)} >= {len(line) for line in rows}
    place = header.index("kernels")
    assert all(row[place - 2 : place] == "  " and row[place] != " " for row in rows)


def test_table(results):
    header, _, first, second = table(results)
    for title in ("layer", "PyTorch ± IQR", "convtime ± IQR", "bits", "GFLOP/s"):
        assert title in header
    assert first.startswith("first (×2)  ")
    assert "2×4×9×9 → 6, 3×5" in first
    assert format_seconds(results[0].pytorch.median) in first
    assert format_seconds(results[0].convtime.median) in first
    assert "2.000 [1.900, 2.100]" in first
    assert first.split()[-2] == "same"
    assert second.startswith("second  ")
    assert second.split()[-2] == "OTHER"
    assert convolutions.summary(results) == (
        "2 distinct layers, 1 bit-identical; time convtime/PyTorch: geometric mean 1.000, "
        "0.500 to 2.000"
    )


def test_names_cannot_steer_the_terminal(results):
    layer = dataclasses.replace(results[0].layer, names=("µ\n\x1b[31m\u202e",))
    assert table([dataclasses.replace(results[0], layer=layer)])[2].startswith(
        r"µ\n\x1b[31m\u202e  "
    )


def test_says_where_samples_are_few(results):
    few = dataclasses.replace(results[0].convtime, seconds=(1e-5,) * 9, batches=())
    hasty = [dataclasses.replace(results[0], convtime=few), results[1]]
    assert convolutions.remark_on_few_samples(hasty).startswith(
        "1 of the layers had time for fewer than 10 samples: increase --budget"
    )
    assert convolutions.remark_on_few_samples(results) == ""


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
    assert convolutions.kernels([same, results[1], other]).splitlines() == [
        "first, the same in PyTorch and in convtime:",
        "  gemm, grid 8×1×1, block 128×1×1, 8.000 µs, 8.000 µs",
        "  pad, grid 2×1×1, block 128×1×1, 2.000 µs, 2.000 µs",
        "first backward, PyTorch alone:",
        "  gemm, grid 8×1×1, block 128×1×1, 8.000 µs",
        "  pad, grid 2×1×1, block 128×1×1, 2.000 µs",
        "first backward, convtime alone:",
        "  gemm, grid 9×1×1, block 128×1×1, 9.000 µs",
    ]
    header, _, forward, backward = table([same, other])
    assert "kernels" in header
    assert "  2, same  " in forward
    assert "first backward (×2)" in backward
    assert "  1, PyTorch 2: OTHERS  " in backward


def test_json(results):
    text = convolutions.to_json(results, {"gpu": None, "torch": "2.11"})

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    document = json.loads(text, parse_constant=refuse)
    assert (document["type"], document["schema"]) == ("Convolutions", codec.SCHEMA)
    assert document["provenance"] == {"gpu": None, "torch": "2.11"}
    assert [row["layer"]["names"] for row in document["rows"]] == [["first", "twin"], ["second"]]
    assert document["rows"][0]["ratio"]["value"] == 2.0
    assert len(document["rows"][0]["pytorch"]["seconds"]) == len(results[0].pytorch.seconds)
    assert sum('"pytorch"' in line for line in text.splitlines()) == 2  # a line per row
    for row, result in zip(document["rows"], results, strict=True):
        read = LayerResult.from_dict(row, result.pytorch.provenance)
        assert as_written(read) == as_written(result)


def as_written(result: LayerResult) -> LayerResult:
    """Samples are written to the picosecond."""

    def rounded(measured: Measurement) -> Measurement:
        seconds, discarded = (
            tuple(round(sample, 12) for sample in samples)
            for samples in (measured.seconds, measured.discarded)
        )
        return dataclasses.replace(measured, seconds=seconds, discarded=discarded)

    pytorch, ours = rounded(result.pytorch), rounded(result.convtime)
    return dataclasses.replace(result, pytorch=pytorch, convtime=ours)


def test_json_has_no_nan(results):
    odd = dataclasses.replace(results[0], ratio=Ratio(float("inf"), float("nan"), 1.0))
    (row,) = json.loads(convolutions.to_json([odd], {}))["rows"]
    assert (row["ratio"]["value"], row["ratio"]["low"], row["ratio"]["high"]) == (None, None, 1.0)


def test_csv(results):
    first, second = csv.DictReader(io.StringIO(convolutions.to_csv(results)))
    assert first["layer"] == "first"
    assert first["count"] == "2"
    assert first["kernel_size"] == "3x5"
    assert first["padding"] == "0x0"
    assert second["padding"] == "same"
    assert float(first["pytorch_median_s"]) == results[0].pytorch.median
    assert (first["bit_identical"], second["bit_identical"]) == ("True", "False")
