"""What the rows say: numbers, and sentences on the cause, without torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

import results

#: What GPUs call the bytes that are read from memory and written to it.
DRAM_READ = ("dram__bytes_read.sum", "dram__bytes_op_read.sum")
DRAM_WRITE = ("dram__bytes_write.sum", "dram__bytes_op_write.sum")
_PLACES = {
    "behind_the_step": "after a step",
    "dirty": "with a dirty L2 cache",
    "cold": "after a flush that wrote",
    "clean": "after one that read",
    "warm": "call after call",
}
_SAME = 0.02  # share of a time up to which another one is the same
_FEWEST = 3  # iterations, below which a mean says nothing


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Ratios of the medians in the loop over those by themselves in its regime, over all points.

    Bytes are compared where both launch the kernel as often.
    """
    summary: dict[str, float] = {"iteration_points": len(points(rows))}
    ratios = [ratio for row in points(rows) for ratio in same_regime_ratios(row).values()]
    if ratios:
        summary["same_regime_ratio_min"] = min(ratios)
        summary["same_regime_ratio_max"] = max(ratios)
    found = [dirty_over_in_place(row) for row in counted(rows)]
    writes = [ratio for ratio in found if ratio is not None]
    if writes:
        summary["dram_write_isolated_over_in_place_min"] = min(writes)
        summary["dram_write_isolated_over_in_place_max"] = max(writes)
    return summary


def points(rows: Sequence[results.Row]) -> list[results.Row]:
    return sorted((row for row in rows if "iterations" in row), key=lambda row: row["iterations"])


def counted(rows: Sequence[results.Row]) -> list[results.Row]:
    return [row for row in rows if "counted" in row]


def advised(rows: Sequence[results.Row]) -> list[results.Row]:
    return [row for row in rows if "advice" in row]


def idle(rows: Sequence[results.Row]) -> results.Row | None:
    return next((row for row in rows if row["key"] == "idle"), None)


def same_regime_ratios(row: results.Row) -> dict[str, float]:
    """Of each layer."""
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
    if in_place is None or alone is None:
        return None
    if in_place["launches"] != row["count"] * alone["launches"]:
        return None
    inside, outside = (written(each["values"]) for each in (in_place, alone))
    return outside / inside if inside and outside is not None else None


def sentences(rows: Sequence[results.Row]) -> Iterator[str]:
    """What was found, as measured."""
    found = points(rows)
    at_rest = idle(rows)
    if at_rest is not None and at_rest["sm_clock_hz"] is not None:
        yield f"At rest the GPU's multiprocessors have a clock of {_mhz(at_rest['sm_clock_hz'])}."
    long = [row for row in found if row["iterations"] >= _FEWEST]
    if long and found[0] is not long[-1]:
        yield from _courses(found[0], long[-1])
    ratios = [ratio for row in long for ratio in same_regime_ratios(row).values()]
    if ratios:
        yield _on_regimes(ratios, long)
    for row in counted(rows):
        yield from _on_writes(row)
    for reason in dict.fromkeys(
        row["reason"] for row in rows if "layer" in row and "reason" in row
    ):
        yield f"Counters were not read: {reason}."


def _courses(first: results.Row, last: results.Row) -> Iterator[str]:
    """How the mean of each application changes with the number of iterations."""
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
    alone = [
        layer["in_place"]["median"] / layer["isolated"]["median"]
        for row in rows
        for layer in row["layers"].values()
    ]
    told = (
        f"A convolution in the loop takes {min(alone):.3f} to {max(alone):.3f} times what it takes "
        f"by itself, call after call; after a step of the loop, in its regime, "
        f"{min(ratios):.3f} to {max(ratios):.3f} times."
    )
    kernels = all(
        layer["in_place"]["kernels"] == layer["same_regime"]["kernels"]
        for row in rows
        for layer in row["layers"].values()
    )
    if not kernels:
        return f"{told} The kernels are not the same in all of them."
    if max(abs(ratio - 1) for ratio in ratios) > _SAME:
        return f"{told} So the regime does not explain all of the difference."
    if max(abs(ratio - 1) for ratio in alone) <= _SAME:
        return f"{told} So there is no difference here to explain."
    return f"{told} So it is the state of the GPU that makes the difference, and not the kernels."


def _on_writes(row: results.Row) -> Iterator[str]:
    inside = row["counted"]["in_place"]
    dirty = row["counted"]["dirty"]
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
    told = []
    for place, how in _PLACES.items():
        alone = row["counted"][place]
        value = None if alone is None else written(alone["values"])
        if value is not None:
            told.append(f"{value / in_loop:.2f} {how}")
    yield (
        f"{row['layer']}: in the loop the kernel writes {in_loop / 1e6:.1f} MB to memory, and by "
        f"itself, as a share of that, {', '.join(told)}."
    )


def _mhz(clock: float) -> str:
    return f"{clock / 1e6:.0f} MHz"


def clock_of(row: results.Row, who: str) -> float | None:
    """The multiprocessors' clock in one of the applications, over the layers."""
    if who == "in_place":
        clock: float | None = row["in_place_clock_hz"]
        return clock
    known = [layer[who]["sm_clock_hz"] for layer in row["layers"].values()]
    return None if None in known else statistics.median(known)
