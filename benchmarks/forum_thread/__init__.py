"""Why a convolution takes another time in PyTorch than by itself: a forum's thread, measured.

A real training loop (ResNet-18, float32 in channels_last) runs for 1, 10, 100 and 1000 iterations
from a rest on, and so do three of its convolutions by themselves, call after call on the same data:
mean, minimum and maximum of their kernels' times, and the clock. Beside them convtime times the
same convolutions by themselves, each after a step of the loop: in its regime. Further rows are the
clock of the machine at rest, all groups of hardware counters of the convolutions' kernels in the
loop and with caches in different states, and each piece of the advice that the thread gives,
without and with it.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import results
from common import summaries

_SIZE = {"width": 280, "height": 200}
# What is drawn: in about the thread's colours, and convtime's answer beside them.
_APPLICATIONS = {
    "in_place": ("PyTorch", "#D55E00"),
    "isolated": ("isolated", "#0072B2"),
    "same_regime": ("isolated, after a step", "#009E73"),
}
_PLACES = {
    "in_place": ("PyTorch", "#D55E00"),
    "behind_the_step": ("isolated, after a step", "#009E73"),
    "dirty": ("isolated, dirty L2", "#0072B2"),
    "cold": ("isolated, after a flush that wrote", "#0072B2"),
    "clean": ("isolated, after one that read", "#0072B2"),
    "warm": ("isolated, warm", "#0072B2"),
}


def table(rows: list[results.Row]) -> str:
    lines = [
        (
            name,
            row["iterations"],
            *_mean_and_range(layer["in_place"]),
            *_mean_and_range(layer["isolated"]),
            f"{1e6 * layer['same_regime']['mean']:.2f}",
            f"{same_regime_ratios(row)[name]:.3f}",
        )
        for row in points_of(rows)
        for name, layer in row["layers"].items()
    ]
    header = (
        "convolution | iterations: | in PyTorch's loop (µs): | min–max: | by itself (µs): "
        "| min–max: | in the loop's regime (µs): | loop / that, medians:"
    )
    said = [f"- {sentence}" for sentence in sentences(rows)]
    return "\n".join([summaries.markdown(header, lines), "", *said])


def _mean_and_range(times: results.Row) -> tuple[str, str]:
    mean, low, high = (f"{1e6 * times[what]:.2f}" for what in ("mean", "min", "max"))
    return mean, f"{low}–{high}"


def counters_table(rows: list[results.Row]) -> str:
    lines = []
    for row in counted_of(rows):
        for metric, unit in row["units"].items():
            values = [_values(row, place).get(metric) for place in _PLACES]
            cells = ["–" if value is None else f"{value:.5g}" for value in values]
            lines.append([row["layer"], f"`{metric}` ({unit})", *cells])
    return summaries.markdown(
        " | ".join(["convolution | metric", *(f"{told}:" for told, _ in _PLACES.values())]), lines
    )


def _values(row: results.Row, place: str) -> dict[str, float]:
    values: dict[str, float] = (row["counted"][place] or {"values": {}})["values"]
    return values


def advice_table(rows: list[results.Row]) -> str:
    lines = []
    for row in (row for row in rows if "advice" in row):
        cells = ["", "", "", "", f"not measured: {row.get('reason')}"]
        if "reason" not in row:
            value, low, high = row["ratio"]
            ratio = f"{value:.3f}" if low is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"
            what = {"kernel": "the kernels", "sync": "the call, waited for"}.get(row["method"], "")
            times = [f"{1e6 * row[side]:.2f}" for side in ("without", "with")]
            cells = [what, *times, ratio, row["verdict"]]
        lines.append([row["advice"], *cells])
    header = "advice | time of | without (µs): | with (µs): | with / without: | verdict"
    return summaries.markdown(header, lines)


def picture(document: dict[str, Any]) -> bytes:
    """A PNG: for each convolution a column of times, clocks, and bytes written."""
    from convtime.view.figure import Figure, columns, intervals, numbers, quantity, series_color

    rows = document["rows"]
    found, at_rest = points_of(rows), idle(rows)
    given = [(row, who, label) for who, (label, _) in _APPLICATIONS.items() for row in found]
    color = series_color(*zip(*_APPLICATIONS.values(), strict=True))
    across = quantity("iterations", "iterations", type="log")
    line = {"type": "line", "point": True}

    def times(name: str) -> dict[str, Any]:
        times = [row["layers"][name][who] for row, who, _ in given]
        time = quantity("mean", "kernel time (µs)")
        band = {"y": time | {"field": "low"}, "y2": {"field": "high"}}
        return {
            **columns(
                series=[label for _, _, label in given],
                iterations=[row["iterations"] for row, _, _ in given],
                mean=numbers([each["mean"] for each in times], 1e6),
                **intervals([each["min"] for each in times], [each["max"] for each in times], 1e6),
            ),
            "title": name,
            **_SIZE,
            "encoding": {"x": across, "color": color},
            "layer": [
                {"mark": {"type": "area", "opacity": 0.15}, "encoding": band},
                {"mark": line, "encoding": {"y": time}},
            ],
        }

    def clocks() -> dict[str, Any]:
        clock = quantity("clock", "SM clock (MHz)")
        known = [
            (label, row["iterations"], hz)
            for row, who, label in given
            if (hz := clock_of(row, who)) is not None
        ]
        series, iterations, rates = zip(*known, strict=True) if known else ((), (), ())
        layer = columns(series=series, iterations=iterations, clock=numbers(rates, 1e-6))
        layers = [layer | {"mark": line, "encoding": {"x": across, "y": clock, "color": color}}]
        if at_rest is not None and at_rest["sm_clock_hz"] is not None:
            rule = {"type": "rule", "style": "ink", "strokeDash": [2, 2]}
            data = {"values": [{"clock": at_rest["sm_clock_hz"] / 1e6}]}
            layers.append({"data": data, "mark": rule, "encoding": {"y": clock}})
        return {**_SIZE, "layer": layers}

    def writes(name: str) -> dict[str, Any]:
        layer = [row for row in counted_of(rows) if row["layer"] == name][:1]
        known = [
            (label, colour, value)
            for place, (label, colour) in _PLACES.items()
            for row in layer
            if (value := written(_values(row, place))) is not None
        ]
        places, colours, values = zip(*known, strict=True) if known else ((), (), ())
        return {
            **columns(place=places, colour=colours, written=numbers(values, 1e-6)),
            **_SIZE,
            "mark": "bar",
            "encoding": {
                "x": quantity("written", "dram_write (MB per launch)", zero=True),
                "y": {"field": "place", "type": "nominal", "sort": None, "title": None},
                "color": {"field": "colour", "type": "nominal", "scale": None},
            },
        }

    facts = document["provenance"]
    panels = [{"vconcat": [times(name), clocks(), writes(name)]} for name in found[0]["layers"]]
    return Figure(
        title=f"{facts['gpu'] or 'CPU'}, torch {facts['torch']}",
        description="Times, clocks and bytes written of convolutions in a loop and alone.",
        view={"hconcat": panels},
        key="dot: mean; band: minimum to maximum; dotted: clock when idle",
    ).content(".svg")


#: What GPUs call the bytes that are read from memory and written to it.
DRAM_READ = ("dram__bytes_read.sum", "dram__bytes_op_read.sum")
DRAM_WRITE = ("dram__bytes_write.sum", "dram__bytes_op_write.sum")
_SIDES = {
    "behind_the_step": "after a step",
    "dirty": "with a dirty L2 cache",
    "cold": "after a flush that wrote",
    "clean": "after one that read",
    "warm": "call after call",
}
_SAME = 0.02  # share of a time up to which another one is the same
_FEWEST = 3  # iterations, below which a mean says nothing


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Ratios of the medians in the loop over those by themselves in its regime, over all points."""
    ratios = [ratio for row in points_of(rows) for ratio in same_regime_ratios(row).values()]
    found = [dirty_over_in_place(row) for row in counted_of(rows)]
    writes = [ratio for ratio in found if ratio is not None]
    return summaries.known(
        iteration_points=len(points_of(rows)),
        same_regime_ratio_min=min(ratios, default=None),
        same_regime_ratio_max=max(ratios, default=None),
        dram_write_isolated_over_in_place_min=min(writes, default=None),
        dram_write_isolated_over_in_place_max=max(writes, default=None),
    )


def points_of(rows: Sequence[results.Row]) -> list[results.Row]:
    return sorted((row for row in rows if "iterations" in row), key=lambda row: row["iterations"])


def counted_of(rows: Sequence[results.Row]) -> list[results.Row]:
    return [row for row in rows if "counted" in row]


def idle(rows: Sequence[results.Row]) -> results.Row | None:
    return next((row for row in rows if row["key"] == "idle"), None)


def same_regime_ratios(row: results.Row) -> dict[str, float]:
    return {
        name: layer["in_place"]["median"] / layer["same_regime"]["median"]
        for name, layer in row["layers"].items()
    }


def written(values: Mapping[str, float]) -> float | None:
    """Bytes written to memory, which GPUs have by different names; None where not known."""
    return next((values[name] for name in DRAM_WRITE if name in values), None)


def dirty_over_in_place(row: results.Row) -> float | None:
    """Bytes written; None where they are not known, or the two launch the kernel differently."""
    in_place, alone = row["counted"]["in_place"], row["counted"]["dirty"]
    if None in (in_place, alone) or in_place["launches"] != row["count"] * alone["launches"]:
        return None
    inside, outside = (written(each["values"]) for each in (in_place, alone))
    return outside / inside if inside and outside is not None else None


def sentences(rows: Sequence[results.Row]) -> Iterator[str]:
    found = points_of(rows)
    at_rest = idle(rows)
    if at_rest is not None and at_rest["sm_clock_hz"] is not None:
        yield f"At rest the GPU's multiprocessors have a clock of {_mhz(at_rest['sm_clock_hz'])}."
    long = [row for row in found if row["iterations"] >= _FEWEST]
    if long and found[0] is not long[-1]:
        yield from _courses(found[0], long[-1])
    ratios = [ratio for row in long for ratio in same_regime_ratios(row).values()]
    if ratios:
        yield _on_regimes(ratios, long)
    for row in counted_of(rows):
        yield from _on_writes(row)
    for reason in {row["reason"]: None for row in rows if "layer" in row and "reason" in row}:
        yield f"Counters were not read: {reason}."


def _courses(first: results.Row, last: results.Row) -> Iterator[str]:
    for who, what in (("in_place", "in PyTorch's loop"), ("isolated", "by itself")):
        changes = [
            last["layers"][name][who]["mean"] / first["layers"][name][who]["mean"] - 1
            for name in first["layers"]
        ]
        yield (
            f"From {first['iterations']} to {last['iterations']} iterations, the mean time of a "
            f"convolution {what} changes by {min(changes):+.1%} to {max(changes):+.1%}."
        )
    clocks = [last["in_place_clock_hz"]]
    clocks += [layer["isolated"]["sm_clock_hz"] for layer in last["layers"].values()]
    if all(clock is not None for clock in clocks):
        yield (
            f"Meanwhile the clock is {_mhz(clocks[0])} in the loop, and by themselves "
            f"{_mhz(min(clocks[1:]))} to {_mhz(max(clocks[1:]))}."
        )


def _on_regimes(ratios: Sequence[float], rows: Sequence[results.Row]) -> str:
    layers = [layer for row in rows for layer in row["layers"].values()]
    alone = [layer["in_place"]["median"] / layer["isolated"]["median"] for layer in layers]
    told = (
        f"A convolution in the loop takes {min(alone):.3f} to {max(alone):.3f} times what it takes "
        f"by itself, call after call; after a step of the loop, in its regime, "
        f"{min(ratios):.3f} to {max(ratios):.3f} times."
    )
    if any(layer["in_place"]["kernels"] != layer["same_regime"]["kernels"] for layer in layers):
        return f"{told} The kernels are not the same in all of them."
    if max(abs(ratio - 1) for ratio in ratios) > _SAME:
        return f"{told} So the regime does not explain all of the difference."
    if max(abs(ratio - 1) for ratio in alone) <= _SAME:
        return f"{told} So there is no difference here to explain."
    return f"{told} So it is the state of the GPU that makes the difference, and not the kernels."


def _on_writes(row: results.Row) -> Iterator[str]:
    inside, dirty = row["counted"]["in_place"], row["counted"]["dirty"]
    if inside is None:
        yield f"{row['layer']}: the step does not launch the kernel that runs by itself."
        return
    launched = row["count"] * dirty["launches"] if dirty is not None else 0
    if launched != inside["launches"]:
        yield (
            f"{row['layer']}: a step's forward pass launches the kernel {inside['launches']} "
            f"times, and as many convolutions by themselves {launched} times, so that they cannot "
            "be compared."
        )
        return
    in_loop = written(inside["values"])
    if not in_loop:
        return
    told = [
        f"{value / in_loop:.2f} {how}"
        for place, how in _SIDES.items()
        if (value := written(_values(row, place))) is not None
    ]
    yield (
        f"{row['layer']}: in the loop the kernel writes {in_loop / 1e6:.1f} MB to memory, and by "
        f"itself, as a share of that, {', '.join(told)}."
    )


def _mhz(clock: float) -> str:
    return f"{clock / 1e6:.0f} MHz"


def clock_of(row: results.Row, who: str) -> float | None:
    if who == "in_place":
        clock: float | None = row["in_place_clock_hz"]
        return clock
    known = [layer[who]["sm_clock_hz"] for layer in row["layers"].values()]
    return None if None in known else statistics.median(known)
