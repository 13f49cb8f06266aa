"""Documents of results with random changes, as damaged or hostile files have them."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3.5, -0.0, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf),
    *(2**63, 2**70, -(2**63), "", "x", "\ud800", "\x00", "a" * 5000, "2026-13-45", "cuda:0"),
    *([], [[]], {}, {"": None}, [None], [1, 2, 3], [math.nan], {"a": 1}),
)
_FACTORS = (-1, 0, 1e-300, 1e300, 1 + 1e-9, 1000)


def mutated(document: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return a copy of a document in which one to four values are changed, missing or repeated."""
    chance = random.Random(seed)
    document = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        path = _some_path(document, chance)
        if path:
            _change(document, path, chance)
    return document


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    for key in _keys(value):
        yield from _paths(value[key], (*path, key))


def _keys(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value)
    return list(range(len(value))) if isinstance(value, list) else []


def _some_path(document: dict[str, Any], chance: random.Random) -> Path:
    """Return any path, or one that is found from above, so that long lists do not have them all."""
    if chance.random() < 0.5:
        return chance.choice(list(_paths(document)))
    value: Any = document
    path: Path = ()
    while keys := _keys(value):
        if path and chance.random() < 0.25:
            break
        path = (*path, chance.choice(keys))
        value = value[path[-1]]
    return path


def _at(document: Any, path: Path) -> Any:
    for key in path:
        document = document[key]
    return document


def _change(document: dict[str, Any], path: Path, chance: random.Random) -> None:
    parent, key = _at(document, path[:-1]), path[-1]
    value = parent[key]
    change = chance.random()
    if change < 0.1:
        del parent[key]
    elif change < 0.2:
        parent[key] = copy.deepcopy(_at(document, chance.choice(list(_paths(document)))))
    elif change < 0.4 and isinstance(value, list) and value:
        parent[key] = value[: chance.randrange(len(value))]
    elif change < 0.6 and isinstance(value, list) and value:
        parent[key] = value + [copy.deepcopy(chance.choice(value))] * chance.choice((1, 7))
    elif change < 0.6 and isinstance(value, int | float) and not isinstance(value, bool):
        parent[key] = value * chance.choice(_FACTORS)
    elif change < 0.65 and isinstance(parent, dict):
        parent["of a later version"] = parent.pop(key)
    else:
        parent[key] = copy.deepcopy(chance.choice(_VALUES))
