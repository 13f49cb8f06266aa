"""Comparisons over axes: outcomes, chance, crossovers, words, the table, and bad input."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import convtime
from convtime import Candidate, Comparison, ComparisonTable, Ratio
from convtime.core.errors import InputError
from convtime.sweeps import compare_over as running
from convtime.sweeps.comparison_plan import ComparisonPlan, ComparisonPoint
from convtime.sweeps.crossovers import PairPoint, crossings, is_geometric
from convtime.sweeps.outcomes import Outcome, rows_of
from convtime.sweeps.words import verdict_along
from convtime.timing.verdict import Verdict
from tests.helpers.figures import check_drawn, encodings, of_series, parts, tables
from tests.helpers.figures import table as table_of_figure
from tests.helpers.measurements import make
from tests.helpers.texts import flat

QUICK: dict[str, Any] = {
    "stop": "count", "min_samples": 30, "max_samples": 30, "warmup": 1, "interference": False
}  # fmt: skip
PLAN = ComparisonPlan(
    {"a": "x", "<b>": "y"}, {"batch": (1, 8, 64), "kind": ("p", "q")}, baseline="a"
)


def simulated(
    chance: random.Random, medians: Mapping[str, float], noise: float = 0.02, rounds: int = 60
) -> Comparison:
    """A comparison whose rounds have independent noise around known times, on a GPU."""
    return Comparison(
        {
            name: make(
                name=name,
                seconds=tuple(median * chance.lognormvariate(0, noise) for _ in range(rounds)),
                activities=(),
                sm_clocks_hz=(),
                discarded=(),
            )
            for name, median in medians.items()
        }
    )


def table_of(
    times: Mapping[str, Mapping[str, float]], plan: ComparisonPlan = PLAN, **changes: Any
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
                dataclasses.replace(
                    point, visit=number, comparison=compared, errors=failed, **changes
                )
            )
    return ComparisonTable(plan, tuple(points))


CROSSING = {
    "batch=1 kind=p": {"a": 1e-6, "<b>": 4e-6},
    "batch=1 kind=q": {"a": 1e-6, "<b>": 1e-6},
    "batch=8 kind=p": {"a": 2e-6, "<b>": 4e-6},
    "batch=8 kind=q": {"a": 2e-6, "<b>": 1e-6},
    "batch=64 kind=p": {"a": 8e-6, "<b>": 4e-6},
    "batch=64 kind=q": {"<b>": 1e-6},
}


@pytest.mark.parametrize(
    ("medians", "expected"),
    [
        ({"a": 1.0, "b": 1.2, "c": 1.1}, Outcome("winner", "a", ("a",))),
        ({"a": 1.2, "b": 1.0, "c": 1.0}, Outcome("tie", "b", ("b", "c"))),
        ({"a": 1.0}, Outcome("alone", "a", ("a",))),
        ({"a": 1.012, "b": 1.0, "c": 2.0}, Outcome("undecided", "b", ("a", "b"))),
    ],
)
def test_the_leaders_are_those_not_found_slower(
    medians: dict[str, float], expected: Outcome
) -> None:
    noise = 0.02 if expected.kind == "undecided" else 1e-4
    compared = simulated(random.Random(1), medians, noise)
    found = rows_of({"x": (compared, [*medians])})["x"].outcome
    assert (found.kind, found.leaders) == (expected.kind, expected.leaders)
    if expected.kind == "winner":
        assert found == expected


def test_false_discoveries_are_controlled_over_the_table() -> None:
    """Without differences beyond the margin, rows judged alone find some, and the table none."""
    chance = random.Random(7)
    compared = {
        str(row): simulated(chance, {"a": 1.01, "b": 1.0}, 0.03, rounds=400) for row in range(600)
    }
    alone = [each.verdict("a", "b") for each in compared.values()]
    rows = rows_of({name: (each, ("a", "b")) for name, each in compared.items()})
    judged = [row.judge("a", "b") for row in rows.values()]
    assert alone.count("slower") >= 3
    assert not [each for each in judged if each.verdict == "slower"]
    assert [each.reason for each in judged].count("one-of-many") == alone.count("slower")
    few = rows_of({"0": (simulated(chance, {"a": 1.03, "b": 1.0}, 0.01), ("a", "b"))})
    assert few["0"].judge("a", "b").verdict == "slower"


def test_differences_are_found_among_many() -> None:
    chance = random.Random(3)
    compared = {
        str(row): (simulated(chance, {"a": 1.05 if row % 2 else 1.0, "b": 1.0}, 0.02), ("a", "b"))
        for row in range(40)
    }
    judged = rows_of(compared)
    right = [(row.outcome.leaders == ("b",)) == bool(int(name) % 2) for name, row in judged.items()]
    assert sum(right) >= 0.97 * len(right)


def curve(xs: Sequence[float], ratio: Callable[[float], float], half: float) -> list[PairPoint]:
    """Ratios on a curve, with intervals of a relative half-width."""
    found = []
    for x in xs:
        value = ratio(x)
        low, high = value * (1 - half), value * (1 + half)
        verdict: Verdict = "slower" if low > 1.01 else "faster" if high < 0.99 else "uncertain"
        found.append(PairPoint(x, Ratio(value, low, high), verdict))
    return found


def test_a_crossover_is_where_the_ratio_is_1() -> None:
    points = curve([1, 4, 16, 64], lambda x: x / 10, 0.05)
    (found,) = crossings(points, ("a", "b"), "batch", "", geometric=True)
    assert (found.below, found.above, found.after, found.before) == ("a", "b", 4, 16)
    assert found.at == pytest.approx(10)
    assert found.low == pytest.approx(10 / 1.05)
    assert found.high == pytest.approx(10 / 0.95)
    (back,) = crossings(
        curve([1, 4, 16, 64], lambda x: 10 / x, 0.05), ("a", "b"), "batch", "", geometric=True
    )
    assert (back.below, back.above) == ("b", "a")
    assert back.at == pytest.approx(10)
    assert "b overtakes a at about batch 10 [9.52, 10.5], between the measured 4 and 16" in str(
        found
    )
    (linear,) = crossings(
        curve([0, 2], math.exp, 0.0)[:0] + curve([-1, 1], math.exp, 0.0), ("a", "b"), "x", "",
        geometric=False,
    )  # fmt: skip
    assert linear.at == pytest.approx(0)


def test_a_crossover_has_the_uncertain_points_within_it() -> None:
    points = curve([1, 8, 10, 12, 64], lambda x: x / 10, 0.3)
    (found,) = crossings(points, ("a", "b"), "batch", "", geometric=True)
    assert (found.after, found.before) == (1, 64)
    assert 1 < found.low < 8 < found.at < 12 < found.high < 64
    assert not [*crossings(points[:3], ("a", "b"), "batch", "", geometric=True)]


def test_only_the_fastest_cross() -> None:
    plan = ComparisonPlan(dict.fromkeys("abc", "x"), {"batch": (1, 8, 64)}, baseline="a")
    times = {
        "batch=1": {"a": 4e-6, "b": 1e-6, "c": 8e-6},
        "batch=8": {"a": 4e-6, "b": 2e-6, "c": 3e-6},
        "batch=64": {"a": 4e-6, "b": 9e-6, "c": 1e-6},
    }
    (found,) = table_of(times, plan).crossovers  # and not that of a and c, or of a and b
    assert (found.below, found.above, found.after, found.before) == ("b", "c", 8, 64)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 4, 8], True),
        ([64, 256, 1024], True),
        ([1, 8, 64], True),
        ([1, 2, 3, 4], False),
        ([0, 1, 10], False),
        ([1, 8], True),
        ([2, 3], False),
        ([5], False),
    ],
)
def test_an_axis_is_geometric_where_its_ratios_are_more_even(
    values: list[float], *, expected: bool
) -> None:
    assert is_geometric(values) == expected


SDPA = Outcome("winner", "sdpa", ("sdpa",))
TIE = Outcome("tie", "flash", ("flash", "sdpa"))


@pytest.mark.parametrize(
    ("values", "outcomes", "ordered", "said"),
    [
        (
            [1, 16, 32, 64],
            [SDPA, SDPA, TIE, TIE],
            True,
            "sdpa is fastest up to batch 16; from 32 on flash and sdpa tie",
        ),
        ([1, 8], [SDPA, SDPA], True, "sdpa is fastest at every batch from 1 to 8"),
        ([8], [SDPA], True, "sdpa is fastest at batch 8"),
        (
            [1, 2, 3, 4, 5],
            [SDPA, TIE, TIE, None, SDPA],
            True,
            "sdpa is fastest at batch 1; from 2 to 3 flash and sdpa tie; at 4 nothing is known; "
            "at 5 sdpa is fastest",
        ),
        (
            ["x", "y", "z"],
            [SDPA, Outcome("undecided", "a", ("a", "b", "c")), SDPA],
            False,
            "sdpa is fastest at batch x and z; a, b and c are too close to call at batch y",
        ),
        (["x", "y"], [TIE, TIE], False, "flash and sdpa tie at every batch"),
        (["x"], [Outcome("alone", "a", ("a",))], False, "only a could be timed at batch x"),
    ],
)
def test_the_verdict_in_words(
    values: list[Any], outcomes: list[Outcome | None], *, ordered: bool, said: str
) -> None:
    assert verdict_along("batch", values, outcomes, ordered=ordered) == said


def test_a_table_tells_its_winners_crossovers_and_means() -> None:
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
    ratios = [4, 1, 2, 1 / 2, 1 / 2]  # of the complete points
    expected = math.prod(ratios) ** (1 / len(ratios))
    assert table.geomeans["<b>"].value == pytest.approx(expected, rel=0.01)
    assert table.geomeans["<b>"].low < expected < table.geomeans["<b>"].high
    assert "the geometric means cover the 5 of 6 complete points" in str(table)
    assert table.judge("batch=8 kind=p", "<b>").verdict == "slower"
    with pytest.raises(KeyError, match="'x' is not a visited point; the first point is 'batch=1"):
        table.judge("x", "a")
    same = table_of({name: {"a": 1e-6, "<b>": 2e-6} for name in CROSSING})
    assert same.verdict == ("at every kind: a is fastest at every batch from 1 to 64",)
    assert same.exit_code() == 1
    assert same.exit_code("faster") == 0


def test_a_table_shows_itself_escaped() -> None:
    table = table_of(CROSSING)
    lines = str(table).splitlines()
    assert lines[0].split() == ["batch", "kind", "a", "<b>", "fastest"]
    assert lines[2].split()[-1] == "a"
    assert "a, <b> (tie)" in lines[3]
    assert "failed" in lines[7]
    assert lines[8].split()[0] == "geomean"
    assert "a failed: E: <i> (batch=64 kind=q)" in str(table)
    page = table._repr_html_()
    assert "<b>" not in page
    assert "<i>" not in page
    assert "&lt;b&gt;" in page
    markdown = table.to_markdown()
    assert "<b>" not in markdown
    assert markdown.startswith("**kind=p: a is fastest up to batch 8; at 64 &lt;b&gt; is fastest**")
    assert "| batch | kind | a | &lt;b&gt; | fastest |\n| --: | --: | --: | --: | --- |" in markdown
    assert "ComparisonTable a, <b>: 3 batch × 2 kind; kind=p: a is fastest" in repr(table)
    for fact in ("candidate <b>: y", "baseline: a", "margin: 1.00%", "[0.4"):
        assert fact in flat(table)
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert len(rows) == 12
    first, second = rows[:2]
    assert (first["candidate"], first["outcome"], first["ratio"]) == ("a", "winner", "")
    assert (second["verdict"], float(second["ratio"])) == ("slower", pytest.approx(4, rel=0.01))
    assert rows[10]["error"] == "E: <i>"
    assert list(table.to_frame()["candidate"][:2]) == ["a", "<b>"]


def test_a_table_is_stored(tmp_path: Path) -> None:
    table = table_of(CROSSING)
    table.save(tmp_path / "a.json")
    assert convtime.load(tmp_path / "a.json") == table
    assert convtime.read_measurements(tmp_path / "a.json") == table.measurements
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["verdict"] == list(table.verdict)
    assert document["outcomes"]["batch=1 kind=q"]["kind"] == "tie"


def test_rates_are_shares_of_the_ceilings() -> None:
    ceilings = convtime.Ceilings(1e9, 1e12, "bfloat16")
    table = table_of(CROSSING)
    (point, *_) = table.points
    assert point.comparison is not None
    measured = dataclasses.replace(
        point.comparison.measurements["a"], flops=5e5, nbytes=100.0, ceilings=ceilings
    )
    compared = dataclasses.replace(
        point.comparison, measurements={**point.comparison.measurements, "a": measured}
    )
    rated = dataclasses.replace(
        table, points=(dataclasses.replace(point, comparison=compared), *table.points[1:])
    )
    row = rated.to_rows()[0]
    assert row["flops_share"] == pytest.approx(0.5, rel=0.01)
    assert row["bytes_share"] == pytest.approx(0.1, rel=0.01)
    assert "0.5 TFLOP/s" in flat(rated) or "0.49" in flat(rated)


def test_the_picture_has_medians_with_intervals_on_a_logarithmic_axis() -> None:
    table = table_of(CROSSING)
    figure = table.plot()
    time_p, _, ratio_p, _ = tables(figure, "middle")
    assert encodings(figure, "series")[0]["scale"]["domain"] == ["a", "<b>"]
    assert of_series(time_p, "a", "middle") == pytest.approx([1, 2, 8], rel=0.01)
    assert encodings(figure, "x")[0]["scale"]["type"] == "log"
    titles = [part["title"] for part in parts(figure.spec) if "width" in part]
    assert titles == ["kind=p", "kind=q"] * 2
    assert of_series(ratio_p, "<b>", "middle") == pytest.approx([4, 2, 0.5], rel=0.01)
    measured = table.measurements["a batch=1 kind=p"]
    low = 1e6 * measured.median_interval[0]
    assert of_series(time_p, "a", "low")[0] == pytest.approx(low, rel=1e-5)
    _, means = table.figures()
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
        (lambda text: text.replace('"E: <i>"', "NaN", 1), "NaN"),
        (lambda text: text.replace('"margin": 0.01', '"margin": 0.02', 1), "must be the table's"),
        (lambda text: text.replace('{"a": "E: <i>"}', '{"z": "E"}', 1), "candidates at 'batch=64"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_a_sentence(
    tmp_path: Path, edit: Callable[[str], str], said: str
) -> None:
    file = tmp_path / "a.json"
    table_of(CROSSING).save(file)
    text = file.read_text()
    file.write_text(edit(text))
    assert file.read_text() != text
    with pytest.raises(InputError) as refused:
        convtime.load(file)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


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


def busy(microseconds: float) -> None:
    """Wait for a known time."""
    end = time.perf_counter() + 1e-6 * microseconds
    while time.perf_counter() < end:
        pass


def flat_time(n: int) -> Callable[[], None]:
    return lambda: busy(200)


def rising_time(n: int) -> Candidate:
    return Candidate(busy, 50 * n)


def failing(n: int) -> Callable[[], None]:
    if n == 1:
        raise ValueError("no <b>1</b>")

    def call() -> None:
        if n == 2:
            raise RuntimeError("not at 2\nnor elsewhere")
        busy(1000)

    return call


KNOWN: dict[str, Any] = {"over": {"n": [1, 2, 8, 16]}, "seed": 1, "check": None}
MADE = {"flat": flat_time, "rising": rising_time, "failing": failing}


@pytest.mark.timing
def test_known_durations_are_ordered() -> None:
    table = convtime.compare(MADE, **KNOWN)
    assert table.verdict == ("rising is fastest up to n 2; from 8 on flat is fastest",)
    (crossover,) = table.crossovers
    assert (crossover.below, crossover.above) == ("rising", "flat")
    assert (crossover.after, crossover.before) == (2, 8)
    assert 3 < crossover.at < 5


def test_candidates_that_fail_are_left_out(tmp_path: Path) -> None:
    table = convtime.compare(MADE, **KNOWN, file=tmp_path / "a.jsonl", budget=0.1)
    assert [dict(point.errors) for point in table.points] == [
        {"failing": "ValueError: no <b>1</b>"}, {"failing": "RuntimeError: not at 2"}, {}, {},
    ]  # fmt: skip
    # Even on a busy machine, which may leave points undecided, the fastest one leads.
    fastest = ["rising", "rising", "flat", "flat"]
    for name, outcome in zip(fastest, table.outcomes.values(), strict=True):
        assert name in outcome.leaders
    assert table.drift() is not None
    assert "failing failed: RuntimeError: not at 2 (n=2)" in str(table)
    assert convtime.load(tmp_path / "a.jsonl") == table


def test_a_table_is_resumed_like_a_sweep(tmp_path: Path) -> None:
    visited: list[int] = []

    def first(n: int) -> Callable[[], object]:
        visited.append(n)
        if len(visited) == 4:
            raise KeyboardInterrupt
        return lambda: torch.ones(n)

    def second(n: int) -> Callable[[], object]:
        return lambda: torch.ones(n) * 1

    given: dict[str, Any] = {"over": {"n": [1, 2, 3, 4]}, "file": tmp_path / "a", **QUICK}
    with pytest.raises(KeyboardInterrupt):
        convtime.compare([first, second], **given)
    partial = convtime.load(tmp_path / "a")
    assert isinstance(partial, ComparisonTable)
    assert len(partial.missing) == 2
    assert "2 missing" in repr(partial)
    table = convtime.compare([first, second], **given)
    assert not table.missing
    assert len(table.points) == 4
    assert all(point in table.points for point in partial.points)
    count = len(visited)
    assert convtime.compare([first, second], **given) == table
    assert len(visited) == count
    with pytest.raises(InputError, match="different run: option check is close in the file, None"):
        convtime.compare([first, second], **given, check=None)
    with pytest.raises(InputError, match="ComparisonPlan in the file, SweepPlan here"):
        convtime.sweep(second, {"n": [1]}, file=tmp_path / "a")


def test_factories_draw_the_same_inputs_and_the_callers_numbers_stay() -> None:
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    table = convtime.compare(
        {
            "plain": lambda n: Candidate(torch.relu, torch.randn(n)),
            "clamp": lambda n: Candidate(torch.clamp, torch.randn(n), 0),
            "abs": lambda n: Candidate(torch.abs, torch.randn(n)),
        },
        over={"n": [100]},
        **QUICK,
    )
    assert torch.equal(torch.randn(3), expected)
    same = {name: each.same for name, each in table.points[0].same_results.items()}
    assert same == {"clamp": True, "abs": False}
    assert "abs n=100: OTHER RESULT" in str(table)
    assert ("abs n=100", "different") in table.findings


def test_flops_of_pytorchs_operations_are_counted() -> None:
    table = convtime.compare(
        {
            "mm": lambda n: Candidate(torch.mm, torch.ones(n, n), torch.ones(n, n)),
            "given": lambda n: Candidate(torch.ones, n, n, flops=7, nbytes=5),
            "none": lambda n: Candidate(torch.ones, n, n),
        },
        over={"n": [64]},
        check=None,
        **QUICK,
    )
    measured = table.measurements
    assert measured["mm n=64"].flops == 2 * 64**3
    assert (measured["given n=64"].flops, measured["given n=64"].nbytes) == (7, 5)
    assert measured["none n=64"].flops is None


def test_options_are_axes() -> None:
    table = convtime.compare(
        [lambda: torch.ones(4), lambda: torch.ones(5)], over={"cache": ["auto", "warm"]}, **QUICK
    )
    assert table.candidates == ("<lambda>", "<lambda> 2")
    caches = [each.cache.requested for each in table.measurements.values()]
    assert caches == ["auto", "auto", "warm", "warm"]


def call(n: int) -> Callable[[], None]:
    return lambda: None


@pytest.mark.parametrize(
    ("candidates", "given", "said"),
    [
        ([call, call], {"over": {}}, "over must be a mapping of names to values"),
        ([call, call], {"over": {"n": []}}, "axis 'n' must have at least one value, got none"),
        ([call, call], {"over": {"m": [1]}}, "axis 'm' must be a timing option or a parameter of"),
        ([call, lambda: 1], {"over": {"n": [1]}}, "a parameter of '<lambda>', which takes none"),
        ([call, Candidate(call, 1)], {"over": {"n": [1]}}, "'call 2' is a Candidate, which takes"),
        ([call], {"over": {"n": [1]}}, "at least two candidates, got 'call' alone; use sweep"),
        ([], {"over": {"n": [1]}}, "over needs at least two candidates, got none"),
        (call, {"over": {"n": [1]}}, "in a mapping by name or in a sequence, got function"),
        ({"a": call, "b": 3}, {"over": {"n": [1]}}, "'b' must be callable, or a Candidate"),
        ([call, call], {"over": {"n": [1]}, "baseline": "x"}, "baseline must be one of ['call',"),
        ([call, call], {"over": {"iterations": [1]}}, "'iterations' must be an axis of a sweep"),
        ([call, call], {"over": {"n": [1]}, "file": 3}, "file must be a path, got 3"),
        ([call, call], {"over": {"n": [1]}, "seed": 0.5}, "seed must be an integer, got 0.5"),
        ([call, call], {"over": {"n": [1]}, "margin": 0.0}, "margin must be more than 0"),
        ([call, call], {"over": {"ratio": [1]}}, "must not be a column of the table, got 'ratio'"),
        ([call, call], {"over": {"n": [1]}, "check": "x"}, "check must be 'close', 'exact' or"),
        ([call, call], {"over": {"n": [1]}, "control": 1}, "control must be True or False, got 1"),
        ([call, call], {"file": "a"}, "file must be left out without over, got 'a'"),
        ([call, call], {"seed": 1}, "seed must be left out without over, got 1"),
    ],
)
def test_what_does_not_fit_is_one_sentence_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, candidates: Any, given: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(running, "time_op", lambda *_, **__: pytest.fail("it was timed"))
    with pytest.raises(ValueError, match=".") as refused:
        convtime.compare(candidates, **given)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_point_tells_what_it_is() -> None:
    (point, *_) = table_of(CROSSING).points
    assert "a" in str(point)
    assert str(ComparisonPoint({"n": 1})) == "n=1: not measured"
    assert str(ComparisonPoint({"n": 1}, errors={"a": "E"})) == "n=1: a: E"


def test_no_candidate_takes_the_name_of_another() -> None:
    def f() -> None:
        pass

    named = running._named([Candidate(f, name="f 3"), f, f, f])
    assert list(named) == ["f 3", "f", "f 2", "f 4"]
