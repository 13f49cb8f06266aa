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
from collections.abc import Iterable, Iterator
from typing import Any

import results
from common import summaries

#: What GPUs call the bytes that are read from memory and written to it.
DRAM_READ = ("dram__bytes_read.sum", "dram__bytes_op_read.sum")
DRAM_WRITE = ("dram__bytes_write.sum", "dram__bytes_op_write.sum")
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
_SIDES = {
    "behind_the_step": "after a step",
    "dirty": "with a dirty L2 cache",
    "cold": "after a flush that wrote",
    "clean": "after one that read",
    "warm": "call after call",
}
_SAME = 0.02  # share of a time up to which another one is the same
_FEWEST = 3  # iterations, below which a mean says nothing
_SIZE = {"width": 280, "height": 200}


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Ratios of the medians in the loop over those by themselves in its regime, over all points."""
    points = points_of(rows)
    ratios = [*ratios_over(points, "same_regime")]
    writes = [
        _written(_values(row, "dirty")) / _written(_values(row, "in_place"))
        for row in counted_of(rows)
        if launches_alike(row)
    ]
    return summaries.known(
        iteration_points=len(points),
        same_regime_ratio_min=min(ratios, default=None),
        same_regime_ratio_max=max(ratios, default=None),
        dram_write_isolated_over_in_place_min=min(writes, default=None),
        dram_write_isolated_over_in_place_max=max(writes, default=None),
    )


def points_of(rows: list[results.Row]) -> list[results.Row]:
    return sorted((row for row in rows if "iterations" in row), key=lambda row: row["iterations"])


def ratios_over(points: Iterable[results.Row], which: str) -> Iterator[float]:
    """Of the medians in the loop over those by themselves: "isolated", or in "same_regime"."""
    for row in points:
        for layer in row["layers"].values():
            yield layer["in_place"]["median"] / layer[which]["median"]


def counted_of(rows: list[results.Row]) -> list[results.Row]:
    return [row for row in rows if "counted" in row]


def _values(row: results.Row, place: str) -> dict[str, float]:
    """What one launch has of each metric; nothing where the kernel is not launched."""
    values: dict[str, float] = (row["counted"][place] or {"values": {}})["values"]
    return values


def _written(values: dict[str, float]) -> float:
    """Bytes written to memory, which GPUs have by different names."""
    return next(values[name] for name in DRAM_WRITE if name in values)


def launches_alike(row: results.Row) -> bool:
    """Whether the step launches the kernel as often as as many convolutions by themselves."""
    in_place, alone = row["counted"]["in_place"], row["counted"]["dirty"]
    launches = None not in (in_place, alone) and row["count"] * alone["launches"]
    return bool(launches and launches == in_place["launches"])


def table(rows: list[results.Row]) -> str:
    lines = [
        (
            name,
            row["iterations"],
            *_mean_and_range(layer["in_place"]),
            *_mean_and_range(layer["isolated"]),
            f"{1e6 * layer['same_regime']['mean']:.2f}",
            f"{layer['in_place']['median'] / layer['same_regime']['median']:.3f}",
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


def sentences(rows: list[results.Row]) -> Iterator[str]:
    points = points_of(rows)
    idle_hz = summaries.by_key(rows)["idle"]["sm_clock_hz"]
    yield f"At rest the GPU's multiprocessors have a clock of {_mhz(idle_hz)}."
    first, last = points[0], points[-1]
    course = f"From {first['iterations']} to {last['iterations']} iterations, the mean time of a"
    for who, what in (("in_place", "in PyTorch's loop"), ("isolated", "by itself")):
        changes = [
            layer[who]["mean"] / first["layers"][name][who]["mean"] - 1
            for name, layer in last["layers"].items()
        ]
        yield (
            f"{course} convolution {what} changes by {min(changes):+.1%} to {max(changes):+.1%}."
        )
    clocks = [layer["isolated"]["sm_clock_hz"] for layer in last["layers"].values()]
    yield (
        f"Meanwhile the clock is {_mhz(last['in_place_clock_hz'])} in the loop, and by themselves "
        f"{_mhz(min(clocks))} to {_mhz(max(clocks))}."
    )
    long = [row for row in points if row["iterations"] >= _FEWEST]
    alone, ratios = ([*ratios_over(long, which)] for which in ("isolated", "same_regime"))
    yield (
        f"A convolution in the loop takes {min(alone):.3f} to {max(alone):.3f} times what it takes "
        f"by itself, call after call; after a step of the loop, in its regime, "
        f"{min(ratios):.3f} to {max(ratios):.3f} times. {_conclusion(alone, ratios)}"
    )
    yield from map(_on_writes, counted_of(rows))


def _conclusion(alone: list[float], ratios: list[float]) -> str:
    if max(abs(ratio - 1) for ratio in ratios) > _SAME:
        return "So the regime does not explain all of the difference."
    if max(abs(ratio - 1) for ratio in alone) <= _SAME:
        return "So there is no difference here to explain."
    return "So it is the state of the GPU that makes the difference, and not the kernels."


def _on_writes(row: results.Row) -> str:
    if not launches_alike(row):
        inside, dirty = row["counted"]["in_place"], row["counted"]["dirty"]
        return (
            f"{row['layer']}: a step's forward pass launches the kernel {inside['launches']} "
            f"times, and as many convolutions by themselves {row['count'] * dirty['launches']} "
            "times, so that they cannot be compared."
        )
    in_loop = _written(_values(row, "in_place"))
    shares = [
        f"{_written(_values(row, place)) / in_loop:.2f} {how}" for place, how in _SIDES.items()
    ]
    return (
        f"{row['layer']}: in the loop the kernel writes {in_loop / 1e6:.1f} MB to memory, and by "
        f"itself, as a share of that, {', '.join(shares)}."
    )


def _mhz(clock: float) -> str:
    return f"{clock / 1e6:.0f} MHz"


def counters_table(rows: list[results.Row]) -> str:
    lines = []
    for row in counted_of(rows):
        for metric, unit in row["units"].items():
            values = [_values(row, place).get(metric) for place in _PLACES]
            cells = ["–" if value is None else f"{value:.5g}" for value in values]
            lines.append([row["layer"], f"`{metric}` ({unit})", *cells])
    return summaries.markdown(
        " | ".join(["convolution | metric", *(f"{label}:" for label, _ in _PLACES.values())]), lines
    )


def advice_table(rows: list[results.Row]) -> str:
    lines = []
    for row in (row for row in rows if "advice" in row):
        cells = ["", "", "", "", f"not measured: {row.get('reason')}"]
        if "reason" not in row:
            value, low, high = row["ratio"]
            ratio = f"{value:.3f}" if low is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"
            what = {"kernel": "the kernels", "sync": "the call, waited for"}[row["method"]]
            times = [f"{1e6 * row[side]:.2f}" for side in ("without", "with")]
            cells = [what, *times, ratio, row["verdict"]]
        lines.append([row["advice"], *cells])
    header = "advice | time of | without (µs): | with (µs): | with / without: | verdict"
    return summaries.markdown(header, lines)


def picture(document: dict[str, Any]) -> bytes:
    """For each convolution a column of times, clocks, and bytes written."""
    from convtime.view.figure import Figure, columns, intervals, numbers, quantity, series_color

    rows = document["rows"]
    found = points_of(rows)
    given = [(row, who, label) for who, (label, _) in _APPLICATIONS.items() for row in found]
    color = series_color(*zip(*_APPLICATIONS.values(), strict=True))
    across = quantity("iterations", "iterations", type="log")
    line = {"type": "line", "point": True}

    series = {
        "series": [label for _, _, label in given],
        "iterations": [row["iterations"] for row, _, _ in given],
    }

    def times(name: str) -> dict[str, Any]:
        times = [row["layers"][name][who] for row, who, _ in given]
        time = quantity("mean", "kernel time (µs)")
        area = {"type": "area", "opacity": 0.15}
        cells = columns(
            **series,
            mean=numbers([each["mean"] for each in times], 1e6),
            **intervals([each["min"] for each in times], [each["max"] for each in times], 1e6),
        )
        layers = [
            summaries.layer(area, {}, y=time | {"field": "low"}, y2={"field": "high"}),
            summaries.layer(line, {}, y=time),
        ]
        both = {"x": across, "color": color}
        return {**cells, "title": name, **_SIZE, "encoding": both, "layer": layers}

    def clocks() -> dict[str, Any]:
        clock = quantity("clock", "SM clock (MHz)")
        rates = {**series, "clock": numbers([clock_of(row, who) for row, who, _ in given], 1e-6)}
        idle = {"clock": [summaries.by_key(rows)["idle"]["sm_clock_hz"] / 1e6]}
        rule = {"type": "rule", "style": "ink", "strokeDash": [2, 2]}
        layers = [
            summaries.layer(line, rates, x=across, y=clock, color=color),
            summaries.layer(rule, idle, y=clock),
        ]
        return {**_SIZE, "layer": layers}

    def writes(name: str) -> dict[str, Any]:
        row = summaries.by_key(rows)[f"counters of {name}"]
        known = [
            (label, colour, _written(values))
            for place, (label, colour) in _PLACES.items()
            if (values := _values(row, place))
        ]
        places, colours, written = zip(*known, strict=True)
        cells = {"place": places, "colour": colours, "written": numbers(written, 1e-6)}
        bars = summaries.layer(
            "bar",
            cells,
            x=quantity("written", "dram_write (MB per launch)", zero=True),
            y={"field": "place", "type": "nominal", "sort": None, "title": None},
            color={"field": "colour", "type": "nominal", "scale": None},
        )
        return {**_SIZE, **bars}

    facts = document["provenance"]
    panels = [{"vconcat": [times(name), clocks(), writes(name)]} for name in found[0]["layers"]]
    return Figure(
        title=f"{facts['gpu'] or 'CPU'}, torch {facts['torch']}",
        description="Times, clocks and bytes written of convolutions in a loop and alone.",
        view={"hconcat": panels},
        key="dot: mean; band: minimum to maximum; dotted: clock when idle",
    ).content(".svg")


def clock_of(row: results.Row, who: str) -> float:
    if who == "in_place":
        return float(row["in_place_clock_hz"])
    return float(statistics.median(layer[who]["sm_clock_hz"] for layer in row["layers"].values()))
