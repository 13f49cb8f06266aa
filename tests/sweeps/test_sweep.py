"""Sweeps: their axes, order, and what fails; the table and the picture of them."""

import csv
import dataclasses
import functools
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import convtime
from convtime import Counters, CountersUnavailable, Sweep
from convtime.core.errors import InputError
from convtime.sweeps import journal
from convtime.sweeps import sweep as running
from convtime.sweeps.plan import SweepPlan
from convtime.timing.measurement import Measurements
from tests.helpers.counted import counters_of
from tests.helpers.figures import check_drawn, encodings, of_series, parts, table, tables
from tests.helpers.measurements import make
from tests.helpers.texts import flat

COUNTED: dict[str, Any] = {"stop": "count", "min_samples": 3, "max_samples": 3}
QUICK: dict[str, Any] = {**COUNTED, "warmup": 1}
SIZES: dict[str, Any] = {"size": [1, 2, 4], "dtype": [torch.float32, torch.float64]}


class Recorder:
    """A factory that notes what it was called with; of some values it raises."""

    def __init__(self, raising: Callable[[int], BaseException | None] = lambda _: None) -> None:
        self.made: list[tuple[int, torch.dtype]] = []
        self._raising = raising

    def __call__(self, size: int, dtype: torch.dtype = torch.float32) -> Callable[[], object]:
        error = self._raising(size)
        if error is not None:
            raise error
        self.made.append((size, dtype))
        x = torch.ones(size, dtype=dtype)
        return lambda: torch.relu(x)


def nothing() -> None:
    pass


def test_every_combination_is_measured_and_the_control_in_between() -> None:
    factory = Recorder()
    axes: dict[str, Any] = {"size": [1, 2, 3, 4, 5], "dtype": [torch.float32, torch.float64]}
    swept = convtime.sweep({"relu": factory}, axes, seed=1, **QUICK)
    wanted = [(size, dtype) for size in axes["size"] for dtype in axes["dtype"]]
    control = wanted[5]
    first, *middle, last = factory.made
    assert first == last == control
    assert middle.pop(8) == control
    assert sorted(middle, key=str) == sorted(wanted, key=str)
    assert middle != wanted
    names = [f"relu size={size} dtype={str(dtype)[6:]}" for size, dtype in wanted]
    assert list(swept.measurements) == names
    assert [point.visit for point in swept.controls] == [0, 9, 12]
    assert all(len(each.seconds) == 3 for each in swept.measurements.values())
    again = Recorder()
    convtime.sweep({"relu": again}, axes, seed=1, **QUICK)
    assert again.made == factory.made


def test_a_run_has_a_seed_of_its_own_and_rests_before_iterations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("convtime.sweeps.sweep.time.sleep", slept.append)
    convtime.sweep(nothing, {"iterations": [1]}, cache="auto")
    seeds = {convtime.sweep(nothing, {"warmup": [1]}, **COUNTED).plan.seed for _ in range(2)}
    assert len(seeds) == 2
    assert slept == [0.3] * 3 + [0.0] * 6


def test_iterations_are_all_the_calls_of_a_run_but_the_one_that_loads() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    swept = convtime.sweep(call, {"iterations": [1, 10, 100]}, rest=0)
    counts = [len(each.seconds) for each in swept.measurements.values()]
    assert counts == [1, 10, 100]
    assert calls == sum(counts) + 10 + 10 + len(swept.points) + len(swept.controls)
    assert swept.plan.rest == 0
    for measured in swept.measurements.values():
        assert (measured.cache.requested, measured.placement.requested) == ("warm", "as-is")
        assert (measured.regime.requested, measured.queue.requested) == ("as-is", "none")


@pytest.mark.cuda
def test_iterations_on_a_gpu_have_kernels_and_clocks() -> None:
    x = torch.randn(1 << 16, device="cuda")
    swept = convtime.sweep(
        lambda: torch.relu(x), {"iterations": [1, 10, 100]}, method="kernel", counters="dram"
    )
    for point in swept.points:
        measured = point.measurement
        assert measured is not None
        assert len(measured.seconds) == len(measured.sm_clocks_hz) == point.values["iterations"]
        assert (measured.cache, measured.placement, measured.discarded) == ("warm", "as-is", ())
        assert bool(point.counters_reason) == (point.counters is None)
    assert len(swept.kernels) == 1
    if swept.metrics:  # else nobody may read counters here
        with pytest.raises(InputError, match=r"'dram__bytes_raed\.sum'.*dram__bytes_read"):
            convtime.sweep(nothing, {"warmup": [1]}, counters="dram__bytes_raed.sum")


def test_options_of_time_op_are_axes_and_fit_each_other_at_each_point() -> None:
    axes: dict[str, Any] = {"max_samples": [3, 5], "placement": ["as-is", "auto"]}
    swept = convtime.sweep(nothing, axes, stop="count", min_samples=1, warmup=1)
    found = [(len(each.seconds), each.placement.requested) for each in swept.measurements.values()]
    assert found == [(3, "as-is"), (3, "auto"), (5, "as-is"), (5, "auto")]
    with pytest.raises(TypeError, match="sweep has no option 'colour'; there are method, metric"):
        convtime.sweep(nothing, {"warmup": [1]}, colour="red")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([torch.float16, torch.channels_last], ("float16", "channels_last")),
        ([(3, 3), [5, 5]], ("(3, 3)", "(5, 5)")),
        ([np.int64(3), np.float32(0.5)], (3, 0.5)),
        ({"relu": torch.relu, 2: torch.abs}, ("relu", 2)),
        (range(2), (0, 1)),
        ([None, True, "a"], (None, True, "a")),
        ([float("inf")], ("inf",)),
    ],
)
def test_values_are_written_down_and_given_as_they_are(values: Any, labels: tuple[Any]) -> None:
    given = []

    def factory(value: object) -> Callable[[], None]:
        given.append(value)
        return nothing

    swept = convtime.sweep(factory, {"value": values}, **QUICK)
    assert swept.plan.axes == {"value": labels}
    expected = values.values() if isinstance(values, dict) else values
    assert all(any(each is value for each in given) for value in expected if value is not None)
    assert Sweep.from_dict(json.loads(json.dumps(swept.to_dict()))) == swept


def test_what_is_timed_may_be_a_candidate_or_what_a_factory_makes_one() -> None:
    x = torch.ones(4)
    made = convtime.sweep(
        lambda size: convtime.Candidate(torch.relu, torch.ones(size)), {"size": [2]}, **QUICK
    )
    given = convtime.sweep(convtime.Candidate(torch.relu, x), {"warmup": [1]}, **COUNTED)
    bound = convtime.sweep(functools.partial(torch.relu, x), {"warmup": [1]}, **COUNTED)
    assert list(made.measurements) == ["<lambda> size=2"]
    assert list(given.measurements) == list(bound.measurements) == ["relu warmup=1"]


W: dict[str, Any] = {"warmup": [1]}


@pytest.mark.parametrize(
    ("fn", "axes", "options", "said"),
    [
        (nothing, {}, {}, "axes must be a mapping of names to values"),
        (nothing, {"warmup": []}, {}, "axis 'warmup' must have at least one value"),
        (nothing, {"warmup": 3}, {}, "axis 'warmup' must have a sequence of values, got 3"),
        (nothing, {"warmup": [1, 2, 1]}, {}, "axis 'warmup' has the value 1 more than once"),
        (nothing, {"warmup": [1, 1.0]}, {}, "axis 'warmup' has the value 1.0 more than once"),
        (lambda a, b: a, {"a": ["1 b=2", "1"], "b": ["3", "2 b=3"]}, {},
         "got 2 points named '<lambda> a=1 b=2 b=3'; give"),
        (nothing, {"a b": [1]}, {}, "must be a parameter or an option, got 'a b'"),
        (lambda mean: mean, {"mean": [1]}, {}, "must not be a column of the table, got 'mean'"),
        (lambda a: a, {"a": [object()]}, {}, "integers of 64 bits, got one of type object"),
        (lambda a: a, {"a": {object(): 1}}, {}, "of type object; use a string as name"),
        (nothing, {"size": [1]}, {}, "or a parameter of 'nothing', which takes none"),
        (lambda a, b: a, {"a": [1]}, {}, "'<lambda>' needs 'b', which no axis gives"),
        (lambda a: a, W, {}, "no axis is a parameter"),
        (lambda cache, a: a, {"a": [1]}, {}, "'cache', which is an option of time_op"),
        (nothing, {"method": ["kernel", "x"]}, {}, "axis 'method': method must be one of"),
        (nothing, W, {"warmup": 2}, "warmup must be either an axis or an option"),
        (nothing, {"stop": ["count"]}, {"stop": "interval"}, "stop must be either an axis or an"),
        (nothing, {"iterations": [1]}, {"stop": "interval"}, "remove stop or the axis"),
        (nothing, {"iterations": [1]}, {"method": "graph"}, "method 'graph' times many at once"),
        (nothing, {"iterations": [0]}, {}, "integers of at least 1, got 0"),
        (nothing, W, {"stop": "verdict"}, "stop of a sweep must not be 'verdict'"),
        (nothing, W, {"rest": -1}, "rest must be a number of seconds from 0 to"),
        (nothing, W, {"file": 5}, "file must be a path, got 5"),
        (nothing, {"min_samples": [5, 30], "max_samples": [20, 40]}, {},
         "at min_samples=30, max_samples=20: max_samples must be at least min_samples (30)"),
        (nothing, W, {"seed": 0.5}, "seed must be an integer, got 0.5"),
        ({}, W, {}, "at least one application, got none"),
        ({"a": 3}, W, {}, "'a' must be callable, or a Candidate, got int"),
        ({"": nothing}, W, {}, "name must be a non-empty string, got ''"),
        (3, W, {}, "must be a callable, a Candidate, or a mapping"),
        (convtime.Candidate(nothing), {"size": [1]}, {}, "is a Candidate, which takes no param"),
        (nothing, W, {"counters": "dramm"}, "'dramm'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, fn: Any, axes: Any, options: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(running, "time_op", lambda *_, **__: pytest.fail("it was timed"))
    with pytest.raises(ValueError, match=".") as refused:
        convtime.sweep(fn, axes, **options)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


PLAN = SweepPlan(
    {"PyTorch": "a", "<b>": "c"}, {"iterations": (1, 10, 100), "layout": ("x",)}, seed=7
)


def measured_at(microseconds: float, **changes: Any) -> convtime.Measurement:
    """Thirty samples around a time, a tenth of a per cent apart, on a CPU."""
    seconds = tuple(1e-6 * microseconds * (1 + 1e-3 * (index % 3 - 1)) for index in range(30))
    return make(
        seconds=seconds, activities=(), sm_clocks_hz=(), discarded=(), method="cpu",
        method_requested="cpu", device="cpu", **changes,
    )  # fmt: skip


def swept_of(controls: Sequence[float] = (2, 2, 2), **changes: Any) -> Sweep:
    """PyTorch takes 1, 2 and 3 µs, and the other 3, 4 and 5."""
    visits = [
        dataclasses.replace(point, visit=number, measurement=measured_at(time), **changes)
        for number, (point, time) in enumerate(zip(PLAN.points(), (1, 2, 3, 3, 4, 5), strict=True))
    ]
    visits += [
        dataclasses.replace(PLAN.control, visit=10 + number, measurement=measured_at(time))
        for number, time in enumerate(controls)
    ]
    return Sweep.of_visits(PLAN, visits)


def test_the_table_has_a_row_for_each_point_and_quantity() -> None:
    counted = counters_of(written=(7.0, 9.0, None, 8.5), none=(None,))
    swept = swept_of(counters=counted)
    rows = swept.to_rows()
    assert len(rows) == 6 * 3
    time, written, none = rows[9:12]
    assert (time["application"], time["iterations"], time["layout"]) == ("<b>", 1, "x")
    seconds = swept["<b> iterations=1 layout=x"].measurement.seconds
    assert (time["quantity"], time["unit"], time["count"]) == ("time", "s", 30)
    for name in ("mean", "min", "max", "median"):
        assert time[name] == pytest.approx(getattr(np, name)(seconds))
    assert time["median_low"] < time["median"] < time["median_high"]
    assert (time["method_used"], time["device_used"]) == ("cpu", "cpu")
    assert (written["quantity"], written["unit"], written["count"]) == ("written", "byte", 3)
    assert (written["min"], written["max"], written["median"]) == (7.0, 9.0, 8.5)
    assert written["mean"] == pytest.approx(24.5 / 3)
    assert "mean" not in none
    read = list(csv.DictReader(io.StringIO(swept.to_csv())))
    assert [row["quantity"] for row in read] == ["time", "written", "none"] * 6
    assert [float(row["mean"]) for row in read[::3]] == [row["mean"] for row in rows[::3]]
    frame = swept.to_frame()
    assert list(frame["quantity"][:3]) == ["time", "written", "none"]
    assert list(frame.columns)[:4] == ["application", "iterations", "layout", "quantity"]


def test_the_table_has_kernels_where_they_are_asked_for_and_errors() -> None:
    point = dataclasses.replace(
        PLAN.points()[0], measurement=make(), counters=counters_of(written=(7.0, 9.0))
    )
    swept = Sweep(PLAN, (point,))
    rows = swept.to_rows(kernels=True)
    assert [(row["quantity"], row["kernel"]) for row in rows] == [
        (quantity, kernel) for quantity in ("time", "written") for kernel in ("", "relu_kernel")
    ]
    assert (rows[1]["count"], rows[1]["median"], rows[3]["median"]) == (3, 2e-6, 7.0)
    assert swept.kernels == ("relu_kernel",)
    point = dataclasses.replace(PLAN.points()[1], error="ValueError: x")
    named = {"application": "PyTorch", "iterations": 10, "layout": "x"}
    assert Sweep(PLAN, (point,)).to_rows() == [{**named, "error": "ValueError: x"}]


def test_a_sweep_shows_itself() -> None:
    swept = swept_of(counters=counters_of(written=(7.0, 9.0)))
    assert str(swept).splitlines()[:4] == [
        "         iterations  layout            median [95 %]      mean            min .. max",
        "─" * 84,
        "PyTorch           1       x  1.000 µs [0.999, 1.001]  1.000 µs  999.0 ns .. 1.001 µs",
        "PyTorch          10       x  2.000 µs [1.999, 2.001]  2.000 µs  1.998 µs .. 2.002 µs",
    ]
    assert repr(swept).startswith(
        "<convtime.Sweep PyTorch, <b>: 3 iterations × 1 layout, 6 points measured, drift 1.0000 ["
    )
    assert "the machine was stable within 3%" in str(swept)
    assert "drift is unknown: the control is PyTorch iterations=10" in str(swept_of(controls=(2,)))
    for fact in ("8 byte (7 .. 9)", "seed: 7,", "application <b>: c", "control: median"):
        assert fact in flat(swept)
    assert "&lt;b&gt;" in swept._repr_html_()
    assert "<b>" not in swept._repr_html_()
    assert str(swept.points[0]).startswith("relu: 1.000 µs")
    assert str(dataclasses.replace(PLAN.points()[0], error="E: x")).endswith("layout=x: E: x")
    with pytest.raises(KeyError, match="'x' is not a visited point; the first point is 'P"):
        swept["x"]


def test_what_is_true_of_many_points_is_said_once() -> None:
    swept = swept_of(counters_reason="set this")
    assert str(swept).count("counters were not read at 6 points: set this") == 1
    failed = Sweep(PLAN, tuple(dataclasses.replace(each, error="E") for each in PLAN.points()[:2]))
    said = "PyTorch iterations=1 layout=x, PyTorch iterations=10 layout=x failed: E"
    assert said in str(failed)


def test_the_picture_has_a_line_and_a_band_for_each_application() -> None:
    swept = swept_of(counters=counters_of(written=(7.0, 9.0)))
    figure = swept.plot()
    time, written = tables(figure, "middle")
    colors = encodings(figure, "series")[0]["scale"]
    assert (colors["domain"], colors["range"]) == (["PyTorch", "<b>"], ["#D55E00", "#0072B2"])
    assert of_series(time, "PyTorch", "x") == [1, 10, 100]
    assert of_series(time, "<b>", "middle") == pytest.approx([3, 4, 5])
    assert encodings(figure, "x")[0]["scale"]["type"] == "log"
    ends = [1e6 * each.median_interval[1] for each in swept.measurements.values()]
    assert of_series(time, "PyTorch", "high") == pytest.approx(ends[:3])
    titles = {each["title"] for each in encodings(figure, "middle")}
    assert "written (byte): median, min to max" in titles
    assert of_series(written, "PyTorch", "middle") == [8.0] * 3
    assert len(tables(swept.plot(quantities=["time"]), "middle")) == 1
    by_layout = swept.plot(x="layout", quantities=["time"])
    assert "iterations=1" in [part.get("title") for part in parts(by_layout.spec)]
    kernels = Sweep(PLAN, (dataclasses.replace(PLAN.points()[0], measurement=make()),))
    assert table(kernels.plot(kernel="relu_kernel"), "middle")["middle"] == [2.0]
    for each in (figure, by_layout):
        check_drawn(each)
    wrong: Any
    for wrong, said in (
        ({"x": "y"}, "x must be one of"),
        ({"quantities": ["y"]}, "quantities must be from time"),
        ({"kernel": "y"}, "kernel must be one of relu_kernel"),
    ):
        with pytest.raises(InputError, match=said):
            swept.plot(**wrong)
    with pytest.raises(InputError, match="at least one measurement"):
        Sweep(PLAN, ()).plot()


def test_a_file_and_a_document_hold_the_same(tmp_path: Path) -> None:
    lines, document = tmp_path / "a.jsonl", tmp_path / "a.json"
    swept = swept_of(counters=counters_of(written=(7.0, None)))
    visits = [*swept.points, *swept.controls]
    written = [journal.first_line(PLAN)]
    for visit in visits:
        journal.Journal(PLAN, append=written.append).add(visit)
    lines.write_text("".join(written))
    convtime.write_measurements(swept, document)
    assert Sweep.from_dict(json.loads(document.read_text())) == swept
    assert journal.read(io.BytesIO(lines.read_bytes()), "a").result == swept
    for path in (lines, document):
        assert convtime.read_measurements(path) == Measurements(swept.measurements)
    with pytest.raises(ValueError, match="of schema '2.0' cannot be read"):
        Sweep.from_dict({**swept.to_dict(), "schema": "2.0"})


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"applications": {}}, "from 1 to 1,000,000 points, got 0"),
        ({"axes": {axis: [*range(50)] for axis in "abcd"}}, "1,000,000 points, got 12,500,000"),
        ({"axes": {f"a{number}": [1, 2] for number in range(2000)}}, "got more than 10^18"),
        ({"axes": {}}, "must be a point of the table's plan"),
        ({"axes": {"layout": ["x"], "iterations": [1, 10, 100]}}, "must be a point of the"),
    ],
)
def test_a_plan_must_have_the_points_that_there_are(
    tmp_path: Path, plan: dict[str, Any], said: str
) -> None:
    document = swept_of().to_dict()
    document["plan"] = document["plan"] | plan
    file = tmp_path / "a.json"
    file.write_text(json.dumps(document))
    with pytest.raises(InputError) as refused:
        convtime.read_measurements(file)
    assert said in str(refused.value)
    assert len(str(refused.value)) < len(str(file)) + 200
    with pytest.raises(ValueError, match="each point must occur once"):
        Sweep(PLAN, swept_of().points * 2)
    with pytest.raises(InputError, match="got 10,000,000"):
        convtime.sweep(lambda **_: nothing, {axis: [*range(10)] for axis in "abcdefg"})


def test_counters_that_cannot_be_read_are_said_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unavailable(*_: object, **__: object) -> Counters:
        raise CountersUnavailable("set this")

    monkeypatch.setattr(running, "read_counters", unavailable)
    swept = convtime.sweep(nothing, {"warmup": [1, 2]}, **COUNTED, counters="dram")
    assert len(swept.measurements) == 2
    assert swept.metrics == ()
    assert "warmup=1, nothing warmup=2: set this" in str(swept)


def test_counters_are_read_at_each_point(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def read(candidate: Any, metrics: object, repeats: int = 1, **__: object) -> Counters:
        asked.append((candidate.fn, metrics, repeats))
        return counters_of(written=(1.0, 3.0))

    monkeypatch.setattr(running, "read_counters", read)
    swept = convtime.sweep(nothing, {"iterations": [2, 9]}, rest=0, counters="dram, l2")
    assert sorted(asked, key=lambda each: each[2]) == [
        (nothing, ("dram", "l2"), repeats) for repeats in (2, 5)
    ]
    assert swept.metrics == ("written",)
    assert [row["mean"] for row in swept.to_rows() if row["quantity"] == "written"] == [2.0, 2.0]


def test_old_names_of_metrics_stand_for_what_they_are_of() -> None:
    old = {"written": {"a": 32.0, "b": 1.0}}
    counted = dataclasses.replace(
        counters_of(a=(1.0, None, 2.0), b=(5.0, 6.0, 7.0), c=(4.0,)), translated=old
    )
    swept = swept_of(counters=counted)
    assert swept.metrics == ("written", "c")
    row = next(row for row in swept.to_rows() if row["quantity"] == "written")
    assert (row["count"], row["min"], row["max"], row["unit"]) == (2, 37.0, 71.0, "byte")
