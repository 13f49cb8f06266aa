"""Quick timing, and the replacements for triton's timing functions."""

from __future__ import annotations

import inspect
import statistics
import time
from typing import Any

import pytest
import torch

import convtime
from convtime.testing import do_bench, do_bench_cudagraph
from convtime.timing.options import Options
from convtime.timing.sampling import quick


class Sleeper:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        time.sleep(self.seconds)


def test_a_long_call_is_made_once_and_timed_five_times() -> None:
    call = Sleeper(0.02)
    measured = convtime.time_op(call, device="cpu", quick=True)
    assert (call.calls, len(measured.seconds), measured.warmup_calls) == (6, 5, 1)
    assert measured.stop_reason == "budget"


def test_more_samples_can_be_required() -> None:
    call = Sleeper(0.005)
    assert len(convtime.time_op(call, device="cpu", quick=True, min_samples=7).seconds) == 7


def test_candidates_share_the_calls_of_a_quick_comparison() -> None:
    a, b = Sleeper(0.01), Sleeper(0.02)
    compared = convtime.compare(
        {"a": a, "b": b}, device="cpu", quick=True, check=None, interference=False
    )
    assert {len(each.seconds) for each in compared.measurements.values()} == {5}
    assert a.calls == b.calls == 6


@pytest.mark.parametrize(("gone", "budget"), [(0.0, 0.0058), (0.004, 0.0018), (0.02, 0.001)])
def test_sampling_gets_the_time_that_is_left(gone: float, budget: float) -> None:
    found = quick.hastened(Options(quick=True), gone, 1, on_gpu=True)
    assert found.budget == pytest.approx(budget)
    assert found.regime == "as-is"


def test_a_smaller_budget_stays() -> None:
    found = quick.hastened(Options(quick=True, budget=1e-4), 0.0, 3, on_gpu=False)
    assert (found.budget, found.regime) == (1e-4, "auto")


@pytest.mark.parametrize("regime", ["burst", "sustained"])
def test_a_regime_needs_time(regime: Any) -> None:
    with pytest.raises(ValueError, match=f"got regime='{regime}'"):
        convtime.time_op(torch.relu, torch.ones(4), quick=True, regime=regime)


def test_quick_is_true_or_false() -> None:
    with pytest.raises(ValueError, match="quick must be True or False, got 'yes'"):
        convtime.time_op(torch.relu, torch.ones(4), quick="yes")  # type: ignore[arg-type]


class TestDoBench:
    # As in triton 3.6: whoever passes them by position or by name can pass them here.
    COLD = "fn, warmup=25, rep=100, grad_to_none=None, quantiles=None, return_mode='mean'"
    GRAPH = "fn, rep=20, grad_to_none=None, quantiles=None, return_mode='mean'"

    @pytest.mark.parametrize(("function", "taken"), [(do_bench, COLD), (do_bench_cudagraph, GRAPH)])
    def test_its_parameters_are_tritons(self, function: Any, taken: str) -> None:
        parameters = inspect.signature(function).parameters.values()
        plain = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
        assert ", ".join(map(str, plain)) == taken

    def test_times_are_in_milliseconds(self) -> None:
        for mode in ("min", "mean", "median"):
            found = do_bench(Sleeper(0.02), return_mode=mode)
            assert isinstance(found, float)
            assert 20 <= found < 1000  # others may compute meanwhile

    def test_modes_agree_with_each_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        measured = convtime.time_op(Sleeper(0.004), device="cpu", quick=True)
        monkeypatch.setattr(convtime.testing, "time_op", lambda *given, **options: measured)
        times = [1e3 * seconds for seconds in measured.seconds]
        assert do_bench(Sleeper(0), return_mode="all") == times
        assert do_bench(Sleeper(0), return_mode="min") == min(times)
        assert do_bench(Sleeper(0), return_mode="max") == max(times)
        assert do_bench(Sleeper(0)) == pytest.approx(statistics.mean(times))
        assert do_bench(Sleeper(0), return_mode="median") == pytest.approx(
            statistics.median(times), rel=0.05
        )

    def test_quantiles_are_a_list_and_one_is_a_number(self) -> None:
        # The way in which triton.autotune calls it.
        found = do_bench(Sleeper(0.004), quantiles=(0.5, 0.2, 0.8))
        assert isinstance(found, list)
        middle, low, high = found
        assert 4 <= low <= middle <= high
        assert isinstance(do_bench(Sleeper(0.004), quantiles=[0.5]), float)

    def test_gradients_are_set_to_none_before_each_call(self) -> None:
        x = torch.ones(4, requires_grad=True)
        seen = []

        def call() -> None:
            seen.append(x.grad is None)
            x.sum().backward()

        do_bench(call, grad_to_none=[x])
        assert len(seen) > 5
        assert all(seen)

    @pytest.mark.parametrize("function", [do_bench, do_bench_cudagraph])
    @pytest.mark.parametrize(
        ("bad", "told"),
        [
            ({"return_mode": "fastest"}, "return_mode must be one of .*'all', got 'fastest'"),
            ({"quantiles": [0.5, 1.5]}, "quantiles must be from 0 to 1, got 1.5"),
            ({"quantiles": ["a"]}, "quantiles must be from 0 to 1, got 'a'"),
            ({"quantiles": []}, "quantiles must contain at least one"),
            ({"rep": 0}, "rep must be more than 0 milliseconds, got 0"),
            ({"rep": float("nan")}, "rep must be more than 0 milliseconds, got nan"),
        ],
    )
    def test_bad_input_is_named(self, function: Any, bad: dict[str, Any], told: str) -> None:
        call = Sleeper(0)
        with pytest.raises(ValueError, match=told):
            function(call, **bad)
        assert call.calls == 0


@pytest.mark.cuda
class TestOnGpu:
    def test_a_result_says_what_was_left_out(self) -> None:
        measured = convtime.time_op(torch.relu, torch.randn(1 << 20, device="cuda"), quick=True)
        assert (measured.method, measured.regime, measured.placement) == (
            "kernel",
            "as-is",
            "random",
        )
        assert "quick" in measured.regime.reason
        assert 4 <= measured.placements <= quick.PLACES
        assert measured.steady is None

    @pytest.mark.parametrize(
        ("function", "cache"), [(do_bench, "cold"), (do_bench_cudagraph, "warm")]
    )
    def test_it_is_near_a_full_measurement(self, function: Any, cache: Any) -> None:
        x = torch.randn(1 << 24, device="cuda")
        full = convtime.time_op(torch.relu, x, cache=cache).median
        found = function(lambda: torch.relu(x), return_mode="median")
        assert isinstance(found, float)
        assert found == pytest.approx(1e3 * full, rel=0.1)

    def test_a_call_that_no_graph_can_capture_is_refused(self) -> None:
        x = torch.randn(16, device="cuda")
        with pytest.raises(RuntimeError, match="captur"):
            do_bench_cudagraph(lambda: x.sum().item())

    def test_a_backward_pass_in_a_graph(self) -> None:
        x = torch.randn(1 << 20, device="cuda", requires_grad=True)

        def step() -> None:
            torch.relu(x).sum().backward()

        found = do_bench_cudagraph(step, grad_to_none=[x])
        assert isinstance(found, float)
        assert 0.005 < found < 1

    def test_triton_tunes_with_it(self) -> None:
        pytest.importorskip("triton")
        from tests.helpers.tuned_kernel import doubled, tuned

        x = torch.randn(1 << 16, device="cuda")
        assert torch.equal(doubled(x), 2 * x)
        assert tuned.best_config.kwargs["BLOCK"] in (64, 1024)
        times = tuned.configs_timings
        assert len(times) == 2
        for low_mid_high in times.values():
            assert len(low_mid_high) == 3
            assert all(0.0005 < each < 1 for each in low_mid_high)

    @pytest.mark.timing
    def test_it_takes_some_milliseconds(self) -> None:
        x = torch.randn(1 << 20, device="cuda")
        taken = []
        for _ in range(20):
            begin = time.perf_counter()
            convtime.time_op(torch.relu, x, quick=True)
            taken.append(time.perf_counter() - begin)
        assert sorted(taken)[10] < 0.015
