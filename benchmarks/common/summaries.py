"""Numbers and cells that several benchmarks make of their rows, without torch."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convtime import Comparison


def markdown(header: str, rows: Iterable[Iterable[object]]) -> str:
    """A table; a column of numbers has a colon behind its name."""
    names = [name.strip() for name in header.split("|")]
    ruler = "|".join("--:" if name.endswith(":") else "---" for name in names)
    head = _line(name.removesuffix(":") for name in names).replace("|  |", "| |")
    return "\n".join([head, f"|{ruler}|", *map(_line, rows)])


_UNITS = {"µ": 1e6, "M": 1e-6}


class _Cells(string.Formatter):
    """A format that ends in µ or M gives a number in millionths or millions; None is a dash."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return "–"
        if unit := _UNITS.get(format_spec[-1:]):
            value, format_spec = unit * value, format_spec[:-1]
        return format(value, format_spec)


def filled(header: str, template: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """A table whose lines are a template, such as "{key} | {seconds:.2fµ}", with fields of rows."""
    return markdown(header, ([_Cells().vformat(template, (), row)] for row in rows))


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def known(**values: float | None) -> dict[str, float]:
    """A summary, of those values that the rows yield."""
    return {name: value for name, value in values.items() if value is not None}


def share(truths: Iterable[object]) -> float | None:
    """How many are true, of all; None of none."""
    found = list(map(bool, truths))
    return sum(found) / len(found) if found else None


def flips(choices: Iterable[tuple[str, Sequence[str]]]) -> Iterator[bool]:
    """For each pair of processes, whether the choice of one is not among the ties of the other."""
    for (choice, _), (_, ties) in itertools.permutations(choices, 2):
        yield choice not in ties


def most(values: Iterable[float]) -> float | None:
    return max(values, default=None)


def is_certain(verdict: str) -> bool:
    """Whether it says that there is a difference."""
    return verdict in ("faster", "slower")


def ratio_of(compared: Comparison, name: str, *over: str) -> dict[str, float]:
    """The ratio of a candidate's time over another's, the baseline's by default."""
    ratio = compared.ratio(name, *over)
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high}


def verdict_on(compared: Comparison, name: str) -> dict[str, Any]:
    """What rows have of a candidate compared with the baseline."""
    ratio = ratio_of(compared, name)
    return {"verdict": compared.verdict(name), "ratio": ratio.pop("value"), **ratio}


def yes(truth: object) -> str:
    return "yes" if truth else "no"


def least_to_most(values: Iterable[float], form: str) -> str:
    """A cell: the least and the greatest value."""
    found = list(values)
    return f"{min(found):{form}} to {max(found):{form}}" if found else "–"


def diagnosis(row: Mapping[str, Any], *more: str) -> tuple[str, ...]:
    """Cells of a diagnosed call: what was drawn, named first and besides, and the seconds."""
    drawn = ", ".join(f"{name} {value}" for name, value in row["drawn"].items())
    besides = ", ".join(cause["code"] for cause in row["causes"][1:])
    return row["key"], drawn, row["first"], *more, besides, f"{row['seconds']:.1f}"


def by_key(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {row["key"]: row for row in rows}


def spread(medians: Sequence[float]) -> float:
    """The range of medians over their median."""
    return (max(medians) - min(medians)) / statistics.median(medians)


def median_and_spread(medians: Sequence[float]) -> tuple[str, str]:
    """Cells of a table: the median of seconds, in µs, and the spread; dashes without medians."""
    if not medians:
        return "–", "–"
    return f"{1e6 * statistics.median(medians):.2f}", f"{100 * spread(medians):.2f} %"


def midmean(values: Sequence[float]) -> float:
    """The mean of the middle half: little moved by outliers, and finer than the clock's tick."""
    quarter = len(values) // 4
    return statistics.fmean(sorted(values)[quarter : len(values) - quarter])


def median_ratio(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """The median over the rounds, each of which gave one sample of both: convtime.Ratio's."""
    return statistics.median(our / their for our, their in zip(ours, theirs, strict=True))


@dataclasses.dataclass(frozen=True)
class Speedup:
    """A peer's time over convtime's, with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Speedup:
        return Speedup(factor * self.value, factor * self.low, factor * self.high)


def speedup(row: Mapping[str, Any], peer: str) -> Speedup:
    return Speedup(**row["speedups"][peer])


def least(speedups: Iterable[Speedup]) -> float:
    """The minimum that a goal judges: a goal is missed where an interval is wholly below it."""
    return min(each.high for each in speedups)


def geomean(speedups: Iterable[Speedup]) -> float:
    return statistics.geometric_mean(each.value for each in speedups)


def distribution(heading: str, groups: Mapping[str, Sequence[Speedup]]) -> str:
    """Markdown: the worst, the median and the best of each group that is not empty."""
    rows = []
    for name, speedups in groups.items():
        if speedups:
            worst = min(speedups, key=lambda each: each.value)
            values = [each.value for each in speedups]
            interval = (
                least_to_most((worst.low, worst.high), ".2f") if worst.low < worst.high else "–"
            )
            middle = f"{statistics.median(values):.2f}"
            rows.append(
                (name, len(values), f"{worst.value:.2f}", interval, middle, f"{max(values):.2f}")
            )
    return markdown(f"{heading} | cases: | worst: | its interval: | median: | best:", rows)


def describe_seeds(rows: Iterable[Mapping[str, Any]]) -> str:
    """A sentence: which of the rows were drawn, and by which seed."""
    rows = list(rows)
    drawn = [row["seed"] for row in rows if "seed" in row]
    seeds = ", ".join(map(str, sorted(set(drawn))))
    origin = f"{len(drawn)} rows are drawn by seed {seeds}" if drawn else "No row is drawn"
    return f"{origin}; {len(rows) - len(drawn)} are of the networks' own shapes."


def find_oracle(
    calls: Mapping[str, Any], seconds: float, **options: Any
) -> tuple[str, dict[str, float]]:
    """The fastest by half of the rounds, and all medians by the other half.

    The halves take turns: the clock may drift.
    """
    from convtime import compare

    budget = min(seconds * len(calls), 3.0)
    compared = compare(
        calls, check=None, interference=False, stop="budget", budget=budget, **options
    )
    halves: list[dict[str, float]] = [{}, {}]
    for name, measured in compared.measurements.items():
        samples = [*zip(measured.batches, measured.seconds, strict=True)]
        for half, medians in enumerate(halves):
            medians[name] = statistics.median(each for batch, each in samples if batch % 2 == half)
    first, second = halves
    return min(first, key=lambda name: first[name]), second


def layer(mark: Any, cells: dict[str, Any], **encoding: dict[str, Any]) -> dict[str, Any]:
    """A layer of a picture, which draws columns of cells, or those of what it is a part of."""
    from convtime.view.figure import columns

    data = columns(**cells) if cells else {}
    return {**data, "mark": mark, "encoding": encoding}


def picture(
    document: Mapping[str, Any], title: str, description: str, view: dict[str, Any], key: str = ""
) -> bytes:
    from convtime.view.figure import Figure

    facts = document["provenance"]
    title = f"{title}; {facts['gpu']}, torch {facts['torch']}"
    return Figure(title=title, description=description, view=view, key=key).content(".svg")
