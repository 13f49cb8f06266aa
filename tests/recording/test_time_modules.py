"""A model's modules within a training step, and by themselves."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import convtime
from convtime.counting.kernel_counters import Counters, KernelCounters
from convtime.recording import time_modules as modules_module
from convtime.recording import watching
from convtime.recording.module_times import ModuleTimes, PassTimes
from convtime.recording.recording import Recording
from convtime.recording.watching import WatchedModules, calls_seen, innermost_called
from convtime.timing.activity import DeviceActivity
from tests.helpers.figures import check_drawn, of_series, table
from tests.helpers.measurements import changed

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


def test_times_of_modules_survive_json(times: ModuleTimes) -> None:
    assert ModuleTimes.from_dict(json.loads(times.to_json())) == times


def test_times_of_modules_are_shown(times: ModuleTimes) -> None:
    for told in (str(times), times.details(), times._repr_html_()):
        assert "Conv2d" in told
        assert "isolated: the same calls repeated, each after a whole step" in told
    assert "2 modules in a step of" in repr(times)
    (figure,) = times.figures()
    drawn = table(figure, "middle")
    assert of_series(drawn, "in place", "middle") == pytest.approx(
        [1e6 * timed.median for timed in times.passes], rel=1e-5
    )
    assert table(figure, "ratio")["ratio"] == pytest.approx(
        [timed.ratio.value for timed in times.passes if timed.ratio is not None], rel=1e-5
    )
    check_drawn(figure)


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
    expected = [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]
    step()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def recorded_names(model: nn.Module, modules: list[str], step: Callable[[], None]) -> Recording:
    every = dict(model.named_modules())
    with (
        convtime.record("cpu") as recording,
        WatchedModules({name: every[name] for name in modules}),
    ):
        step()
    return recording


def test_nodes_belong_to_the_innermost_module_whose_call_made_them() -> None:
    model = nn.Sequential(Block(), nn.Linear(8, 8))
    x = torch.randn(2, 3, 8, 8)
    recording = recorded_names(model, ["0", "0.conv", "1"], training_step(model, x))
    paths = {"/".join(region.path) for region in recording.regions}
    assert paths == {
        "0 forward",
        "0 forward/0.conv forward",
        "0 backward",
        "0 backward/0.conv backward",
        "1 forward",
        "1 backward",
    }


def test_modules_that_call_no_others_are_the_innermost() -> None:
    """Whatever modules of their own they have."""
    attention = nn.MultiheadAttention(8, 2)
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    model = nn.Sequential(parametrized, nn.Sequential(nn.Tanh()))
    x = torch.randn(2, 8)
    assert innermost_called(model, lambda: model(x)) == {"0", "1.0"}
    assert innermost_called(attention, lambda: attention(x, x, x)) == {""}
    assert not any(module._forward_hooks for module in model.modules())


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


def test_each_node_is_watched_once_however_often_its_module_is_called() -> None:
    """And nodes of custom functions are, as well as those that add to parameters' gradients."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0] * 2

    class Doubling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = Double.apply(x * self.weight)
            return result

    model = nn.Sequential(shared := Doubling(), nn.Identity(), shared)
    recording = recorded_names(model, ["0"], training_step(model, torch.ones(4)))
    assert len(recording.region("0 forward").host_seconds) == 2
    # Twice the function and the product, once what adds to the weight's gradient.
    assert len(recording.region("0 backward").host_seconds) == 5


def test_calls_are_seen_with_inputs_gradients_and_modes() -> None:
    model = Block()
    x = torch.randn(2, 3, 8, 8)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            training_step(model, x)()

    first, second = calls_seen(model.relu, step)
    conv = torch.nn.functional.conv2d(
        x.bfloat16(), model.conv.weight.bfloat16(), model.conv.bias.bfloat16(), padding=1
    )
    torch.testing.assert_close(first.args[0], conv, rtol=0.05, atol=0.05)
    assert first.args[0].requires_grad, "as it did in the step, though changed in place since"
    torch.testing.assert_close(second.gradients, [torch.full_like(second.args[0], 2)])
    with second.modes.entered():
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")
    with torch.no_grad():
        (unlike,) = calls_seen(model.conv, lambda: model(x))
    with unlike.modes.entered():
        assert not torch.is_grad_enabled()


class Noting(nn.Module):
    """Notes how its inputs and its results' gradients lie in memory, also where it is copied."""

    seen: ClassVar[list[tuple[str, torch.Size, tuple[int, ...], torch.dtype]]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._note("input", x)
        result = x * 2
        result.register_hook(functools.partial(self._note, "gradient"))
        return result

    def _note(self, what: str, tensor: torch.Tensor) -> None:
        self.seen.append((what, tensor.size(), tensor.stride(), tensor.dtype))


def test_tensors_have_by_themselves_the_strides_that_they_have_in_a_step() -> None:
    """Expanded ones, those with gaps, and windows that overlap."""
    weight = torch.arange(12.0, requires_grad=True)
    noting = Noting()
    gradient = torch.ones(6, dtype=torch.bfloat16).expand(2, 6)[:, ::3]

    def step() -> None:
        noting(weight[:6].expand(2, 6)).sum().backward()
        noting(weight.view(3, 4)[:, 1:3]).sum(0).sum().backward()
        noting(weight.unfold(0, 4, 2)).t().contiguous().sum().backward()
        noting(weight.bfloat16()[:4].view(2, 2)).backward(gradient)

    Noting.seen.clear()
    step()
    in_step = set(Noting.seen)
    assert ("gradient", (2, 6), (0, 0), torch.float32) in in_step
    assert ("gradient", (2, 2), (0, 3), torch.bfloat16) in in_step
    assert ("input", (2, 6), (0, 1), torch.float32) in in_step
    assert ("input", (3, 2), (4, 1), torch.float32) in in_step
    assert ("input", (5, 4), (2, 1), torch.float32) in in_step

    replay = modules_module._Replay(noting, calls_seen(noting, step), None)
    Noting.seen.clear()
    replay.before_backward()
    for call, expected in enumerate(
        [weight[:6].expand(2, 6), weight.view(3, 4)[:, 1:3], weight.unfold(0, 4, 2)]
    ):
        torch.testing.assert_close(replay._inputs[call][0][0], expected)
    replay.backward()
    assert set(Noting.seen) == in_step


def test_a_tensor_that_is_passed_twice_is_one_by_itself_too() -> None:
    """As a query that is the key, for which attention has other kernels."""
    attention = nn.MultiheadAttention(8, 2)
    x = torch.randn(3, 1, 8, requires_grad=True)

    def step() -> None:
        attention(x, x, key_padding_mask=None, value=x)[0].sum().backward()

    replay = modules_module._Replay(attention, calls_seen(attention, step), None)
    replay.before_backward()
    ((query, key), kwargs) = replay._inputs[0]
    assert query is key is kwargs["value"]
    assert query is not x
    replay.backward()


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


def test_a_module_that_cannot_be_copied_says_so() -> None:
    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo: object) -> Stubborn:
            raise RuntimeError("there is one of me")

    model = nn.Sequential(Stubborn(4, 4))
    found = convtime.time_modules(model, training_step(model, torch.randn(2, 4)), **QUICK)
    for timed in found.passes:
        assert timed.isolated is None
        assert "cannot be copied: RuntimeError: there is one of me" in timed.isolated_reason
    assert "was not timed in isolation" in str(found)


def test_inputs_that_cannot_be_copied_leave_the_rest() -> None:
    class Unique(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.Tensor.clone:
                raise RuntimeError("there is one of me")
            return super().__torch_function__(func, types, args, kwargs or {})

    model = nn.Sequential(nn.Linear(4, 4), nn.Flatten())
    x = torch.randn(2, 4).as_subclass(Unique)
    found = convtime.time_modules(model, lambda: model(x), modules=["0"], **QUICK)
    (timed,) = found.passes
    assert timed.seconds
    assert timed.isolated is None
    assert timed.isolated_reason == (
        "its arguments cannot be copied: RuntimeError: there is one of me"
    )


def test_gradients_that_cannot_be_copied_leave_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = watching.strided_copy

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape == (2, 5):  # the results', and their gradients'
            raise RuntimeError("no more memory")
        return copied(tensor)

    monkeypatch.setattr(watching, "strided_copy", copy)
    model = nn.Sequential(nn.Linear(4, 5))
    found = convtime.time_modules(model, training_step(model, torch.randn(2, 4)), **QUICK)
    for timed in found.passes:
        assert timed.isolated_reason == (
            "its results' gradients cannot be copied: RuntimeError: no more memory"
        )


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


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: convtime.time_modules(nothing, nothing), TypeError, "got function"),  # type: ignore[arg-type]
        (lambda: convtime.time_modules(Block(), 3), TypeError, "got int"),  # type: ignore[arg-type]
        (lambda: convtime.time_modules(Block(), nothing, steps=0), ValueError, "at least 1, got 0"),
        (
            lambda: convtime.time_modules(Block(), nothing, modules=["con"]),
            ValueError,
            "got 'con'; similar names are conv",
        ),
        (lambda: convtime.time_modules(Block(), nothing), ValueError, "calls no module of Block"),
        (lambda: convtime.time_modules(Block(), nothing, budgets=1), TypeError, "budgets"),
        (lambda: convtime.time_modules(Block(), nothing, budget=0), ValueError, "more than 0 sec"),
        (lambda: convtime.time_modules(Block(), nothing, pin=10**6), ValueError, "pin must be one"),
        (lambda: convtime.time_modules(Block(), nothing, modules=5), TypeError, "must be names"),  # type: ignore[arg-type]
        (lambda: convtime.time_modules(Block(), nothing, regime="hot"), ValueError, "got 'hot'"),  # type: ignore[arg-type]
        (lambda: convtime.time_modules(compiled(), nothing), ValueError, "the model is compiled"),
    ],
)
def test_what_cannot_be_timed_is_refused(
    call: Callable[[], Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        call()


def activity(name: str, *seconds: float) -> DeviceActivity:
    return DeviceActivity("kernel", name, (1, 1, 1), (32, 1, 1), 16, 0, 0, seconds)


def on_a_gpu(times: ModuleTimes, kernel: str) -> ModuleTimes:
    """As if the first pass had launched a kernel in the step, and "a" by itself."""
    first = times.passes[0]
    assert first.isolated is not None
    alone = changed(
        first.isolated,
        method="kernel",
        seconds=(1e-5,) * 20,
        batches=(),
        activities=(activity("a", 1e-5),),
    )
    counted = Counters(
        name="",
        kernels=(KernelCounters("a", 2, {"dram__bytes_write.sum": 4096.0}),),
        totals={"dram__bytes_write.sum": 8192.0},
        samples={"dram__bytes_write.sum": (8192.0,)},
        units={"dram__bytes_write.sum": "byte"},
        descriptions={"dram__bytes_write.sum": "bytes written"},
        method="range profiler",
        replay="call",
        passes=1,
        cache="warm",
        device="cuda:0",
    )
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
    counted = same.details().splitlines()[-2:]
    assert [line.split() for line in counted] == [
        ["a", "in", "place", "2", "4096"],
        ["a", "conv", "forward", "2", "4096"],
    ]
    other = on_a_gpu(times, "b")
    assert other.passes[0].same_kernels is False
    assert "OTHERS" in str(other)


def test_incomplete_recordings_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings = iter([Recording(method="kernel", fault="lost")] * 2 + [Recording(method="kernel")])

    class Recorded:
        def __init__(self, method: str) -> None:
            self.recording = next(recordings)

        def __enter__(self) -> Recording:
            return self.recording

        def __exit__(self, *exception: object) -> None: ...

    monkeypatch.setattr(modules_module, "record", Recorded)
    found, _ = modules_module._record(nothing, {}, 1, torch.device("cpu"))
    assert not found.fault
    recordings = iter([Recording(method="kernel", fault="lost")] * 3)
    with pytest.raises(RuntimeError, match="3 recordings in a row were incomplete: lost"):
        modules_module._record(nothing, {}, 1, torch.device("cpu"))


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
