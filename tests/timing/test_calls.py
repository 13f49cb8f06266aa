"""How calls are made: on which copies, in which order, and on the original if they modify it."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import math
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import convtime
from convtime.timing.candidate import Candidate
from convtime.timing.options import Options
from convtime.timing.sampling import calls as calls_module
from convtime.timing.sampling.calls import prepared_calls
from tests.helpers.placed import CPU, ROOM, call, placed
from tests.helpers.texts import flat

PAGE = 2 << 20


def test_each_call_is_on_another_copy_and_none_on_the_original() -> None:
    x = torch.ones(4)
    seen: list[int] = []
    calls = placed(Candidate(lambda a: seen.append(a.data_ptr()), x, name="one"), cache="cold")
    outcome = call(calls, samples=287)
    assert len(set(seen)) == 256
    assert x.data_ptr() not in seen
    assert sum(a == b for a, b in itertools.pairwise(seen)) == 32
    said = {"cache": "cold", "cache_reason": "", "placement": "random", "placement_reason": ""}
    assert outcome == {**said, "placements": 256}
    seen.clear()
    call(placed(Candidate(lambda: seen.append(x.data_ptr()), name="one")))
    assert len(set(seen)) > 15, "what a function refers to is placed, too"
    assert x.data_ptr() not in seen


def test_a_warm_call_comes_behind_an_untimed_one_on_the_same_copy() -> None:
    seen: list[int] = []
    setups: list[int] = []
    fn, before = lambda a: seen.append(a.data_ptr()), lambda: setups.append(len(seen))
    call(placed(Candidate(fn, torch.ones(4), before=before)), samples=20)
    assert len(seen) == 1 + 2 * 20
    assert all(seen[i] == seen[i + 1] for i in range(1, len(seen), 2))
    assert setups == list(range(len(seen)))


def test_backward_passes_of_copies_share_what_they_leave() -> None:
    model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    options = Options(placement="random")
    calls = calls_module._on_gpu(Candidate(model, x, backward=True, name="one"), options, CPU, ROOM)
    owners: list[Any] = [copy.fn for copy in calls.candidates]
    calls_module._time_backward(calls)
    for copy in calls.candidates[:3]:
        assert copy.before is not None
        copy.before()
        copy.fn()
        assert sum(owner.weight.grad is not None for owner in owners) == 1
    assert model.weight.grad is None
    last = owners[2].weight.grad
    calls.finish()
    assert model.weight.grad is last
    assert calls.candidates == []


@pytest.mark.parametrize(
    ("options", "results", "placement", "places", "said"),
    [
        ({}, "", "random", 256, ""),
        ({}, "why", "random", 256, "PyTorch's allocator places the results: why"),
        ({"placement": "as-is"}, "", "as-is", 1, ""),
        ({"placement": "auto"}, "", "random", 256, "can be copied, and calls leave them as they"),
        ({"placement": "auto", "method": "cpu"}, "", "as-is", 1, "host time .* does not depend"),
        ({"placement": "aligned"}, "", "aligned", 256, "places the results: it aligns to 512"),
        ({"quick": True}, "", "random", 16, "only 16 places: quick"),
        (
            {"method": "graph", "cache": "cold"}, "", "random", 4,
            "only 4 places: a graph holds so many calls; .* a graph has a private memory pool",
        ),
        ({"method": "graph"}, "", "as-is", 1, "captures calls back to back"),
    ],
)  # fmt: skip
def test_what_is_done_and_why(
    options: dict[str, Any], results: str, placement: str, places: int, said: str
) -> None:
    calls = placed(Candidate(torch.neg, torch.ones(4), name="one"), **options)
    outcome = calls.outcome(results)
    assert (outcome["placement"], outcome["placements"]) == (placement, places)
    assert bool(outcome["placement_reason"]) == bool(said)
    assert re.search(said, outcome["placement_reason"])


def test_what_cannot_be_rotated_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "working_set_bytes", lambda device: 1024)
    x, y = torch.ones(4), torch.ones(4)
    for fn, args, cache, copies in (
        (functools.partial(lambda: x + 1), (), "warm", 1),
        (functools.partial(lambda a: a + x), (y,), "partly warm", 1 + 1024 // 128),
        (torch.neg, (y,), "rotate", 1 + 1024 // 128),
        (math.sqrt, (2.0,), "warm", 1),
    ):
        calls = placed(Candidate(fn, *args, name="one"), cache="rotate", placement="as-is")
        outcome = calls.outcome("")
        assert (outcome["cache"], outcome["placements"]) == (cache, copies)
        said = "no tensor" if fn is math.sqrt else "closure variable 'x'"
        assert (said in outcome["cache_reason"]) == (cache != "rotate")


def test_copies_are_released_whatever_happens() -> None:
    one = Candidate(torch.neg, torch.ones(4), name="one")
    with contextlib.suppress(KeyError), prepared_calls([one], Options(), CPU) as (calls,):
        raise KeyError("mine")
    assert calls.candidates == []


def test_a_cpus_tensors_stay_where_they_are() -> None:
    one = convtime.time_op(torch.neg, torch.ones(4), max_samples=10, warmup=1)
    assert (one.placement, one.placement.requested, one.placements) == ("as-is", "auto", 1)
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
    @pytest.mark.parametrize("elements", [1 << 10, 1 << 20, 3 << 20])
    def test_arguments_and_results_lie_elsewhere_in_each_call(self, elements: int) -> None:
        x = torch.randn(elements, device="cuda")
        noted, again = Addresses(), Addresses()
        one = convtime.time_op(noted, x, **QUICK)
        assert (one.placement, one.placement.requested, one.placements) == ("random", "auto", 256)
        assert x.data_ptr() not in noted.given
        for addresses in (noted.given, noted.made[1:]):
            assert len(set(addresses)) > 200
            assert all(address % 512 == 0 for address in addresses)
            assert len({address % PAGE for address in addresses}) > 100
        convtime.time_op(again, x, **QUICK)
        first, second = ([*dict.fromkeys(a % PAGE for a in one.given)] for one in (noted, again))
        assert first != second

    def test_memory_and_random_numbers_are_pytorchs_again(self) -> None:
        counted = itertools.count()

        def fail(x: torch.Tensor) -> torch.Tensor:
            if next(counted) == 50:
                raise KeyError("mine")
            return torch.relu(x)

        x = torch.randn(1 << 20, device="cuda")
        convtime.time_op(torch.relu, x, **QUICK)  # what a process keeps is made once
        before, reserved = allocated(), torch.cuda.memory_reserved()
        state = torch.cuda.get_rng_state()
        for _ in range(3):
            convtime.time_op(torch.relu, x, **QUICK)
            assert allocated() == before
        assert torch.cuda.memory_reserved() <= reserved + (32 << 20)
        assert torch.equal(torch.cuda.get_rng_state(), state)
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
        convtime.time_op(torch.Tensor.add_, x, 1, method="graph", max_samples=20)
        assert len(x.unique()) == 1
        assert x[0] > len(calls) + 20

    def test_aligned_and_as_is_tensors_lie_where_they_are_asked_to(self) -> None:
        x = torch.randn(1000, device="cuda")
        aligned, as_is = Addresses(), Addresses()
        one = convtime.time_op(aligned, x, placement="aligned", **QUICK)
        assert {address % PAGE for address in aligned.given} == {0}
        assert "PyTorch's allocator places the results" in one.placement.reason
        one = convtime.time_op(as_is, x, placement="as-is", **QUICK)
        assert set(as_is.given) == {x.data_ptr()}
        assert (one.placement, one.placement.reason, one.placements) == ("as-is", "", 1)

    @pytest.mark.parametrize("method", ["kernel", "event", "sync", "graph"])
    @pytest.mark.parametrize("cache", ["cold", "warm", "rotate"])
    def test_methods_and_caches_go_with_places(self, method: Any, cache: Any) -> None:
        noted = Addresses()
        x = torch.randn(1 << 16, device="cuda")
        one = convtime.time_op(noted, x, method=method, cache=cache, **QUICK)
        as_is = (method, cache) == ("graph", "warm")
        assert (one.placement, one.cache) == ("as-is" if as_is else "random", cache)
        assert one.method == method
        if method == "graph":
            assert one.placements == 1 if as_is else one.placements >= 4
            return
        assert one.placements > 100  # as many as could be copied in time
        assert len(set(noted.given)) > 100
        again = sum(a == b for a, b in itertools.pairwise(noted.given))
        assert cache != "rotate" or again == 0
        assert cache != "warm" or again >= 300

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

    @pytest.mark.thorough
    def test_compiled_functions_are_compiled_once(self) -> None:
        compiled = torch.compile(lambda x: torch.relu(x) * 2)
        torch._dynamo.utils.counters.clear()
        one = convtime.time_op(compiled, torch.randn(1 << 16, device="cuda"), **QUICK)
        assert one.placement == "random"
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1

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


def outcome_of(fn: Callable[..., object], *args: Any, **kwargs: Any) -> tuple[str, str]:
    outcome = call(placed(Candidate(fn, *args, kwargs=kwargs, name="one")))
    return outcome["placement"], outcome["placement_reason"]


def test_calls_that_write_lose_nothing_of_it() -> None:
    x, other = torch.zeros(4), torch.ones(4)
    calls = placed(Candidate(torch.Tensor.add_, x, other, name="one"))
    given_up = weakref.ref(calls.candidates[7].args[0])
    outcome = call(calls)
    assert given_up() is None
    assert x.tolist() == [22.0] * 4  # as 22 calls without copies leave it
    assert other.tolist() == [1.0] * 4
    assert (outcome["placement"], outcome["placements"]) == ("as-is", 1)
    assert outcome["placement_reason"] == "a call writes different values to args[0] each time"
    found = outcome_of(lambda: x.add_(1))
    assert found == ("as-is", "a call writes different values to closure variable 'x' each time")
    assert x.tolist() == [44.0] * 4


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


def test_bytes_are_compared_at_any_address_and_of_any_size() -> None:
    buffer = torch.zeros(80, dtype=torch.uint8)
    for first, nbytes in ((0, 64), (1, 64), (0, 63)):
        x = torch.empty(0, dtype=torch.uint8).set_(buffer.untyped_storage()[first : first + nbytes])
        assert outcome_of(torch.neg, x)[0] == "random"
        assert outcome_of(lambda x: x[-1:].add_(1), x)[0] == "as-is"


class Batches:
    turn = 0

    def __init__(self) -> None:
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
    layer, x = torch.nn.BatchNorm1d(4), torch.randn(8, 4)  # keeps statistics in training alone
    assert outcome_of(layer.eval(), x)[0] == "random"
    expected = ("as-is", "a call writes different values to fn each time")
    assert outcome_of(layer.train(), x) == expected
