"""The table of a comparison over axes: what it says, shows, draws and stores, of known times."""

import csv
import dataclasses
import io
import json
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import convtime
from convtime import ComparisonTable
from convtime.core.errors import InputError
from convtime.sweeps.plan import ComparisonPlan, ComparisonPoint
from convtime.timing.measurement import Ceilings, Measurements
from tests.helpers.figures import check_drawn, encodings, of_series, parts, tables
from tests.helpers.figures import table as table_of_figure
from tests.helpers.texts import flat
from tests.sweeps.test_fastest import simulated

PLAN = ComparisonPlan(
    {"a": "x", "<b>": "y"}, {"batch": (1, 8, 64), "kind": ("p", "q")}, baseline="a"
)
CROSSING = {
    "batch=1 kind=p": {"a": 1e-6, "<b>": 4e-6},
    "batch=1 kind=q": {"a": 1e-6, "<b>": 1e-6},
    "batch=8 kind=p": {"a": 2e-6, "<b>": 4e-6},
    "batch=8 kind=q": {"a": 2e-6, "<b>": 1e-6},
    "batch=64 kind=p": {"a": 8e-6, "<b>": 4e-6},
    "batch=64 kind=q": {"<b>": 1e-6},
}


def table_of(
    times: Mapping[str, Mapping[str, float]], plan: ComparisonPlan = PLAN
) -> ComparisonTable:
    """A table with these times at points by name; a missing candidate has failed."""
    chance = random.Random(0)
    points = []
    for number, point in enumerate(plan.points()):
        if point.name in times:
            medians = times[point.name]
            failed = {name: "E: <i>" for name in plan.applications if name not in medians}
            compared = simulated(chance, medians, 1e-3) if medians else None
            points.append(
                dataclasses.replace(point, visit=number, comparison=compared, errors=failed)
            )
    return ComparisonTable(plan, tuple(points))


def test_a_table_tells_its_winners_crossovers_and_judgements() -> None:
    table = table_of(CROSSING)
    assert {name: each.leaders for name, each in table.outcomes.items()} == {
        "batch=1 kind=p": ("a",), "batch=1 kind=q": ("a", "<b>"), "batch=8 kind=p": ("a",),
        "batch=8 kind=q": ("<b>",), "batch=64 kind=p": ("<b>",), "batch=64 kind=q": ("<b>",),
    }  # fmt: skip
    assert table.verdict == (
        "kind=p: a is fastest up to batch 8; at 64 <b> is fastest",
        "kind=q: a and <b> tie at batch 1; at 8 <b> is fastest; at 64 only <b> could be timed",
    )
    (crossover,) = table.crossovers
    assert (crossover.where, crossover.below, crossover.above) == ("kind=p", "a", "<b>")
    # The ratio of the times is 2 at 8 and 1/2 at 64: halfway on a logarithmic axis.
    assert crossover.at == pytest.approx(math.sqrt(8 * 64), rel=0.01)
    assert "the geometric means cover the 5 of 6 complete points" in str(table)
    assert table.judge("batch=8 kind=p", "<b>").verdict == "slower"
    with pytest.raises(KeyError, match="'x' is not a visited point; the first point is 'batch=1"):
        table.judge("x", "a")
    same = table_of({name: {"a": 1e-6, "<b>": 2e-6} for name in CROSSING})
    assert same.verdict == ("at every kind: a is fastest at every batch from 1 to 64",)
    assert same.exit_code() == 1
    assert same.exit_code("faster") == 0


@given(st.lists(st.none() | st.floats(0.1, 10), min_size=6, max_size=6))
@settings(max_examples=20)
def test_geometric_means_cover_the_points_at_which_all_were_timed(
    ratios: list[float | None],
) -> None:
    times = {
        name: {"a": 1e-6} | ({} if ratio is None else {"<b>": ratio * 1e-6})
        for name, ratio in zip(CROSSING, ratios, strict=True)
    }
    means = table_of(times).geomeans
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        assert means == {}
        return
    expected = np.prod(known) ** (1 / len(known))
    found = means["<b>"]
    assert found.value == pytest.approx(expected, rel=1e-3)
    assert found.low < found.value < found.high < found.low * 1.01


def test_only_the_fastest_cross() -> None:
    plan = ComparisonPlan(dict.fromkeys("abc", "x"), {"batch": (1, 8, 64, 512)}, baseline="a")
    times = {
        "batch=1": {"a": 9e-6, "b": 1e-6, "c": 8e-6},
        "batch=8": {"a": 3e-6, "b": 4e-6, "c": 1e-6},
        "batch=64": {"a": 3e-6, "b": 9e-6, "c": 1e-6},
        "batch=512": {"a": 1e-6, "b": 9e-6, "c": 8e-6},
    }
    found = table_of(times, plan).crossovers  # and not that of a and b, from 1 to 8
    assert {(each.below, each.above, each.after, each.before) for each in found} == {
        ("b", "c", 1, 8), ("c", "a", 64, 512),
    }  # fmt: skip


def test_infinite_and_missing_times_give_no_ratio() -> None:
    plan = dataclasses.replace(PLAN, axes={"batch": (1,)})
    table = table_of({"batch=1": {"a": 0.0, "<b>": 1e-6}}, plan)
    assert not table.geomeans
    assert table.outcomes["batch=1"].fastest == "a"
    assert json.loads(table.to_json())["geomeans"] == {}
    assert "inf" not in table.to_csv()
    unmeasured = table_of({"batch=1": {}}, plan)
    assert unmeasured.verdict == ("nothing is known at batch 1",)
    with pytest.raises(KeyError, match="no candidate was timed at 'batch=1'"):
        unmeasured.judge("batch=1", "a")


def test_a_table_shows_itself_escaped() -> None:
    table = table_of(CROSSING)
    lines = str(table).splitlines()
    assert lines[0].split() == ["batch", "kind", "a", "<b>", "fastest"]
    assert lines[2].split()[-1] == "a"
    assert "a, <b> (tie)" in lines[3]
    assert "failed" in lines[7]
    assert lines[8].split()[0] == "geomean"
    assert "a failed: E: <i> (batch=64 kind=q)" in str(table)
    markdown = table.to_markdown()
    for shown in (table._repr_html_(), markdown):
        assert "<b>" not in shown
        assert "&lt;b&gt;" in shown
    assert "| batch | kind | a | &lt;b&gt; | fastest |\n| --: | --: | --: | --: | --- |" in markdown
    assert "ComparisonTable a, <b>: 3 batch × 2 kind; kind=p: a is fastest" in repr(table)
    for fact in ("candidate <b>: y", "baseline: a", "margin: 1.00%", "[0.4"):
        assert fact in flat(table)
    assert str(ComparisonPoint({"n": 1})) == "n=1: not measured"
    assert str(ComparisonPoint({"n": 1}, errors={"a": "E"})) == "n=1: a: E"


def test_a_table_has_a_row_for_each_point_and_candidate() -> None:
    table = table_of(CROSSING)
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert len(rows) == 12
    first, second = rows[:2]
    assert (first["candidate"], first["outcome"], first["ratio"]) == ("a", "winner", "")
    assert (second["verdict"], float(second["ratio"])) == ("slower", pytest.approx(4, rel=0.01))
    assert rows[10]["error"] == "E: <i>"
    assert list(table.to_frame()["candidate"][:2]) == ["a", "<b>"]
    # Rates are shares of the ceilings.
    (point, *others) = table.points
    assert point.comparison is not None
    measured = dataclasses.replace(
        point.comparison.measurements["a"],
        flops=5e5,
        nbytes=100.0,
        ceilings=Ceilings(1e9, 1e12, "bfloat16"),
    )
    compared = dataclasses.replace(
        point.comparison, measurements={**point.comparison.measurements, "a": measured}
    )
    point = dataclasses.replace(point, comparison=compared)
    rated = dataclasses.replace(table, points=(point, *others))
    row = rated.to_rows()[0]
    assert (row["flops_share"], row["bytes_share"]) == pytest.approx((0.5, 0.1), rel=0.01)
    assert "TFLOP/s" in flat(rated)


def test_the_picture_has_medians_with_intervals_on_a_logarithmic_axis() -> None:
    table = table_of(CROSSING)
    figure, means = table.figures()
    time_p, _, ratio_p, _ = tables(figure, "middle")
    assert encodings(figure, "series")[0]["scale"]["domain"] == ["a", "<b>"]
    assert of_series(time_p, "a", "middle") == pytest.approx([1, 2, 8], rel=0.01)
    assert encodings(figure, "x")[0]["scale"]["type"] == "log"
    titles = [part["title"] for part in parts(figure.spec) if "width" in part]
    assert titles == ["kind=p", "kind=q"] * 2
    assert of_series(ratio_p, "<b>", "middle") == pytest.approx([4, 2, 0.5], rel=0.01)
    assert table_of_figure(means, "ratio")["ratio"] == pytest.approx(
        [mean.value for mean in table.geomeans.values()], rel=1e-5
    )
    for each in (figure, means):
        check_drawn(each)
    with pytest.raises(InputError, match="x must be one of the axes batch, kind, got 'y'"):
        table.plot("y")
    with pytest.raises(InputError, match="at least one measurement"):
        ComparisonTable(PLAN, ()).plot()


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: text.replace('"schema": "6.', '"schema": "9.'), "of schema '9.0' cannot be"),
        (lambda text: text.replace('"gpu": "NVIDIA H200"', '"gpu": "B"', 1), "measured on one GPU"),
        (lambda text: text.replace('"baseline": "a"', '"baseline": "z"', 1), "must be one of ['a'"),
        (lambda text: text.replace('"batch": 8', '"batch": 9', 1), "be a point of the table's"),
        (lambda text: text.replace('"margin": 0.01', '"margin": 0.02', 1), "must be the table's"),
        (lambda text: text.replace('{"a": "E: <i>"}', '{"z": "E"}', 1), "candidates at 'batch=64"),
    ],
)
def test_a_table_is_stored_and_a_file_that_does_not_fit_refused(
    tmp_path: Path, edit: Callable[[str], str], said: str
) -> None:
    file, table = tmp_path / "a.json", table_of(CROSSING)
    table.save(file)
    assert convtime.load(file) == table
    assert convtime.read_measurements(file) == Measurements(table.measurements)
    text = file.read_text()
    assert json.loads(text)["verdict"] == list(table.verdict)
    assert json.loads(text)["outcomes"]["batch=1 kind=q"]["kind"] == "tie"
    file.write_text(edit(text))
    with pytest.raises(InputError) as refused:
        convtime.load(file)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
