"""Which tensors are found in what a callable holds and refers to, and where the search ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from convtime.core.load import _C
from convtime.timing.candidate import Candidate
from convtime.timing.sampling import measure as sampling
from convtime.timing.sampling.measure import find_place
from convtime.timing.sampling.reach import Walk, tensors_of

TREE: dict[str, Any] = {"x": torch.zeros(1)}
TREE["self"] = TREE
NUMBERS = [*range(1_000_000)]


def found_in(candidate: Candidate) -> list[torch.Tensor]:
    return list(tensors_of(candidate, Walk()))


def among(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> bool:
    return any(found is tensor for found in tensors)


def test_tensors_are_found_wherever_the_callable_reaches_them() -> None:
    x, y, z = (torch.zeros(1) for _ in range(3))
    module = torch.nn.Linear(2, 2)
    found = found_in(Candidate(lambda a, b: a + z, x, kwargs={"b": [y]}, name="one"))
    assert all(among(tensor, found) for tensor in (x, y, z))
    found = found_in(Candidate(module.forward, x, name="one"))
    assert all(among(parameter, found) for parameter in module.parameters())


def test_what_refers_to_itself_is_searched_once() -> None:
    module = torch.nn.Linear(2, 2)
    module.held = [module]  # type: ignore[assignment]
    found = found_in(Candidate(lambda *args: TREE["x"], TREE, module, name="cyclic"))
    assert len(found) == 3
    assert among(TREE["x"], found)


def test_variables_of_functions_that_variables_hold_are_found() -> None:
    x = torch.zeros(1)

    def inner() -> torch.Tensor:
        return x

    held = {"deep": [inner]}
    assert among(x, found_in(Candidate(lambda: held["deep"][0](), name="outer")))


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


def test_nothing_of_the_callers_runs() -> None:
    x, y = torch.zeros(1), torch.zeros(1)
    found = found_in(Candidate(len, Answering(x), AnsweringDict(y=y), name="one"))
    assert among(x, found)
    assert among(y, found)


class Moduleless:
    """Whose class says of its module what no other does."""

    __module__ = property(lambda self: "here")

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


def test_a_class_may_say_anything_of_its_module() -> None:
    x = torch.zeros(1)
    assert among(x, found_in(Candidate(len, Moduleless(x), name="one")))


class JITFunction:
    """Like triton's, which leads to all that its compiler has compiled."""

    __module__ = "triton.runtime.jit"

    def __init__(self) -> None:
        self.cache = [[number] for number in range(100_000)]


def test_what_a_compiler_keeps_is_not_searched() -> None:
    x = torch.zeros(1)
    kernel = JITFunction()
    walk = Walk(1000)
    found = [*tensors_of(Candidate(lambda: (kernel, x), name="one"), walk)]
    assert among(x, found)
    assert not walk.ended_early


def test_the_nearest_are_found_first_and_a_limit_ends_the_search() -> None:
    x = torch.zeros(1)
    walk = Walk(1000)
    many = [[index] for index in range(2000)]
    assert among(x, list(tensors_of(Candidate(lambda: None, many, x, name="one"), walk)))
    assert walk.ended_early
    everything = Walk(10_000)
    assert among(x, list(tensors_of(Candidate(lambda: None, many, [[x]], name="one"), everything)))
    assert not everything.ended_early


def test_a_list_of_many_numbers_is_not_searched_through(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    real = Walk._look_at

    def counting(self: Walk, objects: Any) -> list[object]:
        before = self._left
        found = real(self, objects)
        looked_at.append(before - self._left)
        return found

    monkeypatch.setattr(Walk, "_look_at", counting)
    find_place([Candidate(lambda: len(NUMBERS), name="one")], None)
    assert 1000 < sum(looked_at) < len(NUMBERS) / 2


def test_nothing_is_searched_for_where_the_device_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(sampling, "tensors_of", never)
    place = find_place([Candidate(lambda: TREE, name="one")], "cpu")
    assert (place.device.type, place.others, place.reason) == ("cpu", (), "asked for")


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        (["meta"], "only tensors on meta (without data) were found"),
        (["cpu"], "only tensors on the CPU were found"),
        (["cpu", "meta", "cpu"], "only tensors on the CPU and meta (without data) were found"),
    ],
)
def test_the_kinds_of_devices_that_were_found_are_named(devices: list[str], reason: str) -> None:
    tensors = [torch.ones(1, device=device) for device in devices]
    place = find_place([Candidate(torch.cat, tensors, name="one")], None)
    assert (place.device.type, place.reason) == ("cpu", reason)


class Machine:
    """A machine with so many GPUs, and tensors that say that they are there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpus: int, tensors_on: list[str]) -> None:
        self.searched: list[str] = []
        monkeypatch.setattr(_C, "cuda_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(sampling, "resolve_device", torch.device)
        self._tensors_on = tensors_on
        monkeypatch.setattr(sampling, "tensors_of", self._tensors_of)

    def _tensors_of(self, candidate: Candidate, walk: Walk) -> Iterator[object]:
        for name in self._tensors_on:
            self.searched.append(name)
            yield type("Placed", (), {"device": torch.device(name)})()

    def place(self, requested: str | None) -> tuple[str, list[str], str]:
        found = find_place([Candidate(int, name="one")], requested)
        return str(found.device), [str(other) for other in found.others], found.reason


def test_with_one_gpu_the_search_ends_where_it_can_say_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch, 1, ["cpu", "cuda:0", "cpu"])
    assert machine.place(None) == ("cuda:0", [], "a tensor on it was found")
    assert machine.searched == ["cpu", "cuda:0"]
    machine.searched.clear()
    assert machine.place("cuda:0") == ("cuda:0", [], "asked for")
    assert machine.searched == []


def test_other_gpus_are_searched_for_where_there_are_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch, 3, ["cuda:2", "cuda:1"])
    assert machine.place("cuda:1") == ("cuda:1", ["cuda:2"], "asked for")
    assert machine.place(None) == ("cuda:2", ["cuda:1"], "a tensor on it was found")


def test_a_search_that_ended_early_is_said_where_it_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampling, "_MOST_OBJECTS", 100)
    many = [[index] for index in range(200)]
    monkeypatch.setattr(_C, "cuda_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(sampling, "resolve_device", lambda requested: torch.device("cuda:0"))
    assert find_place([Candidate(len, many, name="one")], None).reason == (
        "assumed: no tensor was found, and there is a GPU; of the objects that the calls refer "
        "to, 100 were searched"
    )
