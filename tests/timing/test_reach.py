"""Which tensors are found in what a callable holds and refers to, and where the search ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from convtime.timing.candidate import Candidate
from convtime.timing.sampling.reach import Walk, contents_below, tensors_of

TREE: dict[str, Any] = {"x": torch.zeros(1)}
TREE["self"] = TREE
NUMBERS = [*range(10_000)]


def found_in(candidate: Candidate, walk: Walk | None = None) -> list[torch.Tensor]:
    return list(tensors_of(candidate, walk or Walk()))


def among(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> bool:
    return any(found is tensor for found in tensors)


class Answering:
    """Would run the caller's code wherever it is asked for something."""

    __slots__ = ("x", "y")

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"asked for {name}")


class AnsweringDict(dict[str, torch.Tensor]):
    def __iter__(self) -> Iterator[str]:
        raise AssertionError("iterated over")

    keys = values = items = __iter__  # type: ignore[assignment]


class Moduleless:
    """Whose class says of its module what no other does."""

    __module__ = property(lambda self: "here")

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


@pytest.mark.filterwarnings("ignore:.torch.jit.script.:FutureWarning")
def test_tensors_are_found_wherever_the_callable_reaches_them() -> None:
    x, y, z = (torch.zeros(1) for _ in range(3))
    module, scripted = torch.nn.Linear(2, 2), torch.jit.script(torch.nn.BatchNorm1d(2))

    def inner() -> torch.Tensor:
        return z

    held = {"deep": [inner]}
    for candidate, expected in (
        (Candidate(lambda a, b: a + z, x, kwargs={"b": [y]}, name="arguments"), [x, y, z]),
        (Candidate(module.forward, x, name="method"), [x, module.weight, module.bias]),
        (Candidate(lambda: held["deep"][0](), name="functions of variables"), [z]),
        (Candidate(len, Answering(x), AnsweringDict(y=y), name="no code of theirs runs"), [x, y]),
        (Candidate(len, Moduleless(x), name="module"), [x]),
    ):
        found = found_in(candidate)
        assert all(among(tensor, found) for tensor in expected), candidate.name
    places = {tensor.data_ptr() for tensor in found_in(Candidate(scripted, name="script"))}
    assert {tensor.data_ptr() for tensor in scripted.state_dict().values()} <= places


def test_what_refers_to_itself_is_searched_once() -> None:
    module = torch.nn.Linear(2, 2)
    module.held = [module]  # type: ignore[assignment]
    found = found_in(Candidate(lambda *args: TREE["x"], TREE, module, name="cyclic"))
    assert len(found) == 3
    assert among(TREE["x"], found)


class JITFunction:
    """Like triton's, which leads to all that its compiler has compiled."""

    __module__ = "triton.runtime.jit"

    def __init__(self) -> None:
        self.cache = [[number] for number in range(100_000)]


def test_what_a_compiler_keeps_is_not_searched() -> None:
    x, kernel, walk = torch.zeros(1), JITFunction(), Walk(1000)
    assert among(x, found_in(Candidate(lambda: (kernel, x), name="one"), walk))
    assert not walk.ended_early


def test_the_nearest_are_found_first_and_a_limit_ends_the_search() -> None:
    x, many = torch.zeros(1), [[index] for index in range(2000)]
    walk, everything, numbers = Walk(1000), Walk(10_000), Walk(1000)
    assert among(x, found_in(Candidate(len, many, x, name="one"), walk))
    assert walk.ended_early
    assert among(x, found_in(Candidate(len, many, [[x]], name="one"), everything))
    assert not everything.ended_early
    assert found_in(Candidate(lambda: len(NUMBERS), name="one"), numbers) == []
    assert numbers.ended_early, "numbers count, so that a long list of them ends the search"


def test_what_an_object_holds_is_compared_by_identity_and_numbers_by_value() -> None:
    x, held = torch.zeros(1), {"tensor": torch.zeros(1), "number": 1000, "list": [1.5]}
    before = contents_below(held)
    assert all(each.is_unchanged() for each in before)
    for key, value, unchanged in (
        ("number", int("1000"), True),
        ("number", 1000.0, False),
        ("list", [1.5], False),
        ("tensor", x, False),
        ("more", 1, False),
    ):
        kept = dict(held)
        held[key] = value
        assert all(each.is_unchanged() for each in before) == unchanged, (key, value)
        held.clear()
        held.update(kept)
