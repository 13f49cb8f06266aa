"""Show Counters: one line, a table, and every kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from convtime.counting.results import Counters, KernelCounters
from convtime.view.page import Block, Details, Facts, Line, Sentences, Table
from convtime.view.wording import counted, format_seconds, printable

_HEADERS = ("metric", "of a call", "")
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_REPLAYED = {"call": "the whole call is repeated", "kernel": "each kernel is repeated"}


def line(counters: Counters) -> str:
    launches = sum(kernel.launches for kernel in counters.kernels)
    return printable(
        f"{counters.name}: {counted(len(counters.totals), 'metric')} of "
        f"{counted(launches, 'launch', 'launches')} on {counters.device}, in "
        f"{counted(counters.passes, 'pass', 'passes')}, cache {counters.cache}"
    )


def printed(counters: Counters) -> Iterator[Block]:
    yield Table(_HEADERS, _totals(counters), right=_HEADERS[1:2], title=line(counters))
    yield Sentences(_remarks(counters), indent=2, tight=True)
    yield Sentences(_costs(counters), tight=True)


def details(counters: Counters) -> Iterator[Block]:
    yield Line(line(counters), role="answer")
    yield Table(_HEADERS, _totals(counters), right=_HEADERS[1:2])
    for kernel in counters.kernels:
        rows = [
            (metric, format_value(value, counters.units[metric]))
            for metric, value in kernel.values.items()
        ]
        values = Table(("metric", "of a launch"), rows, right=("of a launch",))
        yield Details([values], title=_title(kernel))
    yield Details([Facts(_conditions(counters))], title="conditions")
    yield Sentences(_remarks(counters), role="caution")
    yield from map(Line, _costs(counters))


def format_value(value: float | None, unit: str) -> str:
    """Format a value with its unit, for example "4.194 MB", "12.34 µs" or "87.5 %"."""
    if value is None:
        return "none"
    if unit == "s":
        return format_seconds(value)
    if unit == "%":
        return f"{value:.1f} %"
    if unit.startswith("byte"):
        size, prefix = next(((s, p) for s, p in _PREFIXES if abs(value) >= s), (1.0, ""))
        return f"{value / size:.4g} {prefix}B{unit.removeprefix('byte')}"
    number = f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
    plural = f"{unit}s" if unit.isalpha() and value != 1 else unit
    return f"{number} {plural}" if unit else number


def _totals(counters: Counters) -> Iterator[tuple[str, str, str]]:
    for metric, value in counters.totals.items():
        text = format_value(value, counters.units[metric])
        yield metric, text, counters.descriptions[metric]
    for name, terms in counters.translated.items():
        value = counters[name]
        yield name, "none" if value is None else f"{value:,.6g}", f"nvprof's name: {_sum(terms)}"


def _sum(terms: Mapping[str, float]) -> str:
    return " + ".join(
        metric if factor == 1 else f"{factor:g} × {metric}" for metric, factor in terms.items()
    )


def _title(kernel: KernelCounters) -> str:
    times = f", {kernel.launches} times" if kernel.launches > 1 else ""
    if not any(kernel.grid):
        return kernel.short_name + times
    grid, block = ("×".join(map(str, sizes)) for sizes in (kernel.grid, kernel.block))
    return f"{kernel.short_name}, grid {grid}, block {block}{times}"


def _conditions(counters: Counters) -> dict[str, str]:
    repeats = len(next(iter(counters.samples.values()), ()))
    return {
        "method": counters.method,
        "replay": f"{counters.replay} ({_REPLAYED.get(counters.replay, 'unknown')})",
        "passes": str(counters.passes),
        "repeats": str(repeats),
        "cache": counters.cache,
        "device": counters.device,
    }


def _remarks(counters: Counters) -> list[str]:
    reasons = {
        **{f"{metric} is omitted": why for metric, why in counters.left_out.items()},
        "kernel names are unavailable": counters.kernels_reason,
        "cache": counters.cache_reason,
        "not alone on the GPU": counters.exclusive_reason,
    }
    return [f"{what}: {why}" for what, why in reasons.items() if why]


def _costs(counters: Counters) -> list[str]:
    """Return the energy and peak memory, if measured."""
    return [str(cost) for cost in (counters.energy, counters.peak_memory) if cost is not None]
