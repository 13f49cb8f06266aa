"""Tables, JSON and CSV made from compared layers; a model's training step with both."""

import csv
import dataclasses
import io
import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.conv.model import LoadedModel
from convtime.conv.problem import PASSES, ConvProblem
from convtime.core import codec
from convtime.core.errors import InputError
from convtime.layers import compare as comparing
from convtime.layers import show
from convtime.layers.compare import SIDES, LayerResult, compare_step
from convtime.layers.show import layers_figure
from convtime.timing.activity import DeviceActivity
from convtime.timing.measurement import Measurement
from convtime.timing.verdict import Ratio
from tests.helpers.convolutions import layer_result, with_known_times
from tests.helpers.measurements import make

FIRST = ConvProblem(2, 4, (9, 9), 6, (3, 5))
SECOND = dataclasses.replace(FIRST, padding="same")


def taking(*microseconds: float, **changes: Any) -> Measurement:
    seconds = tuple(each / 1e6 for each in microseconds)
    return make(seconds=seconds, **{"activities": (), "sm_clocks_hz": ()} | changes)


def results() -> list[LayerResult]:
    return [
        layer_result(
            *(FIRST, "first", "twin"),
            pytorch=taking(*range(5, 16)),
            convtime=taking(*range(15, 26)),
            ratio=Ratio(2.0, 1.9, 2.1),
        ),
        layer_result(
            *(SECOND, "second"),
            pytorch=taking(*range(7, 18)),
            convtime=taking(*range(1, 12)),
            ratio=Ratio(0.5, 0.4, 0.6),
            bit_identical=False,
        ),
    ]


def table(found: Sequence[LayerResult]) -> list[str]:
    known = [("", ""), *show.titles_and_labels([each.layer for each in found], PASSES)]
    return "\n".join(show.table_lines(found, known)).splitlines()


def test_a_row_is_there_before_the_next_result() -> None:
    first, _ = results()

    def awaited() -> Iterator[LayerResult]:
        yield first
        raise AssertionError("the second result was asked for before the first row was shown")

    known = show.titles_and_labels([result.layer for result in results()], PASSES)
    lines = show.table_lines(awaited(), known)
    assert next(lines).startswith("layer ")
    assert next(lines).startswith("first (×2) ")


def test_table() -> None:
    header, rule, first, second = table(results())
    for title in ("layer", "PyTorch ± IQR", "convtime ± IQR", "bits", "GFLOP/s"):
        assert title in header
    assert len(rule) >= max(len(first), len(second))
    place = header.index("kernels")
    assert all(row[place - 2 : place] == "  " and row[place] != " " for row in (first, second))
    for cell in ("first (×2)  ", "2×4×9×9 → 6, 3×5  ", "10.00 µs ± 50.0%", "20.00 µs ± 25.0%"):
        assert cell in first
    assert "2.000 [1.900, 2.100]" in first
    assert first.split()[-2:] == ["same", f"{FIRST.flops / 20e-6 / 1e9:.1f}"]
    assert second.split()[0] == "second"
    assert second.split()[-2] == "OTHER"
    empty = show.empty_line(["a", "b\n", "a"])
    assert empty == r"not timed (called on an empty input): a (×2), b\n"
    assert show.empty_line([]) == ""


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.integers(8, 12)), min_size=1))
def test_the_summary_follows_from_the_ratios(drawn: list[tuple[int, bool, int]]) -> None:
    """Ratios are of tenths; then whether the bits are equal, and the number of samples."""
    found = [
        layer_result(
            *(dataclasses.replace(FIRST, batch=1 + place), str(place)),
            pytorch=taking(*range(1, 1 + samples)),
            convtime=taking(*range(1, 1 + samples)),
            ratio=Ratio(tenths / 10, tenths / 10, tenths / 10),
            bit_identical=same,
        )
        for place, (tenths, same, samples) in enumerate(drawn)
    ]
    ratios = [tenths / 10 for tenths, _, _ in drawn]
    mean = statistics.geometric_mean(ratios)
    identical = sum(same for _, same, _ in drawn)
    assert show.summary(found) == (
        f"{len(found)} distinct layers, {identical} bit-identical; time convtime/PyTorch: "
        f"geometric mean {mean:.3f}, {min(ratios):.3f} to {max(ratios):.3f}"
    )
    few = sum(samples < 10 for _, _, samples in drawn)
    assert show.remark_on_few_samples(found).startswith(f"{few} of the layers" if few else "")
    assert bool(show.remark_on_few_samples(found)) == bool(few)
    told = show.reproducers(found).splitlines()
    expected = {
        each.title: [
            *(["slower"] if each.ratio.low > 1.01 else []),
            *([] if each.bit_identical else ["different"]),
        ]
        for each in found
    }
    assert told == [
        f"{each.title} ({', '.join(expected[each.title])}): {each.reproducer}"
        for each in found
        if expected[each.title]
    ]
    figure = layers_figure(found, "on a GPU")
    assert f"{len(found) - identical} of the results are not bit-identical" in figure.description


def recorded(*launches: tuple[str, int]) -> Measurement:
    """A measurement with kernels, each of a name and a grid's first number."""
    activities = tuple(
        DeviceActivity("kernel", name, (grid, 1, 1), (128, 1, 1), 32, 0, 0, (1e-6 * grid,))
        for name, grid in launches
    )
    return make(activities=activities)


def test_kernels_side_by_side() -> None:
    theirs = recorded(("gemm", 8), ("pad", 2))
    same = layer_result(FIRST, "first", pytorch=theirs, convtime=recorded(("pad", 2), ("gemm", 8)))
    other = dataclasses.replace(same, convtime=recorded(("gemm", 9)), pass_name="backward")
    assert show.kernels([same, layer_result(), other]).splitlines() == [
        "first, the same in PyTorch and in convtime:",
        "  gemm, grid 8×1×1, block 128×1×1, 8.000 µs, 8.000 µs",
        "  pad, grid 2×1×1, block 128×1×1, 2.000 µs, 2.000 µs",
        "first backward, PyTorch alone:",
        "  gemm, grid 8×1×1, block 128×1×1, 8.000 µs",
        "  pad, grid 2×1×1, block 128×1×1, 2.000 µs",
        "first backward, convtime alone:",
        "  gemm, grid 9×1×1, block 128×1×1, 9.000 µs",
    ]
    _, _, forward, backward = table([same, other])
    assert "  2, same  " in forward
    assert "first backward" in backward
    assert "  1, PyTorch 2: OTHERS  " in backward


def test_json() -> None:
    odd = layer_result(ratio=Ratio(float("inf"), float("nan"), 1.0))
    text = show.to_json([*results(), odd], {"gpu": None, "torch": "2.11"})

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    document = json.loads(text, parse_constant=refuse)
    assert (document["type"], document["schema"]) == ("Convolutions", codec.SCHEMA)
    assert document["provenance"] == {"gpu": None, "torch": "2.11"}
    *rows, without_numbers = document["rows"]
    assert [row["layer"]["names"] for row in rows] == [["first", "twin"], ["second"]]
    assert rows[0]["ratio"]["value"] == 2.0
    assert sum('"pytorch"' in line for line in text.splitlines()) == 3  # a line per row
    for row, result in zip(rows, results(), strict=True):
        assert LayerResult.from_dict(row, result.pytorch.provenance) == result
    ratio = without_numbers["ratio"]
    assert (ratio["value"], ratio["low"], ratio["high"]) == (None, None, 1.0)


def test_csv() -> None:
    first, second = csv.DictReader(io.StringIO(show.to_csv(results())))
    expected = {"layer": "first", "count": "2", "kernel_size": "3x5", "padding": "0x0"}
    assert expected.items() <= first.items()
    assert second["padding"] == "same"
    for who, median, samples in (("pytorch", 10e-6, 11), ("convtime", 20e-6, 11)):
        assert float(first[f"{who}_median_s"]) == pytest.approx(median)
        assert int(first[f"{who}_samples"]) == samples
    assert float(first["gflops"]) == pytest.approx(FIRST.flops / 20e-6 / 1e9)
    assert [first[f"ratio{end}"] for end in ("", "_low", "_high")] == ["2.0", "1.9", "2.1"]
    assert (first["bit_identical"], second["bit_identical"]) == ("True", "False")
    assert (first["verdict"], second["verdict"]) == ("slower", "faster")


QUICK: dict[str, Any] = {"budget": 0.001, "max_samples": 20, "warmup": 1}


class Net(torch.nn.Module):
    """Two kinds of layers, and outputs of which some are no tensors."""

    steps: list[Any] = []  # noqa: RUF012 (the copy's too)

    def __init__(self) -> None:
        super().__init__()
        self.flat = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.deep = torch.nn.ConvTranspose3d(4, 2, 2)

    def forward(self, x: torch.Tensor) -> object:
        self.steps.append((torch.is_grad_enabled(), self.training, x, type(self.flat).__module__))
        y = self.norm(self.flat(x))
        return {"deep": self.deep(y[:, :, None]), "flat": [y, None]}, "text"


def loaded(module: torch.nn.Module, *shape: int, device: Any = "cpu") -> LoadedModel:
    return LoadedModel("my:net", module.to(device), torch.randn(shape, device=device))


def test_a_models_step_is_timed_before_and_after_replacing(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    Net.steps.clear()
    net = Net().eval()
    model = loaded(net, 2, 3, 8, 8, device=device)
    found = compare_step(model, dtype="float64", layout="nhwc", **QUICK)
    assert all(training and grad for grad, training, _, _ in net.steps)
    assert {where for *_, where in net.steps} == {"torch.nn.modules.conv", "convtime.nn.layers"}
    assert net.steps[-1][2].dtype == torch.float64
    assert net.flat.weight.is_contiguous(memory_format=torch.channels_last)
    assert net.deep.weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert type(net.flat) is torch.nn.Conv2d
    assert net.flat.weight.grad is None
    assert (found.model, found.input_shape) == ("my:net", (2, 3, 8, 8))
    assert found.pytorch.method == ("cpu" if device.type == "cpu" else "sync")
    monkeypatch.setattr(comparing, "compare", with_known_times)
    document = compare_step(loaded(Net(), 2, 3, 8, 8), **QUICK).to_dict()
    assert document["ratio"]["value"] == pytest.approx(2)
    assert [document[who]["median"] for who in SIDES] == pytest.approx([1e-5, 2e-5])


class ReturnsDataclass(torch.nn.Linear):
    @dataclasses.dataclass
    class Output:
        y: torch.Tensor

    def forward(self, x: torch.Tensor) -> Output:  # type: ignore[override]
        return self.Output(super().forward(x))


def test_a_step_that_fails_is_said() -> None:
    norm = torch.nn.Sequential(torch.nn.Unflatten(0, (1, 2)), torch.nn.BatchNorm2d(1))
    no_gradient = "no output has a gradient"
    for module, says in (
        (torch.nn.Identity(), f"{no_gradient}: its parameters may be frozen.*; --no"),
        (torch.nn.Linear(3, 3).requires_grad_(False), no_gradient),
        (ReturnsDataclass(3, 3), f"{no_gradient}.* such as a dataclass"),
        (norm, "called on shape .* raised ValueError: .*; --no-backward times its layers' forward"),
        (torch.nn.Linear(7, 7), "the model of my:net, called on shape .* raised RuntimeError: "),
    ):
        with pytest.raises(InputError, match=f"a training step of .*{says}"):
            compare_step(loaded(module, 2, 3), **QUICK)
