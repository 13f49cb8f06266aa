"""Figures: their files, what every room's figures contain, and hostile input."""

import dataclasses
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.core.errors import InputError
from convtime.device.clock_trace import ClockReading, ClockTrace
from convtime.layers.show import layers_figure
from convtime.timing.comparison import Agreement, Comparison
from convtime.timing.measurement import Ceilings, Measurement
from convtime.timing.verdict import Ratio
from convtime.view.figure import (
    INK,
    SERIES,
    Figure,
    check_plot,
    columns,
    config,
    intervals,
    kept,
    labels,
    numbers,
    quantity,
    scale_for,
    thinned,
    written,
)
from tests.helpers.convolutions import SMALL, layer_result
from tests.helpers.figures import check_drawn, encodings, of_series, parts, table, tables
from tests.helpers.measurements import make

HOSTILE = '<script>alert(1)</script>\u202e$\\foo$ \x1b\ud800 "+alert(2)+" datum.x__proto__'


def points() -> Figure:
    encoding = {"x": quantity("x", "x"), "y": quantity("y", "y")}
    view = columns(x=[1, 2], y=[3, None]) | {"mark": "point", "encoding": encoding}
    return Figure("points", "two points", view)


def test_a_file_is_of_the_type_of_its_name(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    starts = {"png": b"\x89PNG", "SVG": b"<svg", "pdf": b"%PDF", "json": b"{"}
    for suffix, start in starts.items():
        points().save(tmp_path / f"a.{suffix}")
        assert (tmp_path / f"a.{suffix}").read_bytes().startswith(start)
    assert json.loads((tmp_path / "a.json").read_text()) == points().spec
    check_plot("out.json")
    for name in ("out.xyz", "out"):
        for refuse in (check_plot, points().save):
            with pytest.raises(InputError, match=f"{name}: .* name must end in .*.png"):
                refuse(name)


def test_without_vl_convert_only_pictures_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    points().save(tmp_path / "a.json")
    with pytest.raises(InputError, match=r"pip install 'convtime\[plot\]'") as raised:
        points().save(tmp_path / "a.png")
    assert isinstance(raised.value, ImportError)  # as for data frames without pandas
    bundle, _ = points()._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.vegalite.v5+json", "text/plain"}
    assert "<svg" not in measurement()._repr_html_()
    with pytest.raises(InputError, match="vl-convert-python"):
        check_plot("out.png")


def test_a_result_in_html_has_its_first_figure_in_the_color_of_the_text() -> None:
    pytest.importorskip("vl_convert")
    one = measurement(name=HOSTILE)
    page = one._repr_html_()
    assert page.count("<svg ") == 1
    assert 'role="img" aria-label="Histogram of 40 samples of &lt;script&gt;' in page
    assert "currentColor" in page
    assert INK not in page
    assert "<script" not in page


def test_colors_are_readable_on_light_and_dark_pages() -> None:
    def luminance(color: str) -> float:  # of WCAG 2
        shares = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [
            each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in shares
        ]
        return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    def contrast(color: str, *pages: str) -> float:
        ends = [sorted((luminance(color), luminance(page))) for page in pages]
        return min((high + 0.05) / (low + 0.05) for low, high in ends)

    for color, least in ((INK, 4), *((color, 3) for color in SERIES[:3])):
        assert contrast(color, "#ffffff", "#1e1e1e") >= least  # JupyterLab is about as dark
    assert all(contrast(color, "#ffffff", "#000000") > 2 for color in SERIES)
    colors = set(re.findall(r"#\w{6}|currentColor", json.dumps(config("currentColor"))))
    assert colors == {"currentColor"}


VALUES = st.floats(1e-9, 1e9) | st.sampled_from([0.0, -2.5, math.nan, math.inf, -math.inf])


@settings(max_examples=50)
@given(st.lists(VALUES | st.none(), max_size=8), st.sampled_from([1.0, 1e6]))
def test_numbers_have_six_digits_or_more_and_unknown_ones_are_null(
    values: list[float | None], factor: float
) -> None:
    found = numbers(values, factor)
    sizes = [abs(each) for each in values if each and math.isfinite(each)]
    for value, number in zip(values, found, strict=True):
        if value is None or not math.isfinite(value):
            assert number is None
        else:
            assert number is not None
            # The largest has 15 digits, the smallest six; all have as many decimals.
            unit = 10.0 ** -min(
                5 - math.floor(math.log10(factor * min(sizes, default=1))),
                14 - math.floor(math.log10(factor * max(sizes, default=1))),
            )
            assert abs(number - factor * value) <= 0.51 * unit + 1e-15 * abs(number)
    assert len(json.dumps(numbers([1 / 3 * 1e-6], 1e6))) <= len("[0.333333]")
    assert numbers([1e300, 1e-300]) == pytest.approx([1e300, 0])


@settings(max_examples=50)
@given(st.integers(0, 400), st.integers(0, 2**32 - 1), st.integers(8, 60))
def test_thinned_values_keep_the_ends_and_the_extremes_of_each_stretch(
    count: int, seed: int, most: int
) -> None:
    drawn = np.random.default_rng(seed).standard_normal(count)
    values = [None if each > 1.5 else float(each) for each in drawn]
    places = kept(values, most)
    assert places == sorted(set(places))
    if len(values) <= most:
        assert places == [*range(len(values))]
        return
    assert len(places) <= most
    assert {0, len(values) - 1} <= {*places}
    assert np.diff(places).max() <= 2 * math.ceil(len(values) / (most // 2 - 1))
    length = math.ceil(len(values) / (most // 4))
    for start in range(0, len(values), length):
        known = {each for each in values[start : start + length] if each is not None}
        if known:
            chosen = {values[place] for place in places if start <= place < start + length}
            assert {min(known), max(known)} <= chosen


def test_unbounded_intervals_are_unknown_wide_scales_logarithmic_and_names_short() -> None:
    unbounded = intervals([1.0, -math.inf, 2.0], [3.0, 4.0, math.inf], 10)
    assert unbounded == {"low": [10.0, None, None], "high": [30.0, None, None]}
    for values, is_wide in (([1, 20], True), ([1, 19], False), ([0, 20], False), ([], False)):
        assert scale_for([*values, None]) == ({"type": "log"} if is_wide else {})
    titles = [thinned(shown, 1200, "samples") for shown in (1200, 160)]
    assert titles == ["", " 160 of 1,200 samples are shown, with the extremes of each stretch."]
    same = labels(["a" * 10_000_000, "a" * 10_000_001, "b", "b"])
    assert len({*same}) == 4
    assert max(map(len, same)) < 80
    assert written("x" * 121).endswith("…")
    assert "\u202e" not in written(HOSTILE)


def measurement(**changes: Any) -> Measurement:
    """Forty samples of four batches, whose clock falls, and three that were discarded."""
    fields = {
        "name": HOSTILE,
        "seconds": tuple(1e-6 * (10 + place % 5) for place in range(40)),
        "batches": tuple(place // 10 for place in range(40)),
        "discarded": (3e-5, 2e-5, 2.5e-5),
        "sm_clocks_hz": (*(1.98e9,) * 20, None, *(1.5e9,) * 19),
        "max_sm_clock_hz": 1.98e9,
    }
    return make(**fields | changes)


def test_samples_are_drawn_with_their_clocks_and_the_discarded_beside_them() -> None:
    one = measurement()
    figure = one.plot_samples()
    samples, throttled, discarded = tables(figure, "sample", "time")
    assert samples["sample"] == [*range(40)]
    assert samples["time"] == pytest.approx([1e6 * second for second in one.seconds])
    assert throttled["sample"] == [*range(21, 40)]
    assert discarded["time"] == pytest.approx([30, 20, 25])
    assert "3 discarded" in [each["title"] for each in encodings(figure, "sample")]
    assert table(figure, "border")["border"] == [9.5, 19.5, 29.5]
    clock = table(figure, "sample", "clock")["clock"]
    assert (clock[0], clock[20], clock[39]) == (1980, None, 1500)
    median = table(figure, "median")
    ends = (1e6 * end for end in one.median_interval)
    assert (median["low"], median["high"]) == pytest.approx(tuple(ends))
    assert median["median"] == pytest.approx(1e6 * one.median)
    assert all(each["scale"].get("type") != "log" for each in encodings(figure, "time"))
    check_drawn(figure)


def test_samples_without_clocks_and_outliers_are_drawn() -> None:
    one = measurement(sm_clocks_hz=(), max_sm_clock_hz=None, discarded=(), batches=())
    assert len(tables(one.plot_samples(), "sample")) == 1
    outlier = dataclasses.replace(one, seconds=(*one.seconds, 1e-3)).plot_samples()
    assert encodings(outlier, "time")[0]["scale"]["type"] == "log"
    power = ((0.0, 120.0), (0.1, None), (0.2, 690.0))
    readings = tuple(ClockReading(at, None, None, watts, None, ()) for at, watts in power)
    figure = dataclasses.replace(one, conditions=readings).plot_samples()
    assert table(figure, "power") == {"seconds": [0.0, 0.2], "power": [120.0, 690.0]}
    for odd in ((0.0,), (1e-6,), (0.0, 1.0)):
        for figure in dataclasses.replace(one, seconds=odd).figures():
            check_drawn(figure)


def test_a_histogram_counts_every_sample_and_many_are_thinned() -> None:
    seconds = np.random.default_rng(2).lognormal(-11, 0.1, 5000)
    seconds[7] = 1.0
    one = measurement(seconds=tuple(seconds), batches=(), sm_clocks_hz=(), discarded=())
    figure, *_ = one.figures()
    bars = table(figure, "start", "samples")
    assert sum(bars["samples"]) == 5000
    assert len(bars["start"]) <= 50
    inner = slice(1, -1)
    found = (bars[name][inner] for name in ("start", "end", "samples"))
    for start, end, count in zip(*found, strict=True):
        inside = (seconds >= 1e-6 * start) & (seconds < 1e-6 * end)
        assert count == pytest.approx(inside.sum(), abs=2)  # ends are rounded
    assert "1.000 s" in figure.description
    assert re.search(r"outermost bars include \d+ samples beyond", figure.key)
    check_drawn(figure)
    figure = one.plot_samples()
    samples = table(figure, "sample")
    assert len(samples["sample"]) <= 160
    assert max(samples["time"]) == 1e6
    assert f"{len(samples['sample'])} of 5,000 samples are shown" in figure.description


def test_a_comparison_is_drawn_with_ratios_beside_times() -> None:
    base = measurement(discarded=(), sm_clocks_hz=(), batches=())
    slower = dataclasses.replace(base, seconds=tuple(2 * second for second in base.seconds))
    compared = Comparison(
        {"base": base, HOSTILE: slower}, same_results={HOSTILE: Agreement(False, "off")}
    )
    figure, distributions = compared.figures()
    times, ratios = table(figure, "middle"), table(figure, "ratio")
    assert times["row"][0] == "base: baseline"
    assert times["row"][1].endswith(": slower, OTHER RESULT")
    for column, expected in (
        ("middle", [each.median for each in (base, slower)]),
        ("low", [each.quantile(0.25) for each in (base, slower)]),
        ("high", [each.quantile(0.75) for each in (base, slower)]),
        ("least", [each.quantile(0.01) for each in (base, slower)]),
        ("most", [each.quantile(0.99) for each in (base, slower)]),
    ):
        assert times[column] == pytest.approx([1e6 * seconds for seconds in expected])
    assert (ratios["row"], ratios["ratio"]) == (times["row"][1:], [2.0])
    curves = table(distributions, "share")
    assert of_series(curves, "base", "time") == pytest.approx(
        np.quantile(base.seconds, [share / 100 for share in of_series(curves, "base", "share")])
        * 1e6
    )
    for figure in compared.figures():
        check_drawn(figure)
    idle = dataclasses.replace(base, method=base.method, seconds=(0.0,) * 40)
    for figure in Comparison({"idle": idle, "base": base}).figures():
        check_drawn(figure)


def test_a_roofline_needs_flops_bytes_and_ceilings() -> None:
    known: dict[str, Any] = {"flops": 2e6, "nbytes": 1e5, "ceilings": Ceilings(3e12, 6e14, "half")}
    one = measurement(**known)
    *_, roofline = one.figures()
    dots = table(roofline, "label")
    assert dots["intensity"] == [20.0]
    assert dots["rate"] == pytest.approx([2e6 / one.median / 1e12], rel=1e-4)
    roof = table(roofline, "roof")
    assert dict(zip(roof["intensity"], roof["rate"], strict=True))[200.0] == 600.0
    check_drawn(roofline)
    for lacking in known:
        assert len([*dataclasses.replace(one, **{lacking: None}).figures()]) == 2
    titles = [figure.title for figure in Comparison({"a": one, "b": one}).figures()]
    assert titles[-1] == "a, b: roofline"


def test_times_and_ratios_are_those_of_the_layers() -> None:
    seconds = tuple(1e-6 * (20 + place % 5) for place in range(40))
    slower = make(seconds=tuple(1.5 * each for each in seconds), activities=(), sm_clocks_hz=())
    # Nearly all samples in one tick, within which the median is spread, and the quartiles are not.
    tied = dataclasses.replace(slower, seconds=(29.120e-6,) * 20 + (29.152e-6,) * 80)
    assert tied.median < tied.quantile(0.25)
    different: dict[str, Any] = {"bit_identical": False, "ratio": Ratio(1.5, 1.4, 1.7)}
    results = [
        layer_result(SMALL, "only", pytorch=tied, convtime=slower),
        layer_result(SMALL, "other", pytorch=slower, convtime=slower, **different),
    ]
    figure = layers_figure(results, "title")
    times, ratios = table(figure, "middle"), table(figure, "ratio")
    for series, who in (("PyTorch", "pytorch"), ("convtime", "convtime")):
        middles = [1e6 * getattr(result, who).median for result in results]
        assert of_series(times, series, "middle") == pytest.approx(middles, rel=1e-5)
    for low, middle, high in zip(times["low"], times["middle"], times["high"], strict=True):
        assert low - 1e-4 <= middle <= high + 1e-4  # they are rounded
    assert of_series(times, "convtime", "low")[0] == pytest.approx(1e6 * slower.quantile(0.25))
    assert of_series(times, "convtime", "high")[0] == pytest.approx(1e6 * slower.quantile(0.75))
    assert ratios["ratio"] == pytest.approx([each.ratio.value for each in results], rel=1e-5)
    assert (ratios["low"][1], ratios["high"][1]) == (1.4, 1.7)
    assert ratios["row"] == ["only", "other, NOT BIT-IDENTICAL"]
    bottom, top = encodings(figure, "ratio")[0]["scale"]["domain"]
    assert bottom < 0.97
    assert top > 1.7
    assert {"low": 0.97, "high": 1.03} in tables(figure, "low")
    check_drawn(figure)


def test_text_of_users_is_never_code() -> None:
    """Expressions and names of fields are constants; text is data or a title."""
    vl_convert = pytest.importorskip("vl_convert")
    long = HOSTILE * 100_000
    one = measurement(name=long, flops=1.0, nbytes=1.0, ceilings=Ceilings(1.0, 1.0, long))
    compared = Comparison({long: one, long + "2": one})
    reading = ClockReading(0.1, 1.5e9, None, None, None, (HOSTILE,))
    trace = ClockTrace(HOSTILE, 0.1, 0.0, (reading, reading)).plot()
    for figure in (*one.figures(), *compared.figures(), trace):
        spec = figure.spec
        assert len(json.dumps(spec, allow_nan=False)) < 20_000
        svg = check_drawn(figure)
        for part in parts(vl_convert.vegalite_to_vega(spec)):
            for key in ("signal", "expr", "update", "test", "field", "href", "url"):
                assert "alert" not in str(part.get(key, "")), part
        assert "<script" not in svg
        assert "\u202e" not in svg
