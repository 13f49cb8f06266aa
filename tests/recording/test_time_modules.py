"""A model's modules within a training step, and in isolation."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

import convtime
from convtime.counting.results import Counters
from convtime.recording import time_modules as modules_module
from convtime.recording import watching
from convtime.recording.module_times import ModuleTimes, PassTimes
from convtime.recording.record import _active
from convtime.recording.recording import Recording
from convtime.timing.activity import DeviceActivity
from tests.helpers.counted import counters_of
from tests.helpers.figures import check_drawn, of_series, table
from tests.helpers.measurements import changed, make
from tests.recording.traces import FakeTrace

QUICK: dict[str, Any] = {"steps": 2, "warmup": 1, "budget": 1e-3, "min_samples": 6}


class Block(nn.Module):
    """A module that is called twice and works in place, beside a function that is no module's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.unused = nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.relu(self.relu(self.conv(x)) + x)
        return y * 2


def training_step(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad()
        model(x).sum().backward()

    return step


@pytest.fixture(scope="module")
def times() -> ModuleTimes:
    """Of a block."""
    torch.manual_seed(0)
    model = Block()
    return convtime.time_modules(
        model, training_step(model, torch.randn(2, 3, 8, 8)), **QUICK, metrics="dram"
    )


def by_name(times: ModuleTimes) -> dict[tuple[str, str], PassTimes]:
    return {(timed.module, timed.direction): timed for timed in times.passes}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_modules_have_the_hosts_time(times: ModuleTimes) -> None:
    assert (times.method, times.method_reason) == ("cpu", "the work is on the CPU")
    assert "CPU times: the work is on the CPU" in str(times)
    assert list(by_name(times)) == [
        (name, direction) for name in ("conv", "relu") for direction in ("forward", "backward")
    ]
    assert [timed.calls for timed in times.passes] == [1, 1, 2, 2]
    assert times.not_called == ("unused",)
    for timed in times.passes:
        assert len(timed.seconds) == 2
        assert all(second > 0 for second in timed.seconds)
        assert timed.isolated is not None, timed.isolated_reason
        assert timed.ratio is not None
        assert timed.same_kernels is None
    for place, step in enumerate(times.step_seconds):
        whole = sum(timed.seconds[place] for timed in times.passes) + times.rest_seconds[place]
        assert whole == pytest.approx(step)
    assert times.counters is None
    assert "need a GPU" in times.counters_reason


class Launch(torch.autograd.Function):
    """Work of so many ns, and three times as much in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, launch: Callable[[int], None], lasts: int) -> Any:
        ctx.launch, ctx.lasts = launch, lasts
        launch(lasts)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.launch(3 * ctx.lasts)
        return gradients[0] * 2, None, None


def test_times_are_those_of_the_work_that_passes_issue(trace: FakeTrace) -> None:
    steps = itertools.count(1)
    number = 0

    def launch(lasts: int) -> None:
        if _active.locked():
            trace.launch(1, lasts=lasts * number)

    class Launching(nn.Module):
        def __init__(self, lasts: int) -> None:
            super().__init__()
            self.lasts = lasts

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = Launch.apply(x, launch, self.lasts)
            return result

    class Recursive(Launching):
        def forward(self, x: torch.Tensor, again: bool = True) -> torch.Tensor:
            return super().forward(self(x, again=False) if again else x)

    model = nn.Sequential(twice := Launching(7), Recursive(50), twice)

    def step() -> None:
        nonlocal number
        number = next(steps) if _active.locked() else 0
        model(torch.ones(2, requires_grad=True)).sum().backward()
        launch(4_000)
        launch(6_000)

    found = convtime.time_modules(
        model, step, steps=3, warmup=1, isolated=False, modules=["0", "1"]
    )
    # Steps 2, 4 and 6 are watched, those in between are not; each lasts longer than the last.
    assert [each.calls for each in found.passes] == [2, 2, 1, 1]
    assert [*by_name(found)] == [(m, way) for m in "01" for way in ("forward", "backward")]
    for each, unit in zip(found.passes, (14e-9, 42e-9, 100e-9, 300e-9), strict=True):
        assert each.seconds == pytest.approx([2 * unit, 4 * unit, 6 * unit])
        assert each.median == pytest.approx(4 * unit)
        second_step = sum(activity.seconds[1] or 0 for activity in each.activities)
        assert second_step == pytest.approx(4 * unit)
    step_ns = np.array([2, 4, 6]) * (10_000 + 14 + 42 + 100 + 300)
    assert found.step_seconds == pytest.approx(step_ns * 1e-9)
    assert found.plain_seconds == pytest.approx(step_ns * 1e-9 * [1 / 2, 3 / 4, 5 / 6])
    assert found.rest_seconds == pytest.approx([2e-5, 4e-5, 6e-5])
    assert found.disturbance == pytest.approx(4 / 3)


NO_SUMS: dict[str, Any] = dict.fromkeys(("busy_seconds", "span_seconds", "sum_seconds"), ())
seconds = st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=30)


@settings(max_examples=40)
@given(in_place=seconds, alone=seconds, margin=st.floats(0.001, 0.5))
def test_the_ratio_is_that_of_medians(
    times: ModuleTimes, in_place: list[float], alone: list[float], margin: float
) -> None:
    isolated = make(seconds=tuple(alone), activities=(), **NO_SUMS)
    timed = PassTimes("0", "Linear", "forward", 1, tuple(in_place), isolated=isolated)
    ratio = timed.ratio
    assert ratio is not None
    assert ratio.value == pytest.approx(np.median(in_place) / isolated.median)
    (low, high), (alone_low, alone_high) = timed.median_interval, isolated.median_interval
    assert low <= np.median(in_place) <= high
    assert ratio.low == pytest.approx(max(low, 0) / alone_high)
    assert ratio.high == (pytest.approx(high / alone_low) if alone_low > 0 else math.inf)
    verdict = dataclasses.replace(times, margin=margin).verdict(timed)
    assert (verdict == "slower") == (ratio.low > 1 + margin)
    assert (verdict == "faster") == (ratio.high < 1 / (1 + margin))
    assert times.verdict(dataclasses.replace(timed, isolated=None)) == ""


def test_times_of_modules_are_shown_and_survive_json(times: ModuleTimes) -> None:
    for told in (str(times), times.details(), times._repr_html_()):
        assert "Conv2d" in told
        assert "isolated: the same calls repeated, each after a whole step" in told
    assert "2 modules in a step of" in repr(times)
    assert ModuleTimes.from_dict(json.loads(times.to_json())) == times
    (figure,) = times.figures()
    drawn = table(figure, "middle")
    names = [f"{timed.module} {timed.direction}" for timed in times.passes]
    assert of_series(drawn, "in place", "row") == names
    assert of_series(drawn, "in place", "middle") == pytest.approx(
        [1e6 * timed.median for timed in times.passes], rel=1e-5
    )
    assert table(figure, "ratio")["ratio"] == pytest.approx(
        [timed.ratio.value for timed in times.passes if timed.ratio is not None], rel=1e-5
    )
    check_drawn(figure)
    whole = [dataclasses.replace(timed, module="") for timed in times.passes[:1]]
    (figure,) = dataclasses.replace(times, passes=tuple(whole)).figures()
    assert {*table(figure, "middle")["row"]} == {f"the model {whole[0].direction}"}


def test_the_model_is_left_as_it_was_but_trained() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    x = torch.randn(2, 3, 8, 8)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        model.zero_grad()
        model(x).square().sum().backward()

    convtime.time_modules(model, step, **QUICK, regime="as-is")
    assert model[1].num_batches_tracked == steps, "replays work with copies"
    for module in model:
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    gradients: list[Any] = [parameter.grad for parameter in model.parameters()]
    expected = [gradient.clone() for gradient in gradients]
    step()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], expected)


def test_modules_may_be_checkpointed() -> None:
    class Checkpointed(nn.Sequential):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = checkpoint(super().forward, input, use_reentrant=False)
            return result

    model = nn.Sequential(nn.Linear(4, 4), Checkpointed(nn.Linear(4, 4), nn.Tanh()))
    found = convtime.time_modules(model, training_step(model, torch.randn(2, 4)), **QUICK)
    timed = by_name(found)
    assert [timed[name, "forward"].calls for name in ("0", "1.0", "1.1")] == [1, 2, 2]
    for each in found.passes:
        assert each.isolated is not None, each.isolated_reason


def test_a_module_that_a_step_may_skip_is_not_timed_by_itself_where_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    x = torch.randn(2, 4)
    steps = itertools.count()

    def step() -> None:
        y = model[0](x)
        if next(steps) < 6:
            model[1](y)

    found = convtime.time_modules(model, step, **QUICK)
    reasons = {timed.module: timed.isolated_reason for timed in found.passes}
    assert reasons["0"] == ""
    assert "but the copied step 0 times" in reasons["1"]


def test_what_cannot_be_copied_is_not_timed_in_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("there is one of me")

    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo: object) -> Stubborn:
            raise error

    class Unique(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.Tensor.clone:
                raise error
            return super().__torch_function__(func, types, args, kwargs or {})

    copied = watching.strided_copy

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape == (2, 5):  # the results', and their gradients'
            raise error
        return copied(tensor)

    monkeypatch.setattr(watching, "strided_copy", copy)
    for model, x, what in (
        (nn.Sequential(Stubborn(4, 4)), torch.randn(2, 4), "cannot be copied"),
        (nn.Sequential(nn.Linear(4, 5)), torch.randn(2, 4), "its results' gradients cannot"),
        (nn.Linear(4, 4), torch.randn(2, 4).as_subclass(Unique), "its arguments cannot"),
    ):
        found = convtime.time_modules(model, training_step(model, x), **QUICK)
        for timed in found.passes:
            assert timed.seconds
            assert timed.isolated is None
            assert what in timed.isolated_reason
            assert "copied: RuntimeError: there is one of me" in timed.isolated_reason
        assert "was not timed in isolation" in str(found)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (convtime.CountersUnavailable("CUPTI counts\nno graphs"), "CUPTI counts no graphs"),
        (ValueError("calls differ"), "ValueError: calls differ"),
    ],
)
def test_a_module_that_is_not_counted_keeps_its_time(
    monkeypatch: pytest.MonkeyPatch, times: ModuleTimes, error: Exception, why: str
) -> None:
    counted = on_a_gpu(times, "a").counters
    first: list[str] = []

    def count(fn: object, *, name: str, **options: object) -> Counters | None:
        first[:] = first or ([name] if name != "step" else [])
        if name in first:
            raise error
        return counted

    monkeypatch.setattr(modules_module, "counters", count)
    model = Block()
    step = training_step(model, torch.randn(2, 3, 8, 8))
    found = convtime.time_modules(model, step, **QUICK, metrics="dram")
    refused, *others = found.passes
    assert refused.isolated is not None
    assert refused.isolated_reason == ""
    assert (refused.counters, refused.counters_reason) == (None, why)
    assert all(timed.counters is counted and not timed.counters_reason for timed in others)
    assert f"no counters of {refused.module} {refused.direction} in isolation: {why}" in str(found)
    assert ModuleTimes.from_dict(json.loads(found.to_json())) == found


def nothing() -> None:
    pass


def compiled() -> nn.Module:
    """As Module.compile() leaves a module, without what takes long about it."""
    model = Block()
    model._compiled_call_impl = nothing
    return model


def test_what_cannot_be_timed_is_refused() -> None:
    time: Any = convtime.time_modules
    for call, error, said in (
        (lambda: time(nothing, nothing), TypeError, "got a function"),
        (lambda: time(Block(), 3), TypeError, "callable, got 3"),
        (lambda: time(Block(), nothing, steps=0), ValueError, "1 or more, got 0"),
        (lambda: time(Block(), nothing, modules=["con"]), ValueError, "similar names are conv"),
        (lambda: time(Block(), nothing), ValueError, "calls no module of Block"),
        (lambda: time(Block(), nothing, budgets=1), TypeError, "budgets"),
        (lambda: time(Block(), nothing, budget=0), ValueError, "more than 0 sec"),
        (lambda: time(Block(), nothing, pin=10**6), ValueError, "pin must be one"),
        (lambda: time(Block(), nothing, modules=5), TypeError, "must be names"),
        (lambda: time(Block(), nothing, regime="hot"), ValueError, "got 'hot'"),
        (lambda: time(compiled(), nothing), ValueError, "the model is compiled"),
    ):
        with pytest.raises(error, match=said):
            call()


def activity(name: str, *seconds: float) -> DeviceActivity:
    return DeviceActivity("kernel", name, (1, 1, 1), (32, 1, 1), 16, 0, 0, seconds)


def on_a_gpu(times: ModuleTimes, kernel: str) -> ModuleTimes:
    """As if the first pass had launched a kernel in the step, and "a" by itself."""
    first = times.passes[0]
    assert first.isolated is not None
    seconds, kernels = (1e-5,) * 20, (activity("a", 1e-5),)
    alone = changed(
        first.isolated, method="kernel", seconds=seconds, batches=(), activities=kernels
    )
    counted = counters_of("a", written=(4096.0,))
    in_place = dataclasses.replace(
        first,
        seconds=(1.5e-5,) * 20,
        activities=(activity(kernel, *[1.5e-5] * 20),),
        isolated=alone,
        counters=counted,
    )
    return dataclasses.replace(
        times, method="kernel", method_reason="", passes=(in_place,), counters=counted
    )


def test_kernels_and_counters_are_compared(times: ModuleTimes) -> None:
    same = on_a_gpu(times, "a")
    (timed,) = same.passes
    assert timed.same_kernels is True
    assert timed.ratio is not None
    assert timed.ratio.value == pytest.approx(1.5)
    assert same.verdict(timed) == "slower"
    assert "slower in place" in str(same)
    assert "same" in str(same)
    counted = [line.split() for line in same.details().splitlines()[-2:]]
    assert counted == [
        ["a", *where, "1", "4096"] for where in (("in", "place"), ("conv", "forward"))
    ]
    other = on_a_gpu(times, "b")
    assert other.passes[0].same_kernels is False
    assert "OTHERS" in str(other)


def test_incomplete_recordings_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(faults: list[str]) -> Recording:
        made = (contextlib.nullcontext(Recording(method="kernel", fault=each)) for each in faults)
        monkeypatch.setattr(modules_module, "record", lambda method: next(made))
        return modules_module._record(nothing, {}, 1, torch.device("cpu"))[0]

    assert not record(["lost", "lost", ""]).fault
    with pytest.raises(RuntimeError, match="3 recordings in a row were incomplete: lost"):
        record(["lost"] * 4)


@pytest.mark.cuda
def test_modules_launch_by_themselves_what_they_launch_in_a_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), nn.BatchNorm2d(3), nn.Flatten(), nn.LazyLinear(10)).cuda()
    x = torch.randn(16, 3, 32, 32, device="cuda")
    model(x)
    found = convtime.time_modules(model, training_step(model, x), steps=6)
    assert found.method == "kernel"
    timed = by_name(found)
    for name in ("0.conv", "1", "3"):
        for direction in ("forward", "backward"):
            assert timed[name, direction].same_kernels, f"{name} {direction}\n{found.details()}"
    assert timed["2", "forward"].isolated_reason == "it issues no GPU work"
    for place, step in enumerate(found.step_seconds):
        whole = sum(each.seconds[place] for each in found.passes) + found.rest_seconds[place]
        assert whole == pytest.approx(step)
