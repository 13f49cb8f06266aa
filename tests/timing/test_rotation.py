"""How many copies a rotation has, and what it refuses to copy."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from convtime.timing.candidate import Candidate
from convtime.timing.sampling.copying import Original
from convtime.timing.sampling.rotation import Rotation, rotate
from tests.helpers.placed import CPU, original

WEIGHT = torch.ones(4)


def storages_of(found: Rotation) -> list[int]:
    copies = found.copies.candidates
    return [copy.args[0].untyped_storage().data_ptr() for copy in copies]


@example([192], 192, 9, 1, "as-is")
@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 700), min_size=1, max_size=3).filter(any),
    st.integers(1, 10_000),
    st.integers(1, 120),
    st.integers(1, 60),
    st.sampled_from(["as-is", "random"]),
)
def test_copies_hold_the_working_set_between_two_uses_of_one(
    sizes: list[int], working_set: int, max_copies: int, places: int, placement: Any
) -> None:
    tensors = [torch.full((size,), 7, dtype=torch.uint8) for size in sizes]
    whole = original(torch.cat, tensors)
    found = rotate(whole, working_set, max_copies, placement, places)
    each = sum(max(128, size) for size in sizes if size)  # at least a cache line
    assert found.bytes_per_call == each
    enough = 1
    while each < working_set and (enough - 1) * each < working_set:
        enough += 1
    needed = min(enough, max_copies)
    copies = found.copies.candidates
    assert len(copies) == (max(needed, places) if placement == "random" else needed)
    assert bool(found.left_warm) == (enough > max_copies)
    assert (copies[0] is whole.candidate) == (placement == "as-is")
    for copy in copies:
        assert (copy.name, copy.fn, copy.before) == ("one", torch.cat, None)
        assert all(map(torch.equal, copy.args[0], tensors))


def test_copies_are_apart_and_too_few_are_said_to_be(device: torch.device) -> None:
    x = torch.randn(16, 3, device=device)
    candidate = Candidate(torch.add, x, kwargs={"other": x[0]}, name="add")
    found = rotate(Original(candidate, device), 192 * 2000, 1000)
    assert found.left_warm == (
        "1000 copies of 192 bytes are less than the 384000 bytes that evict a copy from the cache",
    )
    first, *places = storages_of(found)
    assert places == [places[0] + 512 * index for index in range(999)], "in one allocation"
    assert first not in places
    for copy in found.copies.candidates[::100]:
        assert copy.args[0].device == x.device
        assert torch.equal(copy.args[0], x)
        assert torch.equal(copy.kwargs["other"], x[0])


def test_nothing_to_rotate_is_one_copy_and_says_why() -> None:
    special: Any = torch.eye(3).to_sparse()
    for whole, said in (
        (original(math.sqrt, 2.0), "no tensor in the arguments"),
        (original(functools.partial(lambda: WEIGHT)), "global 'WEIGHT'"),
        (original(torch.neg, special), "tensor of type Tensor (sparse_coo) in args[0]"),
    ):
        found = rotate(whole, 1024)
        assert (found.bytes_per_call, found.left_warm) == (0, (said,))
        assert found.copies.candidates == [whole.candidate]


def test_a_setup_that_resets_the_original_only_is_refused() -> None:
    x, other = torch.ones(4), torch.ones(4)
    setups: dict[str, Callable[[], object]] = {
        "closure variable 'x' of setup": lambda: x.zero_(),
        "tensor of the method 'zero_' of setup": x.zero_,
        "setup": functools.partial(torch.zero_, x.view(2, 2)),
        "closure variable 'holder' of setup": (lambda holder: lambda: holder)({"k": [x]}),
    }
    for where, setup in setups.items():
        whole = Original(Candidate(torch.neg, x, name="one", before=setup), CPU)
        with pytest.raises(ValueError, match=f"setup must not .*'one'.* got one in {where}; use"):
            rotate(whole, 1024)
        assert len(rotate(whole, 16).copies.candidates) == 1
    kept = Candidate(torch.neg, x, name="one", before=lambda: other.zero_())
    copies = rotate(Original(kept, CPU), 1024).copies.candidates
    assert all(copy.before is kept.before for copy in copies)


def test_what_cannot_be_copied_is_refused() -> None:
    whole = original(print, torch.ones(4), threading.Lock())
    with pytest.raises(ValueError, match="'one' must support copy.deepcopy .*, got lock .*use"):
        rotate(whole, 1024)
