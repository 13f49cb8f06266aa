"""Where copies lie, how many there are, how they rotate, and why there are none."""

from __future__ import annotations

import functools
import gc
import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from convtime.timing.candidate import Candidate
from convtime.timing.options import Options
from convtime.timing.sampling import placement as placement_module
from convtime.timing.sampling.copying import Original
from convtime.timing.sampling.placement import (
    CannotPlaceError,
    Effort,
    blocks_outside,
    count_places,
    effort_of,
    lay_out,
    make_copies,
    obstacle,
    room_for_copies,
    rotate,
    visits,
)
from tests.helpers.placed import CPU, ROOM, original, placed

PAGE = 2 << 20
SIZES = st.lists(st.sampled_from([1, 4, 512, 1000, 3 * PAGE]) | st.integers(1, PAGE), min_size=1)


@settings(max_examples=40)
@given(SIZES, st.integers(1, 40), st.sampled_from(["random", "aligned", "as-is"]), st.integers())
def test_no_copy_lies_on_another(sizes: list[int], copies: int, placement: Any, seed: int) -> None:
    starts, nbytes = lay_out(sizes, copies, placement, random.Random(seed))
    taken = sorted((start, start + sizes[index % len(sizes)]) for index, start in enumerate(starts))
    assert len(taken) == copies * len(sizes)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(taken))
    assert taken[0][0] >= 0
    assert taken[-1][1] <= nbytes
    unit = PAGE if placement == "aligned" else 512
    assert all(start % unit == 0 for start in starts)
    if placement == "as-is":
        assert starts == [start for start, _ in taken]
    others, other_nbytes = lay_out(sizes, copies, placement, random.Random(seed + 1))
    assert nbytes == other_nbytes, "so that the allocator has a block of this size"
    if placement == "random" and len(taken) > 1:
        assert starts != others


def test_random_addresses_fall_anywhere_in_large_pages() -> None:
    starts = lay_out([4096, 4096], 256, "random", random.Random(3))[0]
    assert {start % PAGE // (PAGE // 8) for start in starts} == set(range(8))
    distances = {(b - a) % PAGE for a, b in zip(starts[::2], starts[1::2], strict=True)}
    assert len(distances) > 200, "tensors of a copy lie at other distances in the next"


def test_some_places_are_visited_twice_in_a_row() -> None:
    for places in (2, 8, 9, 256):
        assert visits(places) == sorted([*range(places), *range(0, places, 8)])
    assert visits(1) == [0]


@pytest.mark.parametrize("placement", ["random", "aligned"])
@pytest.mark.parametrize("size", [8, 7])  # whole words, and single bytes
def test_copies_hold_the_same_bits_until_they_are_released(size: int, placement: Any) -> None:
    x, odd = torch.arange(size, dtype=torch.uint8), torch.tensor([float("nan"), -0.0, float("inf")])
    copies = make_copies(original(torch.neg, x, odd), 16, placement)
    for copy in copies.candidates:
        same, strange = copy.args
        assert torch.equal(same, x)
        assert torch.equal(strange.view(torch.int32), odd.view(torch.int32))
        for tensor in copy.args:
            assert tensor.data_ptr() % (PAGE if placement == "aligned" else 512) == 0
            assert tensor.data_ptr() in copies.addresses
    x.fill_(9)
    copies.refill()
    assert all((copy.args[0] == 9).all() for copy in copies.candidates)
    copies.release()
    assert (copies.candidates, copies.storages) == ([], [])
    assert (same == 9).all(), "what a caller holds on to stays"


def test_making_copies_touches_neither_random_numbers_nor_garbage() -> None:
    collects: set[bool] = set()

    class Held:
        def __deepcopy__(self, memo: object) -> Held:
            collects.add(gc.isenabled())
            return self

    state = random.getstate()
    for enabled in (gc.disable, gc.enable):
        enabled()
        make_copies(original(torch.neg, torch.ones(4), Held()), 8, "random")
        assert gc.isenabled() == (enabled is gc.enable)
    assert collects == {False}
    assert random.getstate() == state


@settings(max_examples=50)
@given(
    st.lists(st.integers(1, 3 * PAGE), min_size=1, max_size=3),
    st.integers(1, 600),
    st.integers(0, 511),
    st.sampled_from([0.00001, 0.00004, 0.0003, 0.0025, 0.02]),
    st.sampled_from(["random", "aligned"]),
    st.booleans(),
)
def test_there_are_as_many_places_as_memory_time_and_effort_allow(
    sizes: list[int], fitting: int, rest: int, seconds: float, placement: Any, quick: bool
) -> None:
    unit = PAGE if placement == "aligned" else 512
    room = fitting * sum((size + unit - 1) // unit * unit for size in sizes) + rest
    whole = original(torch.neg, *(torch.empty(size, dtype=torch.uint8) for size in sizes))
    most = 16 if quick else 256
    in_time = max(2**power for power in range(10) if power == 0 or 2**power * 40e-6 <= seconds)
    if fitting < 4 or seconds < 40e-6:
        with pytest.raises(CannotPlaceError, match="do not fit into|copying its inputs takes"):
            count_places(whole, placement, room, Effort(most, seconds, ROOM))
        return
    count, why_few = count_places(whole, placement, room, Effort(most, seconds, ROOM))
    assert count == min(fitting, max(4, in_time), most)
    if count == most:
        assert ("quick" in why_few) == quick
    elif count == fitting:
        assert f"memory for {fitting} copies" in why_few
    else:
        assert "copying its inputs takes" in why_few


def test_what_copying_takes_is_timed_where_it_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(placement_module, "perf_counter", lambda: 0.005 * next(ticks))
    whole = original(torch.neg, [torch.ones(4)])  # in a list, which needs a deepcopy
    found = count_places(whole, "random", ROOM, Effort(256, 0.05, ROOM))
    assert found == (8, "copying its inputs takes 5.0 ms")
    with pytest.raises(CannotPlaceError, match="takes 5 ms"):
        count_places(whole, "random", ROOM, Effort(256, 0.004, ROOM))


def test_copies_take_a_quarter_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that PyTorch holds and does not use is free, too."""
    statistics = {"reserved_bytes": 500, "allocated_bytes": 100}
    held: dict[str, Any] = {name: {"all": {"current": n}} for name, n in statistics.items()}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1600, 9999))
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: held)
    gpu = torch.device("cuda")
    assert room_for_copies(gpu, Effort(4, 1.0, 10_000)) == (1600 + 500 - 100) // 4
    assert room_for_copies(gpu, Effort(4, 1.0, 300)) == 300
    held.clear()
    assert room_for_copies(gpu, Effort(4, 1.0, 10_000)) == 400
    quick, full = (effort_of(Options(quick=quick)) for quick in (True, False))
    assert (quick.places, full.places) == (16, 256)
    assert quick.seconds < full.seconds
    assert quick.nbytes < full.nbytes


class Subclass(torch.Tensor):
    pass


class Array:
    @property
    def __cuda_array_interface__(self) -> object:
        raise AssertionError("asked")

    class Finalized:
        def __del__(self) -> None: ...


def freed() -> list[torch.Tensor]:
    """As sharded training leaves its parameters between two steps."""
    x = torch.ones(4)
    x.untyped_storage().resize_(0)
    return [x, torch.ones(4)]


def with_gradient() -> torch.Tensor:
    x = torch.ones(4, requires_grad=True)
    x.sum().backward()
    return x


def over_a_global() -> torch.Tensor:
    return GLOBAL + 1


def linear(make: Callable[[torch.nn.Module], Any]) -> tuple[Any, ...]:
    module = torch.nn.Linear(2, 2)
    made = make(module)
    return module if made is None else made, torch.ones(1, 2)


GLOBAL = torch.ones(4)
ONES = torch.ones(3)

OBSTACLES: dict[str, tuple[Callable[[], tuple[Any, ...]], str]] = {
    "nothing": (lambda: (len, "abc"), "no tensor"),
    "global": (lambda: (lambda: over_a_global(),), "global 'GLOBAL'"),
    "sparse": (lambda: (torch.neg, torch.eye(3).to_sparse()), r"\(sparse_coo\) in args\[0\]"),
    "subclass": (lambda: (torch.neg, ONES.as_subclass(Subclass)), r"Subclass .* in args\[0\]"),
    "lock": (lambda: (print, ONES, threading.Lock()), "deepcopy fails .* a lock .*pickle"),
    "graph": (lambda: (torch.neg, torch.ones(4, requires_grad=True) * 2), "the autograd graph"),
    "gradient": (lambda: (torch.neg, with_gradient()), "lack the gradients"),
    "array": (lambda: (print, ONES, Array()), r"another library's array \(Array\)"),
    "finalizer": (lambda: (print, ONES, Array.Finalized()), r"a finalizer \(Finalized\)"),
    "freed": (lambda: (torch.neg, freed()), "memory of one of its tensors was freed"),
    "script": (lambda: linear(torch.jit.script), r"torch.jit compiled \(RecursiveScriptModule\)"),
    "large": (
        lambda: (torch.neg, torch.empty(ROOM // 3, dtype=torch.uint8)),
        "take 341.3 MiB, and 4 copies do not fit into 1,024 MiB",
    ),
    "setup": (lambda: (Candidate(torch.neg, ONES, before=lambda: ONES.zero_()),), "setup refers"),
    "compiled": (lambda: linear(torch.compile), "a module that torch.compile made"),
    "compiled in place": (lambda: linear(torch.nn.Module.compile), "that torch.compile made"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.thorough] if "compiled" in kind else [])
        for kind in OBSTACLES
    ],
)
def test_why_tensors_stay_where_they_are(kind: str) -> None:
    make, reason = OBSTACLES[kind]
    fn, *args = make()
    whole = Original(fn, CPU) if isinstance(fn, Candidate) else original(fn, *args)
    with pytest.raises(CannotPlaceError, match=reason):
        count_places(whole, "random", ROOM, effort_of(Options()))
    assert (obstacle(whole, backward=True) == "") == (kind in ("gradient", "large", "lock"))


def test_many_objects_are_not_even_looked_at() -> None:
    many, x = [[i] for i in range(20_000)], torch.ones(4)
    for candidate in (Candidate(len, many, x), Candidate(lambda: (x, (lambda: len(many))()))):
        assert "more than 10,000 objects" in placed(candidate).outcome("")["placement_reason"]


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("offset", [0, 4, 128, 255])
def test_copies_on_a_gpu_are_aligned_and_in_its_memory(
    pinned: bool, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA is asked by the address where a tensor lies."""
    asked = []

    def is_pinned(tensor: torch.Tensor) -> bool:
        asked.append(tensor.data_ptr())
        return pinned

    monkeypatch.setattr(torch.Tensor, "is_pinned", is_pinned)
    room = torch.ones(2048, dtype=torch.uint8)
    first = -room.data_ptr() % 256
    aligned, x = (
        torch.empty(0, dtype=torch.uint8).set_(room.untyped_storage()[start : start + 512])
        for start in (first, first + 512 + offset)
    )
    whole = original(torch.relu, aligned, x)
    assert obstacle(whole, backward=False) == ""
    whole.device = torch.device("cuda")  # which a test without a GPU has no tensor on
    found = obstacle(whole, backward=False)
    if offset:
        assert "not aligned to 256 bytes" in found
    else:
        assert asked == [aligned.data_ptr(), x.data_ptr()][: 1 if pinned else 2]
        assert ("in host memory" in found) == bool(found) == pinned
    assert obstacle(whole, backward=False, any_address=True) == ""


def test_results_are_told_from_what_a_call_was_given() -> None:
    copies = make_copies(original(torch.neg, torch.ones(1000)), 4, "random")
    given_one = copies.candidates[1].args[0]
    fresh = given_one + 1
    result = {"a": [fresh, fresh[3:]], "b": given_one[5:], "c": 3}
    assert blocks_outside(copies, CPU, result) == [(fresh.untyped_storage().data_ptr(), 4000)]
    assert blocks_outside(copies, CPU, None) == []


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
    found, left_warm = rotate(whole, working_set, max_copies, placement, places)
    each = sum(max(128, size) for size in sizes if size)  # at least a cache line
    enough = 1
    while each < working_set and (enough - 1) * each < working_set:
        enough += 1
    needed = min(enough, max_copies)
    copies = found.candidates
    assert len(copies) == (max(needed, places) if placement == "random" else needed)
    said = f"{max_copies} copies of {each} bytes are less than the {working_set} bytes that"
    assert [warm.partition(" evict")[0] for warm in left_warm] == [said] * (enough > max_copies)
    assert (copies[0] is whole.candidate) == (placement == "as-is")
    for copy in copies:
        assert (copy.name, copy.fn, copy.before) == ("one", torch.cat, None)
        assert all(map(torch.equal, copy.args[0], tensors))


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
        assert len(rotate(whole, 16)[0].candidates) == 1
    kept = Candidate(torch.neg, x, name="one", before=lambda: other.zero_())
    copies = rotate(Original(kept, CPU), 1024)[0].candidates
    assert all(copy.before is kept.before for copy in copies)
    whole = original(print, torch.ones(4), threading.Lock())
    with pytest.raises(ValueError, match="'one' must support copy.deepcopy .*, got lock .*use"):
        rotate(whole, 1024)
