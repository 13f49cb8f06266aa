from __future__ import annotations

import time

import pytest
import torch

import convtime
from convtime.candidate import Candidate, backward_of, clearing_gradients, tensors_of

QUICK = {"warmup": 1, "min_samples": 1, "max_samples": 5}


def test_tensors_are_found_wherever_the_callable_reaches_them() -> None:
    x, y, z = (torch.zeros(1) for _ in range(3))
    module = torch.nn.Linear(2, 2)
    found = list(tensors_of(Candidate("one", lambda a, b: a + z, (x,), {"b": [y]})))
    assert {id(one) for one in (x, y, z)} <= {id(one) for one in found}
    found = list(tensors_of(Candidate("one", module.forward, (x,))))
    assert {id(one) for one in module.parameters()} <= {id(one) for one in found}


def test_backward_calls_follow_a_forward_pass_each_and_find_no_gradient() -> None:
    x = torch.randn(8, 4, requires_grad=True)
    module = torch.nn.Linear(4, 3)
    backward = backward_of(Candidate("linear", module, (x,)))
    assert backward.setup is not None
    gradients = []
    for _ in range(2):
        backward.setup()
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

    backward = backward_of(Candidate("one", forward, setup=lambda: log.append("setup")))
    assert backward.setup is not None
    backward.setup()
    assert log == ["setup", "forward"]


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


def test_a_result_without_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match="backward=True needs a result that requires grad, and"):
        convtime.time_op(torch.relu, torch.ones(2), backward=True, **QUICK)


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


def test_clearing_gradients_keeps_the_setup() -> None:
    log: list[str] = []
    x = torch.ones(1)
    x.grad = torch.ones(1)
    cleared = clearing_gradients(Candidate("one", log.clear, setup=lambda: log.append("a")), [x])
    assert cleared.setup is not None
    cleared.setup()
    assert (x.grad, log) == (None, ["a"])


def test_rates_of_a_cpu_are_set_against_its_own_ceilings() -> None:
    ceilings = convtime.ceilings("cpu")
    assert 1e8 < ceilings.bytes_per_second < 1e13
    assert 1e8 < ceilings.flops_per_second < 1e15
    assert ceilings.matmul_dtype == "float32"
    x = torch.randn(256, 256)
    one = convtime.time_op(torch.mm, x, x, flops=2 * 256**3, nbytes=3 * x.nbytes, **QUICK)
    assert one.ceilings == ceilings
    assert one.flops_per_second == pytest.approx(2 * 256**3 / one.median)
    assert "of this device's float32 matmul" in repr(one)


def test_a_cpus_cache_is_not_controlled() -> None:
    one = convtime.time_op(torch.relu, torch.ones(2), cache="rotate", **QUICK)
    assert (one.cache, one.cache_requested) == ("uncontrolled", "rotate")
    assert one.sm_clocks == ()
    assert one.max_sm_clock is None
