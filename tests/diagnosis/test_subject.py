"""Calls with other tensors: copies, layouts and values."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from convtime.diagnosis import contrasts
from convtime.diagnosis.subject import Subject, moved
from convtime.timing.candidate import Candidate
from convtime.timing.sampling.measure import find_place


def subject_of(fn: Any, *args: Any, **options: Any) -> Subject:
    candidate = Candidate(fn, *args, **options)
    return Subject(candidate, find_place([candidate], None))


@given(st.lists(st.integers(1, 4), max_size=3), st.integers(1, 2), st.permutations([0, 1, 2]))
def test_copies_have_the_layout_and_lie_at_multiples_of_512_bytes(
    shape: list[int], step: int, order: list[int]
) -> None:
    given_ = torch.randn(*shape, 2 * step)[..., ::step]
    given_ = given_.permute([each for each in order if each < given_.dim()][: given_.dim()]
                            + list(range(3, given_.dim())))  # fmt: skip
    copy = moved(given_)
    assert torch.equal(copy, given_)
    assert copy.stride() == given_.stride()
    assert copy.data_ptr() != given_.data_ptr()
    assert copy.storage_offset() * copy.itemsize % 512 == 0


@pytest.mark.parametrize("given_", [torch.ones(3), torch.ones(()), torch.ones(0, 4)])
def test_copies_lie_where_chance_has_it(given_: torch.Tensor) -> None:
    """The allocator would put those of large tensors at multiples of 2 MiB alone."""
    copies = [moved(given_) for _ in range(20)]
    assert all(torch.equal(copy, given_) for copy in copies)
    assert len({copy.storage_offset() for copy in copies}) > 1
    expanded = torch.ones(1, 4).expand(3, 4)
    assert moved(expanded) is expanded


def test_variables_parameters_and_repeated_tensors_are_others_there() -> None:
    x = torch.ones(3)
    changed = subject_of(torch.add, x, x).with_tensors(moved, "moved")
    assert changed.args[0] is changed.args[1]
    assert changed.args[0] is not x
    moved_call: Any = subject_of(lambda: (x,)).with_tensors(torch.zeros_like, "zeros")
    assert torch.equal(moved_call.fn()[0], torch.zeros(3))
    layer = torch.nn.Conv2d(2, 2, 3)
    called = subject_of(layer, torch.ones(1, 2, 4, 4)).with_tensors(
        lambda each: (
            each.contiguous(memory_format=torch.channels_last) if each.dim() == 4 else each
        ),
        "channels_last",
    )
    fn: Any = called.fn
    assert isinstance(fn.weight, torch.nn.Parameter)
    assert fn.weight.requires_grad
    assert fn.weight.is_contiguous(memory_format=torch.channels_last)
    assert fn.bias is layer.bias
    assert layer.weight.is_contiguous()


def test_random_numbers_are_spread_like_the_given() -> None:
    torch.manual_seed(0)
    made = contrasts._random(3 + 2 * torch.randn(10_000))
    assert (made.mean(), made.std()) == pytest.approx((3, 2), abs=0.2)
    assert contrasts._random(torch.zeros(1000)).std() == pytest.approx(1, abs=0.2)
    whole = torch.arange(3)
    assert contrasts._random(whole) is whole
