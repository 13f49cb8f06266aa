from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import convtime
import convtime.timing.compare
from convtime.timing.candidate import Candidate, backward_of, candidates_of, clearing_gradients
from convtime.timing.sampling.measure import measure
from tests.helpers.texts import flat

QUICK: dict[str, Any] = {"warmup": 1, "min_samples": 1, "max_samples": 5}


def test_backward_calls_follow_a_forward_pass_each_and_find_no_gradient() -> None:
    x = torch.randn(8, 4, requires_grad=True)
    module = torch.nn.Linear(4, 3)
    backward = backward_of(Candidate(module, x, name="linear"))
    assert backward.before is not None
    gradients: list[torch.Tensor] = []
    for _ in range(2):
        backward.before()
        assert x.grad is None
        assert module.weight.grad is None
        backward.fn()
        assert x.grad is not None
        gradients.append(x.grad.clone())
    # The same random gradients each time, and nothing added up.
    assert torch.equal(*gradients)
    assert gradients[0].abs().sum() > 0


def test_backward_runs_the_candidates_own_setup_first() -> None:
    log: list[str] = []
    x = torch.randn(3, requires_grad=True)

    def forward() -> torch.Tensor:
        log.append("forward")
        return x * 2

    backward = backward_of(Candidate(forward, name="one", before=lambda: log.append("setup")))
    assert backward.before is not None
    backward.before()
    assert log == ["setup", "forward"]


@pytest.mark.timing
def test_only_the_backward_pass_is_timed() -> None:
    class SlowForward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.01)
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            return grad

    x = torch.randn(4, requires_grad=True)
    assert convtime.time_op(SlowForward.apply, x, **QUICK).median >= 0.01
    assert convtime.time_op(SlowForward.apply, x, backward=True, **QUICK).median < 0.005


def test_leaves_that_vary_from_call_to_call_find_no_gradient() -> None:
    experts = [torch.randn(4, requires_grad=True) for _ in range(3)]
    turns = itertools.cycle(experts)
    backward = backward_of(Candidate(lambda: next(turns) * 2, name="mixture"))
    assert backward.before is not None
    for call in range(7):
        backward.before()
        assert all(expert.grad is None for expert in experts)
        backward.fn()
        assert [expert.grad is not None for expert in experts].index(True) == call % 3


def test_a_result_without_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match="backward=True needs a result that requires grad"):
        convtime.time_op(torch.relu, torch.ones(2), backward=True, **QUICK)


def test_a_backward_pass_under_inference_mode_is_refused_and_says_why() -> None:
    x = torch.ones(2, requires_grad=True)
    with (
        torch.inference_mode(),
        pytest.raises(ValueError, match=r"torch\.inference_mode\(\) turns off for 'relu'; time it"),
    ):
        convtime.time_op(torch.relu, x, backward=True, **QUICK)
    with torch.no_grad():
        assert convtime.time_op(torch.relu, x, backward=True, **QUICK).seconds


@pytest.mark.filterwarnings("ignore:.*nested.*:UserWarning")
@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (lambda x: x.to_sparse(), "sparse COO"),
        (lambda x: [x, torch.nested.as_nested_tensor([x, x])], "nested"),
    ],
)
def test_results_without_random_gradients_are_refused_in_a_sentence(
    result: Callable[[torch.Tensor], object], kind: str
) -> None:
    x = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(ValueError, match=f"does not make for the {kind} tensor that 'result' ret"):
        convtime.time_op(result, x, name="result", backward=True, **QUICK)


def test_a_result_that_contains_itself_is_refused_in_a_sentence() -> None:
    tree: dict[str, object] = {"x": torch.ones(2, requires_grad=True)}
    tree["self"] = tree
    with pytest.raises(ValueError, match="must not contain itself.* got a dict that does"):
        convtime.time_op(lambda: tree, backward=True, **QUICK)


def test_gradients_are_cleared_before_each_call() -> None:
    x = torch.ones(2, requires_grad=True)
    seen: list[torch.Tensor | None] = []

    def call() -> None:
        seen.append(x.grad)
        (x * 2).sum().backward()

    convtime.time_op(call, grad_to_none=[x], **QUICK)
    assert len(seen) > 1
    assert set(seen) == {None}
    seen.clear()
    convtime.time_op(call, **QUICK)
    assert seen[-1] is not None


def test_gradients_of_an_iterator_are_cleared_before_every_call() -> None:
    module = torch.nn.Linear(2, 2)
    x = torch.ones(1, 2)
    convtime.time_op(
        lambda: module(x).sum().backward(), grad_to_none=module.parameters(), device="cpu", **QUICK
    )
    assert torch.equal(module.bias.grad, torch.ones(2))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (torch.ones(2), "must be a sequence of tensors, got one tensor"),
        ([1], "grad_to_none must hold tensors, got int"),
    ],
)
def test_only_gradients_of_tensors_can_be_cleared(tensors: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        convtime.time_op(int, grad_to_none=tensors, device="cpu", **QUICK)  # type: ignore[arg-type]


def test_backward_finds_the_parameters_behind_any_object() -> None:
    class Holder:
        module = torch.nn.Linear(4, 4)

    holder = Holder()
    x = torch.randn(2, 4)
    backward = backward_of(Candidate(lambda features: holder.module(features), x, name="one"))
    assert backward.before is not None
    found = []
    for _ in range(3):
        backward.before()
        backward.fn()
        found.append(holder.module.weight.grad.clone())
    assert torch.equal(found[0], found[2])


def test_backward_of_an_input_itself() -> None:
    x = torch.randn(3, requires_grad=True)
    convtime.time_op(lambda: x, backward=True, device="cpu", **QUICK)
    assert x.grad is not None
    assert x.grad.abs().max() < 10  # of one call, not of all


def test_clearing_gradients_keeps_the_setup() -> None:
    log: list[str] = []
    x = torch.ones(1)
    x.grad = torch.ones(1)
    cleared = clearing_gradients(
        Candidate(log.clear, name="one", before=lambda: log.append("a"), grad_to_none=[x])
    )
    assert cleared.before is not None
    cleared.before()
    assert (x.grad, log) == (None, ["a"])


def test_rates_are_plain_numbers() -> None:
    one = convtime.time_op(torch.relu, torch.ones(2), flops=np.int64(7), **QUICK)  # type: ignore[arg-type]
    assert json.loads(one.to_json())["flops"] == 7.0
    never = dataclasses.replace(one, seconds=(0.0, 0.0), batches=())
    assert never.flops_per_second == float("inf")
    assert "inf" in flat(never)


def test_candidates_of_a_comparison_have_arguments_of_their_own() -> None:
    x, y = torch.ones(2), torch.ones(3)
    seen: dict[str, list[Any]] = {"a": [], "b": []}
    log: list[str] = []

    def call(name: str, tensor: torch.Tensor, *, scale: int) -> torch.Tensor:
        seen[name].append((tensor, scale))
        return tensor * scale

    compared = convtime.compare(
        {
            "a": convtime.Candidate(call, "a", x, kwargs={"scale": 2}, flops=7),
            "b": Candidate(call, "b", y, kwargs={"scale": 3}, before=lambda: log.append("b")),
        },
        device="cpu",
        **QUICK,
    )
    assert {id(tensor) for tensor, _ in seen["a"]} == {id(x)}
    assert {(id(tensor), scale) for tensor, scale in seen["b"]} == {(id(y), 3)}
    assert len(log) == len(seen["b"])
    one, other = compared.measurements.values()
    assert (one.flops, other.flops) == (7.0, None)
    assert one.ceilings is not None


def test_backward_is_a_candidates_own() -> None:
    x = torch.randn(3, requires_grad=True)
    forward, backward = Candidate(torch.relu, x), Candidate(torch.relu, x, backward=True)
    compared = convtime.compare([forward, backward], **QUICK)
    assert list(compared.measurements) == ["relu", "relu 2"]
    assert x.grad is not None
    assert compared.same_results["relu 2"].same is True
    with pytest.raises(ValueError, match="method 'graph' captures calls back to back"):
        convtime.compare([forward, backward], method="graph")


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


def test_the_baseline_of_a_comparison_can_be_named() -> None:
    compared = convtime.compare(
        {"slow": lambda: time.sleep(0.002), "fast": lambda: time.sleep(0.0005)},
        baseline="fast",
        control=True,
        device="cpu",
        stop="count",
        warmup=1,
        max_samples=20,
    )
    assert list(compared.measurements) == ["slow", "fast", "control"]
    assert (compared.baseline, compared.control, compared.others) == ("fast", "control", ("slow",))
    assert compared.ratio("slow").value > 1
    with pytest.raises(ValueError, match=r"baseline must be one of \['a', 'b'\], got 'c'"):
        convtime.compare({"a": int, "b": int}, baseline="c")
    with pytest.raises(ValueError, match="control must be True or False, got 'yes'"):
        convtime.compare({"a": int, "b": int}, control="yes")  # type: ignore[call-overload]


def test_a_control_is_a_candidate_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the baseline's function and arguments, and another name than the others."""
    timed: list[Candidate] = []

    def noting(
        candidates: list[Candidate], options: Any, **limit: Any
    ) -> list[convtime.Measurement]:
        timed.extend(candidates)
        return measure(candidates, options, **limit)

    monkeypatch.setattr("convtime.timing.together.measure", noting)
    x = torch.ones(2)
    compared = convtime.compare(
        {"control": Candidate(torch.relu, x)}, control=True, interference=False, **QUICK
    )
    first, second = timed
    assert (first.name, second.name) == ("control", "control 2")
    assert (second.fn, second.args) == (torch.relu, (x,))
    assert first is not second
    assert compared.control == "control 2"
    assert compared.measurements["control"].stop == "verdict"


def test_a_candidates_repr_is_short() -> None:
    assert repr(Candidate(torch.relu, torch.ones(1000))) == "<convtime.Candidate relu>"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": 3}, "a measurement's name must be a string, got 3"),
        ({"before": 3}, "before must be callable, got int"),
        ({"backward": 1}, "backward must be True or False, got 1"),
        ({"grad_to_none": 3}, "grad_to_none must be a sequence of tensors, got 3"),
    ],
)
def test_what_a_candidate_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Candidate(int, **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kwargs": [1]}, TypeError, r"kwargs must be a mapping of names to values, got \[1\]"),
        ({"kwargs": 0}, TypeError, "kwargs must be a mapping"),
        ({"flops": b"12"}, ValueError, "flops must be a positive number"),
        ({"budget": b"1"}, ValueError, "budget must be a number"),
        ({"min_samples": np.array([1, 2])}, ValueError, "min_samples must be a whole number"),
        ({"warmup": np.array([1, 2])}, ValueError, "warmup must be 'steady', a whole number"),
    ],
)
def test_odd_values_are_refused_in_a_sentence(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        convtime.time_op(int, device="cpu", **options)


def test_a_cpus_cache_is_not_controlled() -> None:
    one = convtime.time_op(torch.relu, torch.ones(2), cache="rotate", **QUICK)
    assert (one.cache, one.cache.requested) == ("uncontrolled", "rotate")
    assert one.sm_clocks_hz == ()
    assert one.max_sm_clock_hz is None


def test_candidates_must_have_names() -> None:
    with pytest.raises(ValueError, match="each candidate must have a name"):
        convtime.compare({"a": int, "": int})
