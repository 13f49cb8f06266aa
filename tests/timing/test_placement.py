from __future__ import annotations

import gc
import itertools
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import convtime
from convtime.core.load import _C
from convtime.timing.candidate import Candidate
from convtime.timing.options import Options
from convtime.timing.sampling import calls as calls_module
from convtime.timing.sampling import placement as placement_module
from convtime.timing.sampling.calls import PreparedCalls, prepared_calls
from convtime.timing.sampling.copy_check import Check
from convtime.timing.sampling.copying import Original, Storages
from convtime.timing.sampling.placement import (
    CannotPlaceError,
    Effort,
    blocks_outside,
    count_places,
    lay_out,
    make_copies,
    visits,
)
from tests.helpers.texts import flat

CPU = torch.device("cpu")
ROOM = 1 << 30
PAGE = 2 << 20


@pytest.fixture(autouse=True)
def copying_may_take_long_on_a_cpu(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where copies take longer, as on a busy machine, there are fewer of them.
    if not request.node.get_closest_marker("cuda"):
        monkeypatch.setattr(placement_module, "_COPYING_SECONDS", 60.0)


def ranges(sizes: list[int], starts: tuple[int, ...]) -> list[tuple[int, int]]:
    return sorted((start, start + sizes[i % len(sizes)]) for i, start in enumerate(starts))


@pytest.mark.parametrize("placement", ["random", "aligned", "as-is"])
@pytest.mark.parametrize("sizes", [[4], [512, 3 * PAGE, 1000], [1] * 40])
def test_no_copy_lies_on_another(placement: Any, sizes: list[int]) -> None:
    layout = lay_out(sizes, 32, placement, random.Random(1))
    taken = ranges(sizes, layout.starts)
    assert len(taken) == 32 * len(sizes)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(taken))
    assert taken[0][0] >= 0
    assert taken[-1][1] <= layout.nbytes
    unit = PAGE if placement == "aligned" else 512
    assert all(start % unit == 0 for start in layout.starts)


def test_random_layouts_differ_and_take_as_much() -> None:
    one, other = (lay_out([4096, 70_000], 64, "random", random.Random(seed)) for seed in (1, 2))
    assert one.starts != other.starts
    assert one.nbytes == other.nbytes


def test_random_addresses_fall_anywhere_in_large_pages() -> None:
    starts = lay_out([4096, 4096], 256, "random", random.Random(3)).starts
    for which in (0, 1):
        eighths = {start % PAGE // (PAGE // 8) for start in starts[which::2]}
        assert eighths == set(range(8))
    distances = {(b - a) % PAGE for a, b in zip(starts[::2], starts[1::2], strict=True)}
    assert len(distances) > 200, "tensors of a copy lie at other distances in the next"


def test_some_places_are_visited_twice_in_a_row() -> None:
    order = visits(256)
    assert len(order) == 256 + 32
    assert sorted(set(order)) == list(range(256))
    assert sum(a == b for a, b in itertools.pairwise(order)) == 32
    assert visits(1) == [0]
    assert visits(4) == [0, 0, 1, 2, 3]


def original(fn: Callable[..., object], *args: Any, **kwargs: Any) -> Original:
    return Original(Candidate(fn, *args, kwargs=kwargs, name="one"), CPU)


def test_copies_hold_the_same_bits_aliases_and_strides() -> None:
    x = torch.randn(33, 7)
    odd = torch.tensor([float("nan"), -0.0, float("inf")])
    for copy in make_copies(original(torch.neg, x, [x.t(), odd], n=3), 20, "random").candidates:
        same, (turned, strange) = copy.args
        assert copy.kwargs == {"n": 3}
        assert torch.equal(same, x)
        assert (turned.stride(), turned.shape) == (x.t().stride(), x.t().shape)
        assert turned.untyped_storage()._cdata == same.untyped_storage()._cdata
        assert strange.view(torch.int32).tolist() == odd.view(torch.int32).tolist()
        assert same.data_ptr() % 512 == strange.data_ptr() % 512 == 0


def test_aligned_copies_begin_at_large_pages() -> None:
    for copy in make_copies(
        original(torch.neg, torch.ones(5), torch.ones(9)), 6, "aligned"
    ).candidates:
        assert [arg.data_ptr() % PAGE for arg in copy.args] == [0, 0]


@pytest.mark.parametrize("size", [8, 7])  # whole words, and single bytes
def test_copies_of_any_size_are_filled(size: int) -> None:
    x = torch.arange(size, dtype=torch.uint8)
    copies = make_copies(original(torch.neg, x), 16, "random")
    assert all(torch.equal(copy.args[0], x) for copy in copies.candidates)
    assert {copy.args[0].data_ptr() in copies.addresses for copy in copies.candidates} == {True}


def test_neither_pythons_nor_torchs_random_numbers_are_touched() -> None:
    state, torchs = random.getstate(), torch.get_rng_state()
    make_copies(original(torch.neg, torch.ones(4)), 8, "random")
    assert random.getstate() == state
    assert torch.equal(torch.get_rng_state(), torchs)


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_looked_for_while_copies_are_made(
    enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected_meanwhile = set()
    on = Original.on

    def note_and_copy(self: Original, storages: Storages) -> Candidate:
        collected_meanwhile.add(gc.isenabled())
        return on(self, storages)

    monkeypatch.setattr(Original, "on", note_and_copy)
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        make_copies(original(torch.neg, torch.ones(4)), 8, "random")
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert collected_meanwhile == {False}


def test_a_released_copy_holds_no_memory() -> None:
    copies = make_copies(original(torch.neg, torch.ones(4)), 8, "random")
    kept = copies.candidates[3].args[0]
    copies.release()
    assert (copies.candidates, copies.storages) == ([], [])
    assert torch.equal(kept, torch.ones(4)), "what a caller holds on to stays"


def test_there_are_as_many_places_as_memory_and_time_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.ones(1 << 18)  # 1 MiB
    assert count_places(original(torch.neg, x), "random", ROOM, Effort.of(Options())) == (256, "")
    assert count_places(original(torch.neg, x), "random", 10 << 20, Effort.of(Options())) == (
        10,
        "there is memory for 10 copies",
    )
    assert (
        count_places(original(torch.neg, torch.ones(1)), "aligned", 9 * PAGE, Effort.of(Options()))[
            0
        ]
        == 9
    )
    monkeypatch.setattr(placement_module, "_COPYING_SECONDS", 0.05)
    monkeypatch.setattr(placement_module, "_seconds_to_copy", lambda original, effort: 0.005)
    assert count_places(original(torch.neg, x), "random", ROOM, Effort.of(Options())) == (
        8,
        "copying its inputs takes 5.0 ms",
    )
    monkeypatch.setattr(placement_module, "_seconds_to_copy", lambda original, effort: 0.02)
    assert count_places(original(torch.neg, x), "random", ROOM, Effort.of(Options()))[0] == 4


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


def compiled_in_place() -> torch.nn.Module:
    model = torch.nn.Linear(2, 2)
    model.compile()
    return model


def with_graph() -> torch.Tensor:
    return torch.ones(4, requires_grad=True) * 2


def with_gradient() -> torch.Tensor:
    x = torch.ones(4, requires_grad=True)
    x.sum().backward()
    return x


def over_a_global() -> torch.Tensor:
    return GLOBAL + 1


def calls_a_helper() -> torch.Tensor:
    return over_a_global()


GLOBAL = torch.ones(4)

OBSTACLES: dict[str, tuple[Callable[[], tuple[Any, ...]], str]] = {
    "nothing": (lambda: (len, "abc"), "its arguments contain no tensor"),
    "empty": (lambda: (torch.neg, torch.empty(0)), "its arguments contain no tensor"),
    "global": (lambda: (calls_a_helper,), "no copies are made of global 'GLOBAL'"),
    "sparse": (
        lambda: (torch.neg, torch.eye(3).to_sparse()),
        "no copies are made of tensor of type Tensor (sparse_coo) in args[0]",
    ),
    "subclass": (
        lambda: (torch.neg, torch.ones(3).as_subclass(Subclass)),
        "no copies are made of tensor of type Subclass (strided) in args[0]",
    ),
    "lock": (
        lambda: (print, torch.ones(3), threading.Lock()),
        "copy.deepcopy fails on one of its inputs, a lock (cannot pickle '_thread.lock' object)",
    ),
    "graph": (
        lambda: (torch.neg, with_graph()),
        "copies would lack the autograd graph of an argument",
    ),
    "gradient": (
        lambda: (torch.neg, with_gradient()),
        "copies would lack the gradients of its arguments",
    ),
    "array": (
        lambda: (print, torch.ones(3), Array()),
        "no copies are made of another library's array (Array)",
    ),
    "finalizer": (
        lambda: (print, torch.ones(3), Finalized()),
        "no copies are made of an object with a finalizer (Finalized)",
    ),
    "freed": (
        lambda: (torch.neg, freed()),
        "the memory of one of its tensors was freed",
    ),
    "script": (
        lambda: (torch.jit.script(torch.nn.Linear(2, 2)), torch.ones(1, 2)),
        "no copies are made of code that torch.jit compiled (RecursiveScriptModule)",
    ),
    "compiled": (
        lambda: (torch.compile(torch.nn.Linear(2, 2)), torch.ones(1, 2)),
        "no copies are made of a module that torch.compile made, which might be recompiled for "
        "each copy",
    ),
    "compiled in place": (
        lambda: (compiled_in_place(), torch.ones(1, 2)),
        "no copies are made of a module that torch.compile made, which might be recompiled for "
        "each copy",
    ),
    "large": (
        lambda: (torch.neg, torch.empty(ROOM // 3, dtype=torch.uint8)),
        "its tensors take 341.3 MiB, and 4 copies do not fit into 1,024 MiB",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", OBSTACLES)
def test_why_tensors_stay_where_they_are(kind: str) -> None:
    make, reason = OBSTACLES[kind]
    with pytest.raises(CannotPlaceError) as raised:
        count_places(original(*make()), "random", ROOM, Effort.of(Options()))
    assert str(raised.value) == reason


def test_a_setup_that_refers_to_the_arguments_keeps_them_where_they_are() -> None:
    x = torch.ones(4)
    candidate = Candidate(torch.neg, x, before=lambda: x.zero_(), name="one")
    with pytest.raises(CannotPlaceError, match="setup refers to its arguments"):
        count_places(Original(candidate, CPU), "random", ROOM, Effort.of(Options()))


def test_many_objects_are_not_even_looked_at() -> None:
    many, x = [[i] for i in range(20_000)], torch.ones(4)

    def helper() -> int:
        return len(many)

    for candidate in (
        Candidate(len, many, x, name="held"),
        Candidate(lambda: (x, many), name="referred to"),
        Candidate(lambda: (x, helper()), name="by another"),
    ):
        assert placed(candidate).outcome("")["placement_reason"] == (
            "it refers to more than 10,000 objects, which take too long to copy"
        )


def test_gradients_do_not_matter_to_backward_passes() -> None:
    assert count_places(
        original(torch.neg, with_gradient()), "random", ROOM, Effort.of(Options()), backward=True
    )[0]


def placed(candidate: Candidate, **options: Any) -> PreparedCalls:
    """A candidate on the CPU, prepared as one on a GPU is, but for the results."""
    chosen = Options(**{"placement": "random", "cache": "warm", **options})
    calls = calls_module._on_gpu(candidate, chosen, CPU, ROOM)
    calls.result_blocks = None
    return calls


def run(calls: PreparedCalls, samples: int = 20) -> dict[str, Any]:
    (record,) = _C.time_candidates(
        candidates=[calls.described()],
        method="cpu",
        metric="busy",
        queue="none",
        regime="as-is",
        on_gpu=False,
        stream=0,
        flush=[],
        other_devices=[],
        several_ranks=False,
        warmup_calls=1,
        warmup_seconds=0.0,
        warmup_steady=False,
        max_steady_seconds=0.0,
        stop="count",
        min_samples=samples,
        max_samples=samples,
        budget=60.0,
        tolerance=0.01,
        margin=0.01,
        first_batch_seconds=0.0,
        seconds_left=float("inf"),
        on_batch=None,
    )
    return calls.outcome(record["results_reason"])


def test_each_call_is_on_another_copy_and_none_on_the_original() -> None:
    x = torch.ones(4)
    seen: list[int] = []
    calls = placed(Candidate(lambda a: seen.append(a.data_ptr()), x, name="one"), cache="cold")
    outcome = run(calls, samples=287)
    assert len(set(seen)) == 256
    assert x.data_ptr() not in seen
    assert sum(a == b for a, b in itertools.pairwise(seen)) == 32
    assert outcome == {
        "cache": "cold",
        "cache_reason": "",
        "placement": "random",
        "placement_reason": "",
        "placements": 256,
    }


def test_a_warm_call_comes_behind_an_untimed_one_on_the_same_copy() -> None:
    seen: list[int] = []
    setups: list[int] = []
    candidate = Candidate(
        lambda a: seen.append(a.data_ptr()),
        torch.ones(4),
        before=lambda: setups.append(len(seen)),
    )
    run(placed(candidate), samples=20)
    assert len(seen) == 1 + 2 * 20
    assert all(seen[i] == seen[i + 1] for i in range(1, len(seen), 2))
    assert setups == list(range(len(seen)))


def test_calls_that_write_are_made_on_the_original_which_loses_nothing() -> None:
    x, other = torch.zeros(4), torch.ones(4)
    calls = placed(Candidate(torch.Tensor.add_, x, other, name="one"))
    outcome = run(calls, samples=20)
    assert x.tolist() == [22.0] * 4  # as 22 calls without copies leave it
    assert other.tolist() == [1.0] * 4
    assert (outcome["placement"], outcome["placements"]) == ("as-is", 1)
    assert outcome["placement_reason"] == "a call writes different values to args[0] each time"


def test_copies_that_are_given_up_take_no_memory_meanwhile() -> None:
    alive: list[bool] = []

    def add(x: torch.Tensor) -> None:
        x.add_(1)
        alive.append(one_of_them() is not None)

    calls = placed(Candidate(add, torch.zeros(4), name="one"))
    one_of_them = weakref.ref(calls.copies.candidates[7].args[0])
    run(calls)
    assert alive[:2] == [True, True]
    assert not any(alive[2:])


def test_calls_that_write_elsewhere_than_they_are_given_are_noticed() -> None:
    x = torch.zeros(4)
    raw = x.numpy()  # as a kernel's raw pointer: nothing of the tensor is found here

    def write(a: torch.Tensor) -> None:
        raw[:] += 1

    outcome = run(placed(Candidate(write, x, name="one")), samples=20)
    assert x.tolist() == [21.0] * 4
    assert outcome["placement_reason"] == ("a call on a copy writes to the original of args[0]")


def test_calls_that_write_the_same_each_time_are_placed_as_the_first_left_them() -> None:
    x, out = torch.ones(4), torch.full((4,), 5.0)
    found: list[list[float]] = []

    def negate(x: torch.Tensor, out: torch.Tensor) -> None:
        found.append(out.tolist())
        torch.neg(x, out=out)

    outcome = run(placed(Candidate(negate, x, out, name="one"), cache="cold"), samples=20)
    assert outcome["placement"] == "random"
    assert out.tolist() == [-1.0] * 4
    assert found == [[5.0] * 4] + [[-1.0] * 4] * 21


def test_storages_at_odd_addresses_are_compared_too() -> None:
    buffer = torch.zeros(80, dtype=torch.uint8)
    x = torch.empty(0, dtype=torch.uint8).set_(buffer.untyped_storage()[1:65])
    assert x.data_ptr() % 8 == 1
    assert run(placed(Candidate(torch.neg, x, name="one")))["placement"] == "random"
    assert run(placed(Candidate(torch.Tensor.add_, x, 1, name="one")))["placement"] == "as-is"


def test_calls_that_resize_are_made_on_the_original() -> None:
    x, out = torch.ones(4), torch.empty(0)
    outcome = run(placed(Candidate(torch.neg, x, kwargs={"out": out}, name="one")))
    assert outcome["placement_reason"] == "a call resizes kwargs['out']"
    assert out.tolist() == [-1.0] * 4


class Batches:
    """Goes on to the next of its tensors in each call."""

    def __init__(self) -> None:
        self.turn = 0
        self.tensors = [torch.ones(4), torch.zeros(4)]

    def __call__(self) -> torch.Tensor:
        self.turn += 1
        return self.tensors[self.turn % 2] + 1


def test_calls_that_change_objects_are_made_on_the_original() -> None:
    batches = Batches()
    outcome = run(placed(Candidate(batches, name="one")), samples=20)
    assert outcome["placement_reason"] == "a call modifies one of its inputs, a Batches"
    assert batches.turn == 20


def test_calls_that_leave_gradients_are_made_on_the_original() -> None:
    weight = torch.ones(4, requires_grad=True)
    outcome = run(placed(Candidate(lambda w: (w * 2).sum().backward(), weight, name="one")))
    assert outcome["placement_reason"] == "a call adds to gradients of its arguments"


@pytest.mark.parametrize("training", [True, False])
def test_layers_that_keep_statistics_write_in_training_alone(training: bool) -> None:
    layer = torch.nn.BatchNorm1d(4).train(training)
    outcome = run(placed(Candidate(layer, torch.randn(8, 4), name="one")))
    assert (outcome["placement"] == "as-is") is training
    if training:
        assert outcome["placement_reason"] == "a call writes different values to fn each time"


def test_tensors_that_a_lambda_refers_to_are_placed() -> None:
    x = torch.ones(4)
    seen: list[int] = []
    outcome = run(placed(Candidate(lambda: seen.append(x.data_ptr()), name="one")))
    assert outcome["placement"] == "random"
    assert len(set(seen)) > 15
    assert x.data_ptr() not in seen


def test_what_a_lambda_writes_to_reaches_the_original() -> None:
    x = torch.zeros(4)
    outcome = run(placed(Candidate(lambda: x.add_(1), name="one")), samples=20)
    assert outcome["placement_reason"] == (
        "a call writes different values to closure variable 'x' each time"
    )
    assert x.tolist() == [22.0] * 4


def test_results_are_told_from_what_a_call_was_given() -> None:
    x = torch.ones(1000)
    copies = make_copies(original(torch.neg, x), 4, "random")
    given = copies.candidates[1].args[0]
    fresh = given + 1
    result = {"a": [fresh, fresh[3:]], "b": given[5:], "c": 3}
    assert blocks_outside(copies, CPU, result) == [(fresh.untyped_storage().data_ptr(), 4000)]
    assert blocks_outside(copies, CPU, None) == []


def test_checks_hold_on_to_nothing() -> None:
    model = torch.nn.Linear(4, 4)
    whole = Original(Candidate(model, torch.ones(2, 4), name="one"), CPU)
    copies = make_copies(whole, 4, "random")
    check = Check(whole, copies)
    kept = copies.candidates[0].fn
    assert check()
    copies.release()
    gc.collect()
    assert not [one for one in gc.get_referrers(kept) if isinstance(one, tuple | list)]


def test_backward_passes_of_copies_share_what_they_leave() -> None:
    model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    options = Options(placement="random")
    calls = calls_module._on_gpu(Candidate(model, x, backward=True, name="one"), options, CPU, ROOM)
    owners = [copy.fn for copy in calls.copies.candidates]
    calls_module._time_backward(calls)
    with_gradients = []
    for copy in calls.copies.candidates[:3]:
        assert copy.before is not None
        copy.before()
        copy.fn()
        with_gradients.append(sum(owner.weight.grad is not None for owner in owners))  # type: ignore[attr-defined]
    assert with_gradients == [1, 1, 1]
    assert model.weight.grad is None
    last = owners[2].weight.grad  # type: ignore[attr-defined]
    calls.finish()
    assert model.weight.grad is last
    assert calls.copies.candidates == []


def test_graphs_hold_few_calls_and_say_so() -> None:
    candidate = Candidate(torch.neg, torch.ones(4), name="one")
    calls = placed(candidate, method="graph", cache="cold")
    assert len(calls.copies.candidates) == 4
    assert calls.outcome("")["placement_reason"] == (
        "only 4 places: a graph holds so many calls; PyTorch's allocator places the "
        "results: a graph has a private memory pool"
    )
    warm = placed(candidate, method="graph", cache="warm")
    assert (warm.placement, len(warm.copies.candidates)) == ("as-is", 1)
    assert "captures calls back to back" in warm.outcome("")["placement_reason"]


def test_auto_says_what_it_chose_and_why() -> None:
    x = torch.ones(4)
    outcome = placed(Candidate(torch.neg, x, name="one"), placement="auto").outcome("")
    assert (outcome["placement"], outcome["placement_reason"]) == (
        "random",
        "its tensors can be copied, and calls leave them as they are",
    )
    host = placed(Candidate(torch.neg, x, name="one"), placement="auto", method="cpu").outcome("")
    assert (host["placement"], host["placement_reason"]) == (
        "as-is",
        "the host time of a call does not depend on it",
    )
    as_is = placed(Candidate(torch.neg, x, name="one"), placement="as-is").outcome("")
    assert (as_is["placement"], as_is["placement_reason"], as_is["placements"]) == ("as-is", "", 1)


def test_results_that_are_not_placed_are_told_of() -> None:
    calls = placed(Candidate(torch.neg, torch.ones(4), name="one"))
    assert calls.outcome("why")["placement_reason"] == (
        "PyTorch's allocator places the results: why"
    )


def test_copies_are_released_whatever_happens() -> None:
    seen: list[PreparedCalls] = []

    def failing() -> Iterator[None]:
        candidates = [Candidate(torch.neg, torch.ones(4), name="one")]
        with prepared_calls(candidates, Options(), CPU) as every:
            seen.extend(every)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        failing()
    assert seen[0].copies.candidates == []


@pytest.mark.parametrize("pinned", [True, False])
def test_where_tensors_lie_cuda_is_asked_by_their_address(
    pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def is_pinned(tensor: torch.Tensor) -> bool:
        asked.append(tensor.data_ptr())
        return pinned

    monkeypatch.setattr(torch.Tensor, "is_pinned", is_pinned)
    room = torch.ones(1024, dtype=torch.uint8)
    first = -room.data_ptr() % 256
    x = torch.empty(0, dtype=torch.uint8).set_(room.untyped_storage()[first : first + 512])
    original = Original(Candidate(torch.relu, x), torch.device("cpu"))
    assert placement_module.obstacle(original, backward=False) == ""
    original.device = torch.device("cuda")  # which a test without a GPU has no tensor on
    found = placement_module.obstacle(original, backward=False)
    assert found == ("one of its tensors is in host memory, unlike a copy" if pinned else "")
    assert asked == [x.data_ptr()]
    assert placement_module.obstacle(original, backward=False, any_address=True) == ""


def test_a_cpus_tensors_stay_where_they_are() -> None:
    one = convtime.time_op(torch.neg, torch.ones(4), max_samples=10, warmup=1)
    assert (one.placement, one.placement.requested, one.placements) == ("as-is", "auto", 1)
    assert one.placement.reason == "where a CPU's tensors lie is not controlled"
    assert one.placement_variance_share is None
    assert "placement: as-is (asked for auto: where a CPU's tensors" in flat(one)
    asked = convtime.time_op(torch.neg, torch.ones(4), max_samples=10, warmup=1, placement="as-is")
    assert asked.placement.reason == ""
    assert convtime.Measurement.from_dict(one.to_dict()) == one


QUICK: dict[str, Any] = {"warmup": 3, "max_samples": 300, "min_samples": 300, "budget": 5.0}


class Addresses:
    """Notes where its tensors and its results lie."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.made: list[int] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result = torch.relu(x)
        self.given.append(x.data_ptr())
        self.made.append(result.data_ptr())
        return result


def allocated() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


@pytest.mark.cuda
class TestOnGpu:
    @pytest.mark.timing  # the places are fewer where copies are slow
    @pytest.mark.parametrize("elements", [1 << 10, 1 << 18, 1 << 20, 3 << 20])
    def test_arguments_and_results_lie_elsewhere_in_each_call(self, elements: int) -> None:
        x = torch.randn(elements, device="cuda")
        noted = Addresses()
        one = convtime.time_op(noted, x, **QUICK)
        assert (one.placement, one.placement.requested) == ("random", "auto")
        assert one.placement.reason == (
            "its tensors can be copied, and calls leave them as they are"
        )
        assert one.placements == 256
        assert x.data_ptr() not in noted.given
        for addresses in (noted.given, noted.made[1:]):
            assert len(set(addresses)) > 200
            assert all(address % 512 == 0 for address in addresses)
            assert len({address % PAGE for address in addresses}) > 100

    def test_memory_is_pytorchs_again(self) -> None:
        x = torch.randn(1 << 20, device="cuda")
        convtime.time_op(torch.relu, x, **QUICK)  # what a process keeps is made once
        before = allocated()
        for _ in range(3):
            convtime.time_op(torch.relu, x, **QUICK)
            assert allocated() == before
        reserved = torch.cuda.memory_reserved()
        for _ in range(3):
            convtime.time_op(torch.relu, x, **QUICK)
        assert torch.cuda.memory_reserved() <= reserved + (32 << 20)

    def test_memory_is_pytorchs_again_behind_an_exception(self) -> None:
        calls = itertools.count()

        def fail(x: torch.Tensor) -> torch.Tensor:
            if next(calls) == 50:
                raise KeyError("mine")
            return torch.relu(x)

        x = torch.randn(1 << 20, device="cuda")
        convtime.time_op(torch.relu, x, **QUICK)
        before = allocated()
        with pytest.raises(KeyError, match="mine"):
            convtime.time_op(fail, x, **QUICK)
        assert allocated() == before

    @pytest.mark.parametrize("placement", ["auto", "random"])
    def test_writes_reach_the_original_as_without_copies(self, placement: Any) -> None:
        x = torch.zeros(1000, device="cuda")
        calls = []

        def add(x: torch.Tensor) -> None:
            calls.append(0)
            x.add_(1)

        one = convtime.time_op(add, x, placement=placement, **QUICK)
        assert (one.placement, one.placements) == ("as-is", 1)
        assert one.placement.reason == "a call writes different values to args[0] each time"
        assert x.tolist() == [float(len(calls))] * 1000

    def test_random_numbers_are_the_callers(self) -> None:
        x = torch.randn(1000, device="cuda")
        state = torch.cuda.get_rng_state()
        convtime.time_op(torch.relu, x, **QUICK)
        assert torch.equal(torch.cuda.get_rng_state(), state)

    def test_candidates_have_places_of_their_own(self) -> None:
        x = torch.randn(1 << 16, device="cuda")
        noted = Addresses(), Addresses()
        for one in noted:
            convtime.time_op(one, x, **QUICK)
        first, second = (dict.fromkeys(address % PAGE for address in one.given) for one in noted)
        assert list(first) != list(second)

    def test_aligned_arguments_begin_at_large_pages(self) -> None:
        noted = Addresses()
        x = torch.randn(1000, device="cuda")
        one = convtime.time_op(noted, x, placement="aligned", **QUICK)
        assert {address % PAGE for address in noted.given} == {0}
        assert "PyTorch's allocator places the results" in one.placement.reason

    def test_as_is_calls_the_tensors_that_were_given(self) -> None:
        noted = Addresses()
        x = torch.randn(1000, device="cuda")
        one = convtime.time_op(noted, x, placement="as-is", **QUICK)
        assert set(noted.given) == {x.data_ptr()}
        assert (one.placement, one.placement.reason, one.placements) == ("as-is", "", 1)

    @pytest.mark.parametrize("method", ["kernel", "event", "sync"])
    @pytest.mark.parametrize("cache", ["cold", "warm", "rotate"])
    def test_methods_and_caches_go_with_places(self, method: Any, cache: Any) -> None:
        noted = Addresses()
        x = torch.randn(1 << 16, device="cuda")
        one = convtime.time_op(noted, x, method=method, cache=cache, **QUICK)
        assert (one.placement, one.cache, one.method) == ("random", cache, method)
        assert one.placements > 100  # as many as could be copied in time
        assert len(set(noted.given)) > 100
        again = sum(a == b for a, b in itertools.pairwise(noted.given))
        if cache == "rotate":
            assert again == 0
        elif cache == "warm":
            assert again >= 300

    @pytest.mark.timing
    def test_warm_calls_at_many_places_are_as_fast_as_at_one(self) -> None:
        x = torch.randn(1 << 20, device="cuda")
        placed, as_is = (
            convtime.time_op(torch.relu, x, cache="warm", placement=placement)
            for placement in ("random", "as-is")
        )
        cold = convtime.time_op(torch.relu, x, cache="cold")
        assert placed.median == pytest.approx(as_is.median, rel=0.1)
        assert cold.median > 1.2 * placed.median

    @pytest.mark.parametrize("cache", ["cold", "warm", "rotate"])
    def test_graphs_hold_calls_at_several_places(self, cache: Any) -> None:
        x = torch.randn(1 << 20, device="cuda")
        one = convtime.time_op(torch.relu, x, method="graph", cache=cache, max_samples=50)
        if cache == "warm":
            assert (one.placement, one.placements) == ("as-is", 1)
            assert "captures calls back to back" in one.placement.reason
        else:
            assert one.placement == "random"
            assert one.placements >= 4
            assert "a graph has a private memory pool" in one.placement.reason

    def test_graphs_of_calls_that_write_hold_the_original(self) -> None:
        x = torch.zeros(1000, device="cuda")
        one = convtime.time_op(lambda x: x.add_(1), x, method="graph", max_samples=20)
        assert one.placement.reason == "a call writes different values to args[0] each time"
        assert len(x.unique()) == 1
        assert x[0] > 20

    def test_backward_passes_run_on_copies_without_growing(self) -> None:
        model = torch.nn.Linear(512, 512, device="cuda")
        x = torch.randn(256, 512, device="cuda")
        convtime.time_op(model, x, backward=True, **QUICK)
        model.zero_grad(set_to_none=True)
        before = allocated()
        one = convtime.time_op(model, x, backward=True, **QUICK)
        assert one.placement == "random"
        assert "they are gradients" in one.placement.reason
        assert model.weight.grad is not None  # the last call's
        model.zero_grad(set_to_none=True)
        assert allocated() == before

    def test_compiled_functions_are_compiled_once(self) -> None:
        compiled = torch.compile(lambda x: torch.relu(x) * 2)
        x = torch.randn(1 << 16, device="cuda")
        torch._dynamo.utils.counters.clear()
        one = convtime.time_op(compiled, x, **QUICK)
        assert one.placement == "random"
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1

    def test_results_of_several_kernels_are_placed_too(self) -> None:
        made: list[int] = []

        def several(x: torch.Tensor) -> torch.Tensor:
            result = torch.relu(x).mul(2).add(1)
            made.append(result.data_ptr())
            return result

        one = convtime.time_op(several, torch.randn(1 << 20, device="cuda"), **QUICK)
        assert one.placement == "random"
        assert "places the results" in one.placement.reason or len(set(made[12:])) > 100

    def test_where_there_is_no_memory_tensors_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(calls_module, "room_for_copies", lambda device, effort: 1 << 20)
        x = torch.randn(1 << 20, device="cuda")
        one = convtime.time_op(torch.relu, x, placement="random", **QUICK)
        assert (one.placement, one.placement.requested) == ("as-is", "random")
        assert one.placement.reason == (
            "its tensors take 4.0 MiB, and 4 copies do not fit into 1 MiB"
        )

    def test_tensors_that_allow_narrow_loads_alone_stay(self) -> None:
        part = torch.zeros(1 << 12, dtype=torch.uint8, device="cuda").untyped_storage()[4:2052]
        x = torch.empty(0, device="cuda").set_(part)
        one = convtime.time_op(torch.relu, x, **QUICK)
        assert one.placement.reason == (
            "one of its tensors is not aligned to 256 bytes, unlike a copy"
        )

    def test_a_stream_of_its_own_waits_for_what_is_copied(self) -> None:
        x = torch.empty(1 << 24, device="cuda")
        torch.cuda._sleep(100_000_000)
        x.fill_(3)
        seen: list[torch.Tensor] = []
        convtime.time_op(
            lambda x: seen.append(x[:1]) if len(seen) < 3 else torch.relu(x),
            x,
            stream=torch.cuda.Stream(),
            warmup=1,
            max_samples=10,
        )
        assert [one.item() for one in seen] == [3.0] * 3

    @pytest.mark.timing
    def test_a_default_call_is_prepared_quickly(self) -> None:
        whole = Original(
            Candidate(torch.relu, torch.randn(1024, device="cuda"), name="one"),
            torch.device("cuda", torch.cuda.current_device()),
        )
        make_copies(whole, 256, "random")
        start = time.perf_counter()
        make_copies(whole, 256, "random")
        assert time.perf_counter() - start < 0.01
