"""Show an EngineTable: the fastest engines and PyTorch's choice, all facts, and a figure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from convtime.conv.engine_table import EngineResult, EngineTable, PassEngines
from convtime.timing.show import estimate
from convtime.view.figure import (
    Figure,
    Spec,
    columns,
    intervals,
    labels,
    microseconds,
    numbers,
    quantity,
    series_color,
)
from convtime.view.page import Block, Details, Line, Sentences, Table
from convtime.view.wording import format_bytes, format_seconds, printable

# Engines with larger errors, relative to PyTorch's, are not a choice for the same model.
MOST_ERROR = 1.1
_NUMBERS = ("over PyTorch", "workspace", "error")
_MIB_PER_BYTE = 2.0**-20
_CHOICE, _OTHERS = "PyTorch's choice", "other engines"


def line(table: EngineTable) -> str:
    counts = ", ".join(
        f"{listing.name} {len(listing.timed)} of {len(listing.engines)} engines run"
        for listing in table.passes
    )
    return printable(f"{table.call.problem.label}, {table.call.dtype}: {counts}")


def printed(table: EngineTable) -> Iterator[Block]:
    yield Line(line(table), role="answer")
    for listing in table.passes:
        yield Table(
            ("", "time [95 %]", *_NUMBERS, "repeats", "listed"),
            [_row(listing, engine) for engine in listing.timed],
            right=_NUMBERS,
            title=_title(listing),
        )
        yield Sentences(_sentences(listing), role="caution")


def details(table: EngineTable) -> Iterator[Block]:
    yield from printed(table)
    for listing in table.passes:
        facts = Table(
            ("", "settings", "numerics", "behavior", "shared memory", "built in"),
            [_facts(engine) for engine in listing.timed],
        )
        refused = Table(
            ("not run", "why"),
            [(engine.tag, engine.refused) for engine in listing.engines if engine.refused],
        )
        yield Details([facts, refused], title=f"{listing.name} in full")


def _title(listing: PassEngines) -> str:
    plan = listing.pytorch_tag or f"not known: {listing.unknown}"
    return f"{listing.name}: PyTorch's plan is {plan}, its call takes {estimate(listing.pytorch)}"


def _row(listing: PassEngines, engine: EngineResult) -> list[str]:
    assert engine.measurement is not None
    name = f"{engine.tag} (PyTorch's)" if engine.tag == listing.pytorch_tag else engine.tag
    return [
        name,
        estimate(engine.measurement),
        f"{listing.pytorch.median / engine.measurement.median:.2f}×",
        _bytes(engine.workspace_bytes),
        "–" if engine.error is None else f"{engine.error:.1e}",
        "yes" if engine.repeats else "NO",
        ", ".join(f"{place} {position}" for place, position in engine.places),
    ]


def _sentences(listing: PassEngines) -> Iterator[str]:
    if not listing.engines:
        yield f"PyTorch selects {listing.backend}, which has no engines of cuDNN"
    elif not listing.timed:
        yield "no engine ran"
    refused = sum(1 for engine in listing.engines if engine.refused)
    if refused:
        yield f"{refused} engines were not run; details() has the reasons"
    theirs = math.inf if listing.pytorch_error is None else listing.pytorch_error
    larger = [
        engine.tag
        for engine in listing.timed
        if engine.error is not None and engine.error > MOST_ERROR * theirs
    ]
    if larger:
        yield f"less exact than {MOST_ERROR}× PyTorch's error, {theirs:.1e}: {', '.join(larger)}"


def _bytes(count: int | None) -> str:
    return "–" if count is None else format_bytes(count)


def _facts(engine: EngineResult) -> list[str]:
    settings = [
        f"k{each.knob} {each.minimum} to {each.maximum}"
        + (f" in steps of {each.step}" if each.step > 1 else "")
        for each in engine.knob_ranges
    ]
    built = "–" if engine.build_seconds is None else format_seconds(engine.build_seconds)
    return [
        engine.tag,
        ", ".join(settings) or "none",
        ", ".join(engine.numerical_notes) or "none",
        ", ".join(engine.behavior_notes) or "none",
        _bytes(engine.shared_memory_bytes),
        built,
    ]


def figures(table: EngineTable) -> Iterator[Figure]:
    if any(listing.timed for listing in table.passes):
        yield plot(table)


def plot(table: EngineTable) -> Figure:
    counts = ", ".join(f"{listing.name} {len(listing.timed)}" for listing in table.passes)
    return Figure(
        title=f"Engines for {table.call.problem.label}, {table.call.dtype}",
        description=(
            "Time of each engine of cuDNN against its workspace, with PyTorch's choice marked. "
            f"Engines that run: {counts}."
        ),
        view={"hconcat": [_panel(listing) for listing in table.passes if listing.timed]},
        key="dot: median; bar: its 95 % interval",
    )


def _panel(listing: PassEngines) -> Spec:
    # PyTorch's choice is drawn last, on top of the others.
    ordered = sorted(listing.timed, key=lambda each: each.tag == listing.pytorch_tag)
    timed = [(each, each.measurement) for each in ordered if each.measurement is not None]
    medians = microseconds(measured.median for _, measured in timed)
    ends = [measured.median_interval for _, measured in timed]
    time = quantity("time", "time (µs)", type="log")
    return {
        **columns(
            engine=labels(each.tag for each, _ in timed),
            workspace=numbers([each.workspace_bytes or 0 for each, _ in timed], _MIB_PER_BYTE),
            series=[_CHOICE if each.tag == listing.pytorch_tag else _OTHERS for each, _ in timed],
            time=medians,
            **intervals([low for low, _ in ends], [high for _, high in ends], 1e6),
        ),
        "title": listing.name,
        "width": 300,
        "height": 240,
        "encoding": {
            "x": quantity("workspace", "workspace (MiB)", type="symlog"),
            "color": series_color([_CHOICE, _OTHERS]),
        },
        "layer": [
            {
                "mark": "rule",
                "encoding": {"y": time | {"field": "low"}, "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "opacity": 1},
                "encoding": {
                    "y": time,
                    "shape": {
                        "field": "series",
                        "type": "nominal",
                        "title": None,
                        "scale": {"domain": [_CHOICE, _OTHERS], "range": ["square", "circle"]},
                    },
                },
            },
        ],
    }
