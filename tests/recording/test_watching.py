"""The calls and backward passes of modules that are watched, and calls that are made again."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn

import convtime
from convtime.recording.recording import Recording
from convtime.recording.time_modules import _Replay
from convtime.recording.watching import WatchedModules, calls_seen, innermost_called
from tests.recording.test_time_modules import Block, training_step


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
        each.replace("*", direction)
        for each in ("0 *", "0 */0.conv *", "1 *")
        for direction in ("forward", "backward")
    }


def test_an_outer_module_has_the_nodes_that_lie_behind_an_inner_one() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)))
    step = training_step(model, torch.randn(2, 8))
    alone, nested = (recorded_names(model, names, step) for names in (["0"], ["0", "0.2"]))
    outer = [len(each.region("0 backward").host_seconds) for each in (alone, nested)]
    assert outer[0] == outer[1] > len(nested.region("0.2 backward").host_seconds)


def test_modules_that_call_no_others_are_the_innermost() -> None:
    """Whatever modules of their own they have."""
    attention = nn.MultiheadAttention(8, 2)
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    model = nn.Sequential(parametrized, nn.Sequential(nn.Tanh()))
    x = torch.randn(2, 8)
    assert innermost_called(model, lambda: model(x)) == {"0", "1.0"}
    assert innermost_called(attention, lambda: attention(x, x, x)) == {""}
    assert not any(module._forward_hooks for module in model.modules())


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
    with second.modes.enter():
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")
    with torch.no_grad():
        (unlike,) = calls_seen(model.conv, lambda: model(x))
    with unlike.modes.enter():
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

    replay = _Replay(noting, calls_seen(noting, step), None)
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

    replay = _Replay(attention, calls_seen(attention, step), None)
    replay.before_backward()
    ((query, key), kwargs) = replay._inputs[0]
    assert query is key is kwargs["value"]
    assert query is not x
    replay.backward()
