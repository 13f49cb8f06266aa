"""The verdict on a table in words: which candidates are fastest along an axis."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from convtime.sweeps.outcomes import Outcome
    from convtime.sweeps.plan import Label

_UNKNOWN = "nothing is known"


def verdict_along(
    axis: str, values: Sequence[Label], outcomes: Sequence[Outcome | None], *, ordered: bool
) -> str:
    """Return the outcomes along an axis as one sentence, e.g. "a is fastest up to batch 16; …".

    Args:
        axis: name of the axis.
        values: its values.
        outcomes: outcome at each value; None where no candidate was timed.
        ordered: whether the values are ascending numbers, so that ranges have a meaning.
    """
    phrases = ["" if each is None else phrase(each) for each in outcomes]
    if ordered:
        return "; ".join(_ranges(axis, values, phrases))
    by_phrase: dict[str, list[Label]] = {}
    for value, told in zip(values, phrases, strict=True):
        by_phrase.setdefault(told, []).append(value)
    if len(by_phrase) == 1 and len(values) > 1:
        return f"{phrases[0] or _UNKNOWN} at every {axis}"
    return "; ".join(
        f"{told or _UNKNOWN} at {axis} {listed(those)}" for told, those in by_phrase.items()
    )


def phrase(outcome: Outcome) -> str:
    """Return an outcome in words."""
    if outcome.kind == "winner":
        return f"{outcome.fastest} is fastest"
    if outcome.kind == "tie":
        return f"{listed(outcome.leaders)} tie"
    if outcome.kind == "undecided":
        return f"{listed(outcome.leaders)} are too close to call"
    return f"only {outcome.fastest} could be timed"


def listed(names: Sequence[Label]) -> str:
    """Return names as "a, b and c"."""
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last


def _ranges(axis: str, values: Sequence[Label], phrases: Sequence[str]) -> Iterator[str]:
    pairs = zip(phrases, values, strict=True)
    runs = [
        (told or _UNKNOWN, [value for _, value in those])
        for told, those in itertools.groupby(pairs, key=lambda pair: pair[0])
    ]
    for place, (told, those) in enumerate(runs):
        first, last = those[0], those[-1]
        if len(runs) == 1:
            yield f"{told} {_everywhere(axis, those)}"
        elif place == 0:
            yield f"{told} {f'at {axis} {last}' if first == last else f'up to {axis} {last}'}"
        elif place == len(runs) - 1:
            yield f"{f'at {first}' if first == last else f'from {first} on'} {told}"
        else:
            yield f"{f'at {first}' if first == last else f'from {first} to {last}'} {told}"


def _everywhere(axis: str, values: Sequence[Label]) -> str:
    if len(values) == 1:
        return f"at {axis} {values[0]}"
    return f"at every {axis} from {values[0]} to {values[-1]}"
