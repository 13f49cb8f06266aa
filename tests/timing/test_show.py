"""A measurement as one line, and as HTML."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.core import html
from convtime.device.clock_reading import ClockReading
from convtime.device.clock_trace import ClockTrace
from convtime.exchange.unknown import of_samples
from convtime.timing.comparison import Comparison
from convtime.timing.measurement import Measurement
from tests.helpers.figures import table, tables
from tests.helpers.measurements import changed, make
from tests.helpers.recorded import activity, layers
from tests.helpers.texts import flat
from tests.helpers.traces import TRACES


def as_asked(**changes: Any) -> Measurement:
    """A measurement by kernel times with a cold cache, of which all is as it was asked for."""
    fields: dict[str, Any] = {
        "seconds": tuple(1e-6 * (4 + step / 100) for step in range(20)),
        "activities": (),
        "sm_clocks_hz": (),
        "method": "kernel",
        "method_requested": "kernel",
        "metric": "busy",
        "queue": "gate",
        "queue_requested": "gate",
        "regime": "burst",
        "regime_requested": "auto",
    }
    return make(**fields | changes)


def recorded(trace: Mapping[str, Any]) -> Measurement:
    """As tests/data/record.py wrote it."""
    fields = {**trace, "seconds": tuple(trace["seconds"]), "raw_seconds": ()}
    return as_asked(**fields | {"sm_clocks_hz": tuple(trace["sm_clocks_hz"])})


def test_a_measurement_is_one_line() -> None:
    line = "relu: 4.095 µs [4.050, 4.140], kernel, cache cold, regime burst"
    assert str(as_asked()) == line
    assert repr(as_asked()) == f"<convtime.Measurement {line}>"
    on_cpu = as_asked(device="cpu", method="cpu", method_requested="auto", cache="uncontrolled")
    on_cpu = changed(on_cpu, cache_requested="auto", queue="none")
    assert str(on_cpu) == "relu: 4.095 µs [4.050, 4.140], cpu, cache uncontrolled"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "event"}, "method event where kernel was asked for"),
        ({"cache": "warm"}, "cache warm where cold was asked for"),
        ({"cache": "warm", "cache_requested": "auto"}, ""),
        ({"placement_requested": "random"}, "placement as-is where random was asked for"),
        ({"pages_requested": "fresh"}, "pages as-is where fresh was asked for"),
        ({"regime_requested": "sustained"}, "regime burst where sustained was asked for"),
        ({"queue": "none"}, "queue not held"),
        ({"queue": "sleep"}, "queue held by sleep"),
        ({"queue": "none", "method": "cpu", "method_requested": "auto"}, ""),
        ({"overhead_reason": "CUPTI is taken"}, "with the method's own cost"),
        ({"steady": False}, "not steady"),
        ({"stop_reason": "budget"}, "ended by budget"),
        ({"stop_reason": "max_samples", "stop": "count"}, ""),
        ({"exclusive_requested": True}, "maybe disturbed"),
        ({"other_launches": 3}, "other threads used the GPU"),
        ({"unrecorded": ("cudaMemPrefetchAsync",)}, "not fully seen"),
        ({"metric": "elapsed"}, ""),
        (
            {"metric": "elapsed", "metric_requested": "span"},
            "metric elapsed where span was asked for",
        ),
        ({"inputs": ("args[0] is all zeros",)}, "inputs to be noted"),
        ({"seconds": (1e-6,) * 5}, "5 samples are too few for an interval"),
        ({"cache": "warm", "steady": False}, "cache warm where cold was asked for, not steady"),
    ],
)
def test_the_line_says_what_is_not_as_asked_for(changes: dict[str, Any], said: str) -> None:
    assert str(as_asked(**changes)).partition("; but ")[2] == said


def test_what_another_tool_does_not_say_is_left_out() -> None:
    theirs = of_samples("theirs", (4e-6,) * 10, "nvbench", {})
    assert str(theirs) == "theirs: 4.000 µs [4.000, 4.000]"
    assert "method: unknown" in flat(theirs)


def test_a_request_that_is_not_known_is_not_missed() -> None:
    assert str(as_asked(method_requested="unknown", cache_requested="unknown")) == str(as_asked())


def test_times_that_are_no_numbers_are_shown() -> None:
    never = as_asked(
        seconds=(math.inf,) * 10,
        activities=(dataclasses.replace(activity("relu"), seconds=(None,)),),
    )
    assert str(never).startswith("relu: inf s, kernel")
    assert "nan s 1×1×1 1×1×1 relu" in flat(never)
    assert "<svg" not in never._repr_html_()
    Comparison({"a": never, "b": never})._repr_html_()


def test_details_name_the_kernels() -> None:
    told = layers()["float32 nchw layer1.0.conv2"].pytorch.details()
    assert told.count(" nchwToNhwcKernel") == 2
    assert "73.20 µs  30×4×1   384×1×1  sm90_xmma_fprop_implicit_gemm_" in told
    assert "memset of 4 bytes" in told


class Pictures(HTMLParser):
    """The pictures of an HTML text, and every tag of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.pictures = [
            f"<svg{part.partition('</svg>')[0]}</svg>" for part in text.split("<svg")[1:]
        ]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)


@pytest.mark.parametrize("name", ["matmul from idle", "relu cold", "relu by events"])
def test_a_histogram_holds_every_sample(name: str) -> None:
    measured = recorded(TRACES[name][0])
    figure, *_ = measured.figures()
    bars = table(figure, "start", "samples")
    assert 2 < len(bars["samples"]) <= 50
    assert sum(bars["samples"]) == len(measured.seconds)
    assert figure.description.startswith(f"Histogram of {len(measured.seconds)} samples")


def test_a_comparison_is_drawn_with_its_verdicts() -> None:
    pytest.importorskip("vl_convert")
    base, other = map(recorded, TRACES["2 % slower"])
    compared = Comparison({"base": base, "other": other})
    (picture,) = Pictures(compared._repr_html_()).pictures
    root = ElementTree.fromstring(picture)
    assert root.attrib["aria-label"].endswith("base: baseline; other: slower.")
    assert "other is slower than base: it takes 1.96% more time" in compared._repr_html_()


ENDS = st.sampled_from(["<script>alert(1)</script>", "'\"><img src=x>", "&lt;", "\x00\u202e", ""])
SECONDS = st.floats(min_value=0, max_value=1e300)


def results_of(name: str, seconds: list[float]) -> tuple[Measurement, Comparison]:
    one = as_asked(name=name, seconds=tuple(seconds), cache_reason=name)
    other = dataclasses.replace(one, name="other", inputs=(name,))
    return one, Comparison({name: one, "other": other})


@settings(max_examples=50, deadline=None)
@given(st.text(), ENDS, st.lists(SECONDS, min_size=1, max_size=30))
def test_no_name_and_no_time_breaks_the_html(name: str, end: str, seconds: list[float]) -> None:
    one, compared = results_of(name + end, seconds)
    for result in (one, compared):
        found = Pictures(html.render(result._show.details(result)))
        assert found.tags <= {
            "p", "table", "caption", "tr", "th", "td", "br", "ul", "li", "details", "summary",
        }  # fmt: skip
        for figure in result.figures():
            json.dumps(figure.spec, allow_nan=False)
    assert "\n" not in str(one)
    assert str(one).isprintable()
    assert repr(compared).isprintable()
    assert compared.details().replace("\n", "").isprintable()


@settings(max_examples=8, deadline=None)
@given(st.text(), ENDS, st.lists(SECONDS, min_size=1, max_size=30))
def test_no_name_and_no_time_breaks_a_picture(name: str, end: str, seconds: list[float]) -> None:
    pytest.importorskip("vl_convert")
    for result in results_of(name + end, seconds):
        (picture,) = Pictures(result._repr_html_()).pictures
        assert not any(
            element.tag.endswith("script") for element in ElementTree.fromstring(picture).iter()
        )


def traced(*clocks_mhz: float | None, reason: str = "") -> ClockTrace:
    readings = tuple(
        ClockReading(
            place / 10, None if mhz is None else 1e6 * mhz, None, 400.0 + place, None,
            ("sw_power_cap",) if place else (),
        )
        for place, mhz in enumerate(clocks_mhz)
    )  # fmt: skip
    return ClockTrace("cuda:0", 0.1, 0.0, readings, reason)


def test_a_trace_is_one_line_with_the_ranges() -> None:
    trace = traced(1980, None, 1500, reason="NVML went away")
    assert str(trace) == (
        "cuda:0: 3 readings in 0.2 s: SM clock 1500 .. 1980 MHz, power 400 .. 402 W, throttled by "
        "sw_power_cap; but NVML went away"
    )
    assert repr(trace) == f"<convtime.ClockTrace {trace}>"
    assert flat(trace) == (
        f"cuda:0: 3 readings in 0.2 s lowest median highest {'─' * 38} SM clock 1500 MHz "
        "1740 MHz 1980 MHz power 400 W 401 W 402 W throttled by sw_power_cap in 2 of 3 readings "
        "stopped early: NVML went away"
    )
    (figure,) = trace.figures()
    clock, power = (drawn["value"] for drawn in tables(figure, "value"))
    assert clock == [1980, None, 1500]  # with a gap where the clock is not known
    assert power == [400, 401, 402]


def test_a_trace_without_readings_says_why() -> None:
    assert str(traced()) == "cuda:0: no readings: the block is still running"
    nothing = traced(reason="NVML <is> not there")
    assert str(nothing) == nothing.details() == "cuda:0: no readings: NVML <is> not there"
    assert nothing._repr_html_() == "<p>cuda:0: no readings: NVML &lt;is&gt; not there</p>"
