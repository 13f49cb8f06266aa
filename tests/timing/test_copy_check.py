"""Calls that modify what they are given are made on the original, as without copies."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from convtime.timing.candidate import Candidate
from convtime.timing.sampling.copy_check import Check
from convtime.timing.sampling.placement import make_copies
from tests.helpers.placed import call, original, placed


def outcome_of(fn: Callable[..., object], *args: Any, **kwargs: Any) -> tuple[str, str]:
    outcome = call(placed(Candidate(fn, *args, kwargs=kwargs, name="one")))
    return outcome["placement"], outcome["placement_reason"]


def test_calls_that_write_lose_nothing_of_it() -> None:
    x, other = torch.zeros(4), torch.ones(4)
    calls = placed(Candidate(torch.Tensor.add_, x, other, name="one"))
    outcome = call(calls)
    assert x.tolist() == [22.0] * 4  # as 22 calls without copies leave it
    assert other.tolist() == [1.0] * 4
    assert (outcome["placement"], outcome["placements"]) == ("as-is", 1)
    assert outcome["placement_reason"] == "a call writes different values to args[0] each time"
    found = outcome_of(lambda: x.add_(1))
    assert found == ("as-is", "a call writes different values to closure variable 'x' each time")
    assert x.tolist() == [44.0] * 4


def test_copies_that_are_given_up_take_no_memory_meanwhile() -> None:
    alive: list[bool] = []

    def add(x: torch.Tensor) -> None:
        x.add_(1)
        alive.append(one_of_them() is not None)

    calls = placed(Candidate(add, torch.zeros(4), name="one"))
    one_of_them = weakref.ref(calls.copies.candidates[7].args[0])
    call(calls)
    assert alive[:2] == [True, True]
    assert not any(alive[2:])


def test_calls_that_write_elsewhere_than_they_are_given_are_noticed() -> None:
    x = torch.zeros(4)
    raw = x.numpy()  # as a kernel's raw pointer: nothing of the tensor is found here

    def write(a: torch.Tensor) -> None:
        raw[:] += 1

    assert outcome_of(write, x) == ("as-is", "a call on a copy writes to the original of args[0]")
    assert x.tolist() == [21.0] * 4


def test_calls_that_write_the_same_each_time_are_placed_as_the_first_left_them() -> None:
    x, out = torch.ones(4), torch.full((4,), 5.0)
    found: list[list[float]] = []

    def negate(x: torch.Tensor, out: torch.Tensor) -> None:
        found.append(out.tolist())
        torch.neg(x, out=out)

    outcome = call(placed(Candidate(negate, x, out, name="one"), cache="cold"))
    assert outcome["placement"] == "random"
    assert out.tolist() == [-1.0] * 4
    assert found == [[5.0] * 4] + [[-1.0] * 4] * 21


@pytest.mark.parametrize(("first", "nbytes"), [(0, 64), (1, 64), (0, 63)])
def test_bytes_are_compared_at_any_address_and_of_any_size(first: int, nbytes: int) -> None:
    buffer = torch.zeros(80, dtype=torch.uint8)
    x = torch.empty(0, dtype=torch.uint8).set_(buffer.untyped_storage()[first : first + nbytes])
    assert x.data_ptr() % 8 == first
    assert outcome_of(torch.neg, x)[0] == "random"
    assert outcome_of(lambda x: x[-1:].add_(1), x)[0] == "as-is"


class Batches:
    """Goes on to the next of its tensors in each call."""

    def __init__(self) -> None:
        self.turn = 0
        self.tensors = [torch.ones(4), torch.zeros(4)]

    def __call__(self) -> torch.Tensor:
        self.turn += 1
        return self.tensors[self.turn % 2] + 1


def test_calls_that_change_other_than_values_are_made_on_the_original() -> None:
    x, out, weight = torch.ones(4), torch.empty(0), torch.ones(4, requires_grad=True)
    assert outcome_of(torch.neg, x, out=out) == ("as-is", "a call resizes kwargs['out']")
    assert out.tolist() == [-1.0] * 4
    batches = Batches()
    assert "modifies one of its inputs, a Batches" in outcome_of(batches)[1]
    assert batches.turn == 20
    assert "adds to gradients" in outcome_of(lambda w: (w * 2).sum().backward(), weight)[1]


def test_layers_that_keep_statistics_write_in_training_alone() -> None:
    layer, x = torch.nn.BatchNorm1d(4), torch.randn(8, 4)
    assert outcome_of(layer.eval(), x)[0] == "random"
    expected = ("as-is", "a call writes different values to fn each time")
    assert outcome_of(layer.train(), x) == expected


def test_checks_hold_on_to_nothing() -> None:
    whole = original(torch.nn.Linear(4, 4), torch.ones(2, 4))
    copies = make_copies(whole, 4, "random")
    check = Check(whole, copies)
    kept = copies.candidates[0].fn
    assert check()
    copies.release()
    gc.collect()
    assert not [one for one in gc.get_referrers(kept) if isinstance(one, tuple | list)]
