"""Show a Race: the winner, a table of all candidates, and the last round."""

from __future__ import annotations

from collections.abc import Iterator

from convtime.timing import show_comparison
from convtime.timing.plot import comparison_figure
from convtime.timing.show import estimate, median
from convtime.tuning.race_result import Race
from convtime.view.figure import Figure
from convtime.view.page import Block, Details, Line, Sentences, Table
from convtime.view.wording import printable

_TIME, _RATIO = "time [95 %]", "ratio [95 %]"


def line(race: Race) -> str:
    measured = race.measurement(race.winner)
    time = "" if measured is None else f" with {median(measured)}"
    others = ", ".join(name for name in race.ties if name != race.winner)
    return printable(
        f"{race.winner} wins{time}{others and f', tied with {others}'}; {len(race.dropped)} of "
        f"{len(race.order)} candidates were dropped, in {race.seconds:.2f} s"
    )


def printed(race: Race) -> Iterator[Block]:
    yield Line(line(race), role="answer")
    yield Table(("", _TIME, _RATIO, "verdict"), _rows(race), right=(_RATIO,))
    yield Sentences(_sentences(race))


def details(race: Race) -> Iterator[Block]:
    yield from printed(race)
    for number in range(len(race.rounds), 0, -1):
        yield Details([*show_comparison.details(race.rounds[number - 1])], title=f"round {number}")


def _ranked(race: Race) -> list[str]:
    """Return the finalists without the winner, the fastest first."""
    last = race.rounds[-1]
    others = [name for name in last.measurements if name != race.winner]
    return sorted(others, key=lambda name: last.ratio(name, race.winner).value)


def _rows(race: Race) -> Iterator[list[str]]:
    finalists = _ranked(race) if race.rounds else []
    early = [name for name in reversed([*race.dropped]) if name not in finalists]
    for name in (race.winner, *finalists, *early):
        measured, judged = race.measurement(name), race.judge(name)
        ratio = "" if judged is None or name == race.winner else str(judged.ratio)
        time = "" if measured is None else estimate(measured)
        if name == race.winner:
            verdict = "the winner"
        elif name in race.dropped:
            stage = race.dropped[name].stage
            verdict = "dropped alone" if stage == "alone" else f"dropped in round {stage}"
        else:
            verdict = "tied" if judged is None else f"tied: {judged.verdict}"
        yield [name, time, ratio, verdict]


def _sentences(race: Race) -> Iterator[str]:
    if len(race.ties) > 1:
        names = ", ".join(name for name in race.ties if name != race.fastest)
        yield (
            f"{names}: not found slower than {race.fastest}, the fastest, by more than "
            f"{race.margin:.2%}"
        )
    for name, drop in race.dropped.items():
        yield f"{name} was {drop}"
    for name, remark in race.remarks.items():
        yield f"note on {name}: {remark}"
    for name, agreement in race.same_results.items():
        if agreement.same is None:
            yield f"note on {name}: {agreement}"


def figures(raced: Race) -> Iterator[Figure]:
    if raced.rounds:
        yield comparison_figure(raced.rounds[-1], raced.winner)
