"""The picture of compared layers."""

import dataclasses
import io
import math
import os
import re
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch

from convtime.conv import plot
from convtime.conv.compare import compare_layers
from convtime.conv.problem import ConvLayer, ConvProblem
from convtime.core.errors import InputError
from convtime.core.plot import check_plot, figure_class
from convtime.device.clock_reading import ClockReading
from convtime.device.clock_trace import ClockTrace
from convtime.timing.comparison import Agreement, Comparison
from convtime.timing.verdict import Ratio
from tests.helpers.measurements import make

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def results():
    problem = ConvProblem(
        batch=1,
        in_channels=4,
        size=(9, 9),
        out_channels=6,
        kernel_size=(3, 3),
    )
    layer = ConvLayer(("only",), problem)
    (result,) = compare_layers([layer], device=torch.device("cpu"), budget=0.02, max_samples=20)
    different = dataclasses.replace(
        result,
        layer=dataclasses.replace(layer, names=("other",)),
        bit_identical=False,
        ratio=Ratio(1.5, 1.4, 1.7),
    )
    return [result, different]


def drawn(monkeypatch, results):
    """The axes of the figure that draw() makes."""
    figures = []
    original = figure_class()

    def record(**options):
        figures.append(original(**options))
        return figures[-1]

    monkeypatch.setattr("convtime.core.plot.figure_class", lambda: record)
    plot.draw(results, "title", ".png")
    return figures[0].axes


def test_times_and_ratios_are_those_of_the_results(monkeypatch, results):
    times, ratios = drawn(monkeypatch, results)
    for line, who in zip(times.containers, ("pytorch", "convtime"), strict=True):
        assert line.lines[0].get_ydata() == pytest.approx(
            [1e6 * getattr(result, who).median for result in results]
        )
    assert ratios.containers[0].lines[0].get_ydata() == pytest.approx(
        [result.ratio.value for result in results]
    )
    (bars,) = ratios.containers[0].lines[2]
    low, high = bars.get_segments()[1][:, 1]
    assert (low, high) == pytest.approx((1.4, 1.7))
    bottom, top = ratios.get_ylim()
    assert bottom <= 0.94
    assert top >= 1.7
    assert [label.get_text() for label in ratios.get_xticklabels()] == ["only", "other"]
    legend = [text.get_text() for text in ratios.get_legend().get_texts()]
    assert legend == ["0.97 to 1.03", "not bit-identical"]


def test_a_median_may_lie_outside_of_the_quartiles(monkeypatch, results):
    # Nearly all samples in one tick, within which the median is spread, and the quartiles are not.
    few, most = 29.120e-6, 29.152e-6
    tied, mirrored = (
        dataclasses.replace(
            results[0], pytorch=dataclasses.replace(results[0].pytorch, seconds=seconds, batches=())
        )
        for seconds in ((few,) * 20 + (most,) * 80, (few,) * 80 + (most,) * 20)
    )
    assert tied.pytorch.median < tied.pytorch.quantile(0.25)
    assert mirrored.pytorch.median > mirrored.pytorch.quantile(0.75)
    times, _ = drawn(monkeypatch, [tied, mirrored])
    (bars,) = times.containers[0].lines[2]
    for result, (low, high) in zip(
        (tied, mirrored), (segment[:, 1] for segment in bars.get_segments()), strict=True
    ):
        assert low <= 1e6 * result.pytorch.median <= high


def test_an_unbounded_interval_reaches_to_the_pictures_ends(monkeypatch, results):
    unbounded = dataclasses.replace(results[0], ratio=Ratio(1.2, -math.inf, math.inf))
    _, ratios = drawn(monkeypatch, [unbounded])
    (bars,) = ratios.containers[0].lines[2]
    ends = bars.get_segments()[0][:, 1]
    assert tuple(ends) == pytest.approx(ratios.get_ylim())
    assert ratios.get_ylim() == pytest.approx((0.94, 1.21))


def test_a_png_of_sensible_size_for_one_and_for_many(results):
    for count in (1, 200):
        content = plot.draw(results[:1] * count, "title", ".PNG")
        assert content.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", content[16:24])
        assert 500 < height < 1500
        assert 1000 < width < 6000


def test_needs_no_display_and_leaves_pyplot_alone(monkeypatch, results):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    assert b"<svg" in plot.draw(results, "title", ".svg")
    assert "matplotlib.pyplot" not in sys.modules


def test_names_may_have_any_characters(results):
    layer = dataclasses.replace(results[0].layer, names=("$\\foo$ \x1b",))
    content = plot.draw([dataclasses.replace(results[0], layer=layer)], "title", ".png")
    assert content.startswith(b"\x89PNG")


def test_type_of_picture_is_checked():
    check_plot("out.png")
    check_plot("OUT.SVG")
    for name in ("out.xyz", "out", "out.pgf"):
        with pytest.raises(InputError, match=f"{name}: .* name must end in .*.png"):
            check_plot(name)


def test_settings_that_matplotlib_refuses_are_told():
    done = subprocess.run(
        [sys.executable, "-m", "convtime", "conv", "--device", "cpu", "--plot", "out.png"],
        env={**os.environ, "MPLBACKEND": "nope"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (2, "")
    says = (
        r"convtime: error: plots require matplotlib, .* raised ValueError: .*'nope'.*MPLBACKEND.*\n"
    )
    assert re.fullmatch(says, done.stderr)


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'convtime\[plot\]'") as raised:
        check_plot("out.png")
    assert isinstance(raised.value, ImportError)  # as for data frames without pandas


def measurement(**changes):
    """Forty samples of four batches, whose clock falls, and three that were discarded."""
    fields = {
        "name": "$relu$ \x1b",
        "seconds": tuple(1e-6 * (10 + place % 5) for place in range(40)),
        "batches": tuple(place // 10 for place in range(40)),
        "discarded": (3e-5, 2e-5, 2.5e-5),
        "sm_clocks_hz": (*(1.98e9,) * 20, None, *(1.5e9,) * 19),
        "max_sm_clock_hz": 1.98e9,
    }
    return make(**fields | changes)


def test_samples_are_drawn_with_their_clocks_and_the_discarded_beside_them():
    one = measurement()
    times, discarded, clocks = one.plot_samples().axes
    every, throttled = times.lines[:2]
    assert every.get_ydata() == pytest.approx([1e6 * second for second in one.seconds])
    assert list(throttled.get_xdata()) == list(range(21, 40))
    assert [line.get_xdata()[0] for line in times.lines[3:]] == [9.5, 19.5, 29.5]  # batches
    assert discarded.lines[0].get_ydata() == pytest.approx([30, 20, 25])
    assert discarded.get_title() == "3 discarded"
    shown = clocks.lines[0].get_ydata()
    assert (shown[0], shown[39]) == pytest.approx((1980, 1500))
    assert math.isnan(shown[20])
    assert times.get_yscale() == "linear"


POWER = ((0.0, 120.0), (0.1, None), (0.2, 690.0))


def test_samples_without_clocks_and_outliers_are_drawn():
    one = measurement(sm_clocks_hz=(), max_sm_clock_hz=None, discarded=(), batches=())
    (times,) = one.plot_samples().axes
    assert times.get_yscale() == "linear"
    (times,) = dataclasses.replace(one, seconds=(*one.seconds, 1e-3)).plot_samples().axes
    assert times.get_yscale() == "log"
    readings = tuple(ClockReading(at, None, None, watts, None, ()) for at, watts in POWER)
    *_, power = dataclasses.replace(one, conditions=readings).plot_samples().axes
    assert power.lines[0].get_xydata() == pytest.approx(np.array([POWER[0], POWER[2]]))
    few = dataclasses.replace(one, seconds=(0.0,))
    assert len(few.plot_samples().axes) == 1


def test_a_comparison_is_drawn_with_ratios_beside_times():
    base = measurement(discarded=(), sm_clocks_hz=(), batches=())
    slower = dataclasses.replace(base, seconds=tuple(2 * second for second in base.seconds))
    few = Comparison(
        {"base": base, "$slower$": slower}, same_results={"$slower$": Agreement(False, "off")}
    )
    times, ratios = few.plot().axes
    labels = [label.get_text() for label in times.get_yticklabels()]
    assert labels == ["base\nbaseline", "$slower$\nslower, OTHER RESULT"]
    medians = [np.ravel(line.get_xydata()) for line in times.lines if line.get_marker() == "o"]
    assert medians[0] == pytest.approx((1e6 * base.median, 0))
    assert medians[1] == pytest.approx((1e6 * slower.median, 1))
    (ratio,) = [line for line in ratios.lines if line.get_marker() == "o"]
    assert np.ravel(ratio.get_xydata()) == pytest.approx((2, 1))
    idle = dataclasses.replace(base, method="kernel", seconds=(0.0,) * 40)
    Comparison({"idle": idle, "base": base}).plot().savefig(io.BytesIO())


def test_a_trace_may_have_any_words():
    hostile = "$\\foo$ \x1b"
    reading = ClockReading(0.1, 1.5e9, None, None, None, (hostile,))
    trace = ClockTrace(hostile, 0.1, 0.0, (reading, reading))
    trace.plot().savefig(io.BytesIO())


def test_plots_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    one = measurement()
    for draw in (one.plot_samples, Comparison({"one": one}).plot):
        with pytest.raises(ValueError, match=r"pip install 'convtime\[plot\]'"):
            draw()
