"""Quick timing, and the replacements for triton's timing functions that use it."""

from __future__ import annotations

import inspect
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import convtime
from convtime.testing import do_bench, do_bench_cudagraph
from convtime.timing.options import Options
from convtime.timing.sampling.measure import quick_sampling
from tests.helpers.measurements import on_cpu


class Sleeper:
    calls = 0

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> None:
        self.calls += 1
        time.sleep(self.seconds)


def test_a_long_call_is_made_once_and_timed_five_times() -> None:
    call = Sleeper(0.02)
    measured = convtime.time_op(call, device="cpu", quick=True)
    assert (call.calls, len(measured.seconds), measured.warmup_calls) == (6, 5, 1)
    assert measured.stop_reason == "budget"
    a, b = Sleeper(0.01), Sleeper(0.02)
    convtime.compare({"a": a, "b": b}, device="cpu", quick=True, check=None, interference=False)
    assert a.calls == b.calls == 6, "they share the rounds"


@settings(max_examples=40)
@given(st.floats(0, 0.03), st.integers(1, 4), st.floats(1e-5, 1), st.booleans())
def test_sampling_gets_the_time_that_is_left(
    elapsed: float, candidates: int, budget: float, on_gpu: bool
) -> None:
    """Of 10 ms for each candidate, 4.2 ms go to other things."""
    options = Options(quick=True, budget=budget)
    found = quick_sampling(options, elapsed, candidates, on_gpu=on_gpu)
    left = max(0.001, 0.0058 * candidates - elapsed)
    assert found.budget == pytest.approx(min(budget, left))
    assert (found.regime, found.warmup, found.min_samples) == ("as-is" if on_gpu else "auto", 1, 5)
    asked = Options(quick=True, warmup=7, min_samples=9)
    found = quick_sampling(asked, elapsed, candidates, on_gpu=on_gpu)
    assert (found.warmup, found.min_samples) == (7, 9)


class TestDoBench:
    def test_its_parameters_are_tritons(self) -> None:
        """As in triton 3.6: whoever passes them by position or by name can pass them here."""
        last = {"grad_to_none": None, "quantiles": None, "return_mode": "mean"}
        for function, first in (
            (do_bench, {"warmup": 25, "rep": 100}),
            (do_bench_cudagraph, {"rep": 20}),
        ):
            fn, *taken = inspect.signature(function).parameters.values()
            assert fn.name == "fn"
            assert {each.name: each.default for each in taken} == {**first, **last}

    @settings(max_examples=20)
    @given(
        st.lists(st.integers(1000, 10**9), min_size=1, max_size=40), st.floats(0.1, 30), st.data()
    )
    def test_modes_and_quantiles_are_numpys(
        self, nanoseconds: list[int], rep: float, data: st.DataObject
    ) -> None:
        milliseconds = np.array(nanoseconds) * 1e-6
        quantiles = data.draw(st.lists(st.floats(0, 1), min_size=2, max_size=3))
        asked: dict[str, Any] = {}

        def time_op(fn: object, **options: Any) -> convtime.Measurement:
            asked.update(options)
            return on_cpu(tuple(1e-9 * each for each in nanoseconds), clock_tick=1e-12)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(convtime.testing, "time_op", time_op)
            for function in (do_bench, do_bench_cudagraph):
                assert function(int, rep=rep) == pytest.approx(milliseconds.mean())
                for mode in ("min", "max", "mean", "median"):
                    found = function(int, rep=rep, return_mode=mode)
                    assert found == pytest.approx(getattr(np, mode)(milliseconds), rel=1e-3), mode
                assert function(int, return_mode="all") == pytest.approx(milliseconds)
                found = function(int, quantiles=quantiles)  # the way of triton.autotune
                assert found == pytest.approx(np.quantile(milliseconds, quantiles))
                one = function(int, rep=rep, quantiles=quantiles[:1])
                assert one == pytest.approx(np.quantile(milliseconds, quantiles[0]))
                assert asked["quick"]
                assert asked["budget"] == pytest.approx(min(rep, 10) * 1e-3)
        assert (asked["method"], asked["cache"]) == ("graph", "warm")

    def test_gradients_are_set_to_none_before_each_call(self) -> None:
        x = torch.ones(4, requires_grad=True)
        seen = []

        def call() -> None:
            seen.append(x.grad is None)
            x.sum().backward()

        do_bench(call, grad_to_none=[x])
        assert seen == [True] * len(seen)

    def test_bad_input_is_named(self) -> None:
        for name, bad, told in (
            ("return_mode", "fastest", "must be one of .*'all', got 'fastest'"),
            ("quantiles", [0.5, 1.5], "must be from 0 to 1, got 1.5"),
            ("quantiles", ["a"], "must be from 0 to 1, got 'a'"),
            ("quantiles", [], "must contain at least one"),
            ("rep", 0, "must be more than 0 milliseconds, got 0"),
            ("rep", float("nan"), "must be more than 0 milliseconds, got nan"),
            ("warmup", -1, "must be 0 or more milliseconds, got -1"),
        ):
            for function in (do_bench, do_bench_cudagraph)[: 1 if name == "warmup" else 2]:
                given: dict[str, Any] = {name: bad}
                with pytest.raises(ValueError, match=f"{name} {told}"):
                    function(pytest.fail, **given)


@pytest.mark.cuda
class TestOnGpu:
    @pytest.mark.timing
    def test_it_is_near_a_full_measurement(self) -> None:
        x = torch.randn(1 << 24, device="cuda")
        for function, cache in ((do_bench, "cold"), (do_bench_cudagraph, "warm")):
            full: Any = convtime.time_op(torch.relu, x, cache=cache).median  # type: ignore[arg-type]
            found = function(lambda: torch.relu(x), return_mode="median")
            assert found == pytest.approx(1e3 * full, rel=0.1)

    def test_a_result_says_what_was_left_out(self) -> None:
        one = convtime.time_op(torch.relu, torch.randn(1 << 20, device="cuda"), quick=True)
        assert (one.method, one.regime, one.placement) == ("kernel", "as-is", "random")
        assert ("quick" in one.regime.reason, one.steady) == (True, None)
        assert 4 <= one.placements <= 16

    def test_a_graph_holds_a_backward_pass_and_no_wait(self) -> None:
        x = torch.randn(1 << 20, device="cuda", requires_grad=True)
        found = do_bench_cudagraph(lambda: torch.relu(x).sum().backward(), grad_to_none=[x])
        assert isinstance(found, float)
        assert 0.005 < found < 1
        with pytest.raises(RuntimeError, match="captur"):
            do_bench_cudagraph(lambda: x.sum().item())

    @pytest.mark.thorough
    def test_triton_tunes_with_it(self) -> None:
        pytest.importorskip("triton")
        from tests.helpers.tuned_kernel import doubled, tuned

        x = torch.randn(1 << 16, device="cuda")
        assert torch.equal(doubled(x), 2 * x)
        assert tuned.best_config.kwargs["BLOCK"] in (64, 1024)
        times = [*tuned.configs_timings.values()]
        assert [len(low_mid_high) for low_mid_high in times] == [3, 3]
        assert all(0.0005 < each < 1 for low_mid_high in times for each in low_mid_high)
