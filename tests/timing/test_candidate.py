from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import convtime
import convtime.timing.compare
from convtime.timing.candidate import Candidate, backward_of, candidates_of, clearing_gradients
from tests.helpers.texts import flat

QUICK: dict[str, Any] = {"warmup": 1, "min_samples": 1, "max_samples": 5}


def test_backward_calls_follow_a_forward_pass_each_and_find_no_gradient() -> None:
    class Holder:  # parameters are found behind any object
        module = torch.nn.Linear(4, 3)

    weight, x = Holder.module.weight, torch.randn(8, 4, requires_grad=True)
    log: list[str] = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        log.append("forward")
        return Holder.module(x)

    candidate = Candidate(forward, x, before=lambda: log.append("setup"), name="linear")
    backward = backward_of(candidate)
    assert backward.before is not None
    gradients: list[Any] = []
    for _ in range(2):
        backward.before()
        assert (x.grad, weight.grad) == (None, None)
        backward.fn()
        gradients.append(x.grad)
    assert log == ["setup", "forward"] * 2
    # The same random gradients each time, and nothing added up.
    assert torch.equal(*gradients)
    assert gradients[0].abs().sum() > 0


def test_leaves_that_vary_from_call_to_call_find_no_gradient() -> None:
    experts = [torch.randn(4, requires_grad=True) for _ in range(3)]
    turns = itertools.cycle(experts)
    backward = backward_of(Candidate(lambda: next(turns) * 2, name="mixture"))
    assert backward.before is not None
    for call in range(7):
        backward.before()
        assert all(expert.grad is None for expert in experts)
        backward.fn()
        assert experts[call % 3].grad is not None


@pytest.mark.filterwarnings("ignore:.*nested.*:UserWarning")
def test_backward_needs_a_result_with_gradients_that_can_be_drawn() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    tree: dict[str, object] = {"x": x}
    tree["self"] = tree
    for call, message in (
        (lambda x: x.detach(), "needs a result that requires grad"),
        (lambda x: x.to_sparse(), "does not make for the sparse COO tensor that 'result' ret"),
        (lambda x: [torch.nested.as_nested_tensor([x, x])], "for the nested tensor that 'result'"),
        (lambda x: tree, "must not contain itself.* got a dict that does"),
    ):
        with pytest.raises(ValueError, match=message):
            convtime.time_op(call, x, name="result", backward=True, **QUICK)
    off = r"torch\.inference_mode\(\) turns off for 'relu'; time it"
    with torch.inference_mode(), pytest.raises(ValueError, match=off):
        convtime.time_op(torch.relu, x, backward=True, **QUICK)
    with torch.no_grad():
        convtime.time_op(lambda: x, backward=True, device="cpu", **QUICK)
    assert x.grad is not None
    assert x.grad.abs().max() < 10  # of one call, not of all


def test_gradients_of_an_iterator_are_cleared_before_every_call() -> None:
    module, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    log: list[object] = []

    def call() -> None:
        log.append(module.bias.grad)
        module(x).sum().backward()

    given: Any = {"grad_to_none": module.parameters(), "before": lambda: log.append("before")}
    convtime.time_op(call, device="cpu", **given, **QUICK)
    assert torch.equal(module.bias.grad, torch.ones(2))
    assert log == ["before", None] * (len(log) // 2)
    cleared = clearing_gradients(Candidate(call, name="one", grad_to_none=[module.bias]))
    assert cleared.before is not None
    cleared.before()
    assert module.bias.grad is None


def test_candidates_of_a_comparison_have_arguments_of_their_own() -> None:
    x, y = torch.ones(2), torch.ones(3)
    seen: list[tuple[int, int]] = []
    log: list[str] = []
    flops: Any = np.int64(7)

    def call(tensor: torch.Tensor, *, scale: int) -> torch.Tensor:
        seen.append((id(tensor), scale))
        return tensor * scale

    a = convtime.Candidate(call, x, kwargs={"scale": 2}, flops=flops)
    b = Candidate(call, y, kwargs={"scale": 3}, before=lambda: log.append("b"))
    compared = convtime.compare({"a": a, "b": b}, device="cpu", **QUICK)
    assert set(seen) == {(id(x), 2), (id(y), 3)}
    assert len(log) == seen.count((id(y), 3))
    one, other = compared.measurements.values()
    assert (json.loads(one.to_json())["flops"], other.flops) == (7.0, None)
    assert one.ceilings is not None
    never = dataclasses.replace(one, seconds=(0.0, 0.0), batches=())
    assert never.flops_per_second == math.inf
    assert "inf" in flat(never)


def test_backward_is_a_candidates_own() -> None:
    x = torch.randn(3, requires_grad=True)
    forward, backward = Candidate(torch.relu, x), Candidate(torch.relu, x, backward=True)
    compared = convtime.compare([forward, backward], **QUICK)
    assert list(compared.measurements) == ["relu", "relu 2"]
    assert x.grad is not None
    assert compared.same_results["relu 2"].same is True


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"b": torch.relu, "a": Candidate(int, name="c")}, ["b", "a"]),
        ([torch.relu, Candidate(int), functools.partial(len, [])], ["relu", "int", "len"]),
        ((int, int, Candidate(len, [], name="int 2"), int), ["int", "int 2", "int 2 2", "int 3"]),
    ],
)
def test_names_are_the_mappings_or_the_functions(given: Any, names: list[str]) -> None:
    assert [candidate.name for candidate in candidates_of(given)] == names
    assert repr(Candidate(torch.relu, torch.ones(1000))) == "<convtime.Candidate relu>"


def test_a_control_is_a_candidate_of_its_own() -> None:
    """It has the baseline's function and arguments, and another name than the others."""
    seen: list[int] = []
    one, two = (Candidate(seen.append, each, before=int) for each in (1, 2))  # a call a sample
    options: dict[str, Any] = {"control": True, "interference": False, "check": None, **QUICK}
    compared = convtime.compare({"control": one, "b": two}, baseline="b", **options)
    assert list(compared.measurements) == ["control", "b", "control 2"]
    assert (compared.baseline, compared.control) == ("b", "control 2")
    assert compared.others == ("control",)
    assert seen.count(2) == 2 * seen.count(1)
    assert compared.measurements["control"].stop == "verdict"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"name": 3}, TypeError, "a measurement's name must be a string, got 3"),
        ({"before": 3}, TypeError, "before must be callable, got int"),
        ({"backward": 1}, TypeError, "backward must be True or False, got 1"),
        ({"grad_to_none": 3}, TypeError, "grad_to_none must be a sequence of tensors, got 3"),
        ({"grad_to_none": torch.ones(2)}, TypeError, "a sequence of tensors, got one tensor"),
        ({"grad_to_none": [1]}, TypeError, "an element of grad_to_none must be a tensor, got 1"),
        ({"kwargs": [1]}, TypeError, r"kwargs must be a mapping of names to values, got \[1\]"),
        ({"flops": b"12"}, ValueError, "flops must be a positive number"),
        ({"nbytes": 0}, ValueError, "nbytes must be a positive number, got 0"),
    ],
)
def test_what_a_candidate_cannot_be_is_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Candidate(int, **options)
    with pytest.raises(error, match=message):
        convtime.time_op(int, device="cpu", **options)


def test_a_candidate_has_its_arguments_and_can_have_another_name() -> None:
    candidate = Candidate(abs, 1, name="a")
    with pytest.raises(TypeError, match="got the Candidate 'a' and arguments, backward; pass"):
        convtime.time_op(candidate, 2, backward=True)
    assert convtime.time_op(candidate, name="b", device="cpu", **QUICK).name == "b"
    with pytest.raises(TypeError, match="must be callable, got Tensor"):
        convtime.time_op(torch.ones(1))  # type: ignore[arg-type]


def test_the_cache_of_a_cpu_is_not_controlled() -> None:
    for asked in ("rotate", "cold-clean"):
        one = convtime.time_op(torch.relu, torch.ones(2), cache=asked, **QUICK)
        assert (one.cache, one.cache.requested) == ("uncontrolled", asked)
        assert one.cache.reason == "on a CPU, only cache='cold' is controlled"
