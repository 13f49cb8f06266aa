"""A measurement as one line, and as HTML."""

from __future__ import annotations

import dataclasses
import json
import math
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.device.clock_trace import ClockReading, ClockTrace
from convtime.exchange.other_tools import of_samples
from convtime.timing.comparison import Comparison
from convtime.timing.measurement import Ceilings, HostReading, Measurement
from convtime.view import html
from convtime.view.shown import blocks_of
from tests.helpers.figures import table, tables
from tests.helpers.measurements import changed, make, on_cpu
from tests.helpers.recorded import activity, layers
from tests.helpers.texts import flat
from tests.helpers.traces import TRACES, measurement


def as_asked(**changes: Any) -> Measurement:
    """A measurement by kernel times with a cold cache, of which all is as it was asked for."""
    seconds = tuple(1e-6 * (4 + step / 100) for step in range(20))
    fields: dict[str, Any] = {"seconds": seconds, "activities": (), "sm_clocks_hz": ()}
    fields |= {"method": "kernel", "method_requested": "kernel", "metric": "busy"}
    fields |= {"queue": "gate", "queue_requested": "gate"}
    fields |= {"regime": "burst", "regime_requested": "auto"}
    return make(**fields | changes)


def test_a_measurement_is_one_line() -> None:
    line = "relu: 4.095 µs [4.050, 4.140], kernel, cache cold, regime burst"
    assert str(as_asked()) == line
    assert repr(as_asked()) == f"<convtime.Measurement {line}>"
    on_cpu = as_asked(device="cpu", method="cpu", method_requested="auto", cache="uncontrolled")
    on_cpu = changed(on_cpu, cache_requested="auto", queue="none")
    assert str(on_cpu) == "relu: 4.095 µs [4.050, 4.140], cpu, cache uncontrolled"
    theirs = of_samples("theirs", (4e-6,) * 10, "nvbench", {})
    assert str(theirs) == "theirs: 4.000 µs [4.000, 4.000]", "what a tool leaves out is left out"
    assert "method: unknown" in flat(theirs)
    assert str(as_asked(method_requested="unknown", cache_requested="unknown")) == line


RESERVATIONS: list[tuple[dict[str, Any], str]] = [
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
    ({"metric": "elapsed", "metric_requested": "span"}, "metric elapsed where span was asked for"),
    ({"inputs": ("args[0] is all zeros",)}, "inputs to be noted"),
    ({"seconds": (1e-6,) * 5}, "5 samples are too few for an interval"),
    ({"seconds": (1e-6,) * 6}, ""),
    ({"cache": "warm", "steady": False}, "cache warm where cold was asked for, not steady"),
]


def test_the_line_says_what_is_not_as_asked_for() -> None:
    for changes, said in RESERVATIONS:
        assert str(as_asked(**changes)).partition("; but ")[2] == said, changes


def test_times_that_are_no_numbers_are_shown() -> None:
    unseen = dataclasses.replace(activity("relu"), seconds=(None,))
    never = as_asked(seconds=(math.inf,) * 10, activities=(unseen,))
    assert str(never).startswith("relu: inf s, kernel")
    assert "nan s 1×1×1 1×1×1 relu" in flat(never)
    assert "<svg" not in never._repr_html_()
    Comparison({"a": never, "b": never})._repr_html_()


def test_details_name_the_kernels() -> None:
    told = layers()["float32 nchw layer1.0.conv2"].pytorch.details()
    assert told.count(" nchwToNhwcKernel") == 2
    assert "73.20 µs  30×4×1   384×1×1  sm90_xmma_fprop_implicit_gemm_" in told
    assert "memset of 4 bytes" in told


def picture_in(text: str) -> ElementTree.Element:
    _, svg = text.split("<svg")
    return ElementTree.fromstring(f"<svg{svg.partition('</svg>')[0]}</svg>")


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.add(tag)


def test_a_histogram_holds_every_sample() -> None:
    for name in ("matmul from idle", "relu cold", "relu by events"):
        measured = measurement(TRACES[name][0])
        figure, *_ = measured.figures()
        bars = table(figure, "start", "samples")
        assert 2 < len(bars["samples"]) <= 50
        assert sum(bars["samples"]) == len(measured.seconds)
        assert figure.description.startswith(f"Histogram of {len(measured.seconds)} samples")


def test_a_comparison_is_drawn_with_its_verdicts() -> None:
    pytest.importorskip("vl_convert")
    base, other = map(measurement, TRACES["2 % slower"])
    text = Comparison({"base": base, "other": other})._repr_html_()
    label = picture_in(text).attrib["aria-label"]
    assert label.endswith("base: baseline; other: slower.")
    assert "other is slower than base: it takes 1.96% more time" in text


ENDS = st.sampled_from(["<script>alert(1)</script>", "'\"><img src=x>", "&lt;", "\x00\u202e", ""])
SECONDS = st.floats(min_value=0, max_value=1e300)


@settings(max_examples=30)
@given(st.text(), ENDS, st.lists(SECONDS, min_size=1, max_size=30), st.integers(0, 9))
def test_no_name_and_no_time_breaks_the_page(
    name: str, end: str, seconds: list[float], turn: int
) -> None:
    name += end
    one = as_asked(name=name, seconds=tuple(seconds), cache_reason=name)
    compared = Comparison({name: one, "other": changed(one, name="other", inputs=(name,))})
    for result in (one, compared):
        tags = Tags(html.render(blocks_of(result))).found
        table = {"table", "caption", "tr", "th", "td"}
        assert tags - table <= {"p", "br", "ul", "li", "details", "summary"}
        for figure in result.figures():
            json.dumps(figure.spec, allow_nan=False)
        if turn == 0:  # a picture takes long to draw
            pytest.importorskip("vl_convert")
            elements = picture_in(result._repr_html_()).iter()
            assert not any(element.tag.endswith("script") for element in elements)
    for line in (str(one), repr(compared), *compared.details().splitlines()):
        assert line.isprintable()


def traced(*clocks_mhz: float | None, reason: str = "") -> ClockTrace:
    clocks_hz = [None if mhz is None else 1e6 * mhz for mhz in clocks_mhz]
    readings = tuple(
        ClockReading(at / 10, hertz, None, 400.0 + at, None, ("sw_power_cap",) * (at > 0))
        for at, hertz in enumerate(clocks_hz)
    )
    return ClockTrace("cuda:0", 0.1, 0.0, readings, reason)


def test_a_trace_is_one_line_with_the_ranges() -> None:
    trace = traced(1980, None, 1500, reason="NVML went away")
    assert str(trace) == (
        "cuda:0: 3 readings in 0.2 s: SM clock 1500 .. 1980 MHz, power 400 .. 402 W, throttled by "
        "sw_power_cap; but NVML went away"
    )
    assert repr(trace) == f"<convtime.ClockTrace {trace}>"
    for said in (
        "SM clock 1500 MHz 1740 MHz 1980 MHz power 400 W 401 W 402 W",
        "throttled by sw_power_cap in 2 of 3 readings stopped early: NVML went away",
    ):
        assert said in flat(trace)
    (figure,) = trace.figures()
    clock, power = (drawn["value"] for drawn in tables(figure, "value"))
    assert clock == [1980, None, 1500]  # with a gap where the clock is not known
    assert power == [400, 401, 402]
    unknown = ClockTrace("cuda:0", 0.1, 0.0, (ClockReading(0.1, *[None] * 5),) * 2)
    assert str(unknown) == "cuda:0: 2 readings in 0.1 s: no quantity was reported"
    assert str(traced()) == "cuda:0: no readings: the block is still running"
    nothing = traced(reason="NVML <is> not there")
    assert str(nothing) == nothing.details() == "cuda:0: no readings: NVML <is> not there"
    assert nothing._repr_html_() == "<p>cuda:0: no readings: NVML &lt;is&gt; not there</p>"


def test_clocks_and_what_was_read_beside_them_are_shown_as_ranges() -> None:
    readings = (
        ClockReading(0.0, None, None, 120.0, 40.0, ()),
        ClockReading(0.1, 1.5e9, None, 690.0, 41.0, ("sw_power_cap",)),
    )
    one = changed(
        make(seconds=(1e-6,) * 4, sm_clocks_hz=(1.98e9, None, 1.5e9, 1.9e9)), conditions=readings
    )
    assert Measurement.from_dict(one.to_dict()) == one
    for said in (
        "SM clock: 1500 .. 1980 MHz of 1980; 1 samples below 95% of that",
        "power: 120 .. 690 W",
        "temperature: 40 .. 41 °C",
        "throttled by: sw_power_cap",
    ):
        assert said in flat(one)
    unknown = changed(one, conditions=(), conditions_reason="NVML is not there")
    assert "conditions: unknown: NVML is not there" in flat(unknown)


AMOUNTS = st.integers(0, 10_000)


@settings(max_examples=20)
@given(
    st.lists(st.tuples(*[AMOUNTS] * 5, st.integers(1, 50)), min_size=1, max_size=3),
    st.integers(1, 1000),
)
def test_what_the_host_did_is_per_call_and_per_second(
    drawn: list[tuple[int, ...]], repeats: int
) -> None:
    readings = tuple(
        HostReading(
            *(samples, 0.1 * samples, 0.1 * samples),
            voluntary_switches=voluntary,
            involuntary_switches=involuntary,
            minor_faults=faults,
            others_seconds=0.001 * others,
            instructions=1e6 + instructions,
            cycles=4e5,
            threads=3,
        )
        for voluntary, involuntary, faults, others, instructions, samples in drawn
    )
    one = on_cpu(host=readings, repeats=repeats, nbytes=3e6, provenance={"cores": 2})
    voluntary, involuntary, faults, others, instructions, samples = np.sum(drawn, axis=0)
    calls = repeats * samples
    per_cycle = (1e6 * len(drawn) + instructions) / (4e5 * len(drawn))
    for said in (
        f"page faults: {faults / calls:.4g} per call",
        f"{voluntary / calls:.2g} voluntary, {involuntary / calls:.2g} forced, per call",
        f"other processes: used {0.001 * others / (0.1 * samples):.1f} cores",
        f", {per_cycle:.1f} per cycle",
    ):
        assert said in flat(one)
    assert "3 threads on 2 cores" in str(one)
    assert "threads on" not in str(changed(one, provenance={"cores": 3}))


def test_shares_are_of_what_is_attainable_and_between_placements() -> None:
    rates = Ceilings(bytes_per_second=4e9, flops_per_second=1e12, matmul_dtype="float32")
    one = on_cpu((1e-3,) * 30, nbytes=1e6, flops=1e8, ceilings=rates)
    assert "memory: 1 GB/s (25.0% of this device's copy)" in flat(one)
    assert "compute: 0.1 TFLOP/s (10.0% of this device's float32 matmul)" in flat(one)
    placed = changed(one, placements=12, placement_variance_share=0.25)
    assert "12 places with 25% of the variance between them" in flat(placed)
