"""Layers of convtime.nn, and a model's layers that are replaced by them."""

from __future__ import annotations

import contextlib
import copy
import html
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx.experimental.optimization
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils.flop_counter import FlopCounterMode

import convtime

LAYERS = ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")
each_kind = pytest.mark.parametrize("kind", LAYERS)
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning"),
]


def example(kind: str, channels: int = 4, **options: Any) -> torch.Tensor:
    return torch.randn(2, channels, *(9, 10, 8)[: int(kind[-2])], **options)


@each_kind
def test_a_layer_is_a_drop_in(kind: str, device: torch.device) -> None:
    ours, theirs = (getattr(namespace, kind) for namespace in (convtime.nn, torch.nn))
    assert inspect.signature(ours.__init__) == inspect.signature(theirs.__init__)
    assert repr(ours(1, 2, 3)) == repr(theirs(1, 2, 3))
    assert isinstance(ours(1, 2, 3), theirs)
    cases: list[dict[str, Any]] = [{}, {"groups": 2}]
    if "Transpose" in kind:
        cases += [{"stride": 2, "padding": 1, "output_padding": 1, "bias": False}, {"dilation": 2}]
    else:
        cases += [{"stride": 2, "padding": 1, "bias": False}, {"padding": "same", "dilation": 2}]
        cases += [{"padding": 2, "padding_mode": mode} for mode in ("reflect", "replicate")]
        cases += [{"padding": padding, "padding_mode": "circular"} for padding in ("same", 2)]
    for kwargs in cases:
        torch.manual_seed(0)
        one, other = (each(4, 6, 3, **kwargs, device=device) for each in (ours, theirs))
        one.load_state_dict(other.state_dict())
        other.load_state_dict(one.state_dict())
        x = example(kind, device=device)
        assert torch.equal(one(x), other(x)), kwargs
        assert torch.equal(one(x[0]), other(x[0]))
        one(x).sum().backward()
        other(x).sum().backward()
        torch.testing.assert_close(one.weight.grad, other.weight.grad)
    name = kind.lower().replace("transpose", "_transpose")
    assert ops_of(lambda: one(x)) == {f"convtime::{name}"}


@each_kind
def test_a_layer_has_a_policy_and_is_copied_and_pickled(kind: str) -> None:
    layer, x = getattr(convtime.nn, kind)(4, 2, 3), example(kind)
    assert layer.policy is None
    layer.policy = "benchmark"
    assert layer.state_dict().keys() == {"weight", "bias"}
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(twin) is getattr(convtime.nn, kind)
        assert twin.policy == "benchmark"
        assert torch.equal(twin(x), layer(x))
    layer.policy = "fastest"
    with pytest.raises(RuntimeError, match="policy must be .* got 'fastest'"):
        layer(x)


def ops_of(call: Callable[[], Any]) -> set[str]:
    """convtime's ops that a call runs."""
    with torch.profiler.profile() as profiler:
        call()
    return {event.name for event in profiler.events() if event.name.startswith("convtime::")}


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_layers_are_convolutions_with_an_epilogue(padding_mode: str, device: torch.device) -> None:
    for rank in (1, 2, 3):
        options: dict[str, Any] = {"padding": 1, "padding_mode": padding_mode, "device": device}
        ours = getattr(convtime.nn, f"ConvEpilogue{rank}d")(
            3, 4, 3, **options, activation="leaky_relu", negative_slope=0.3, alpha=0.5
        )
        theirs = getattr(torch.nn, f"Conv{rank}d")(3, 4, 3, **options)
        ours.load_state_dict(theirs.state_dict())
        theirs.load_state_dict(ours.state_dict())
        x = torch.randn(2, 3, *(6, 5, 4)[:rank], device=device)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            y = theirs(x)
            z = torch.randn_like(y)
            for result, sum_ in ((ours(x), y), (ours(x, z), y + 0.5 * z)):
                expected = F.leaky_relu(sum_, 0.3)
                torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        assert "activation='leaky_relu'" in repr(ours)
        for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert torch.equal(twin(x), ours(x))
    with pytest.raises(ValueError, match=r"ConvEpilogue2d: activation must be one of .*'swish'"):
        convtime.nn.ConvEpilogue2d(3, 4, 3, activation="swish")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", LAYERS[3:])
def test_output_size_is_torchs(kind: str) -> None:
    layer = getattr(torch.nn, kind)(4, 6, 3, stride=2, padding=1)
    ours, x = copy.deepcopy(layer), example(kind)
    convtime.nn.replace(ours)
    for smaller in (0, 1):
        size = [2 * length - smaller for length in x.shape[2:]]
        expected = layer(x, output_size=size)
        assert torch.equal(ours(x, output_size=size), expected)
        assert list(expected.shape[2:]) == size
    with pytest.raises(ValueError, match="requested an output size"):
        ours(x, output_size=[99] * len(size))
    ours.padding_mode = "circular"
    with pytest.raises(ValueError, match="padding_mode must be 'zeros', got 'circular'"):
        ours(x)


class Net(torch.nn.Module):
    """A model with a shared layer, a nested one and one behind a wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")
        self.shared = torch.nn.Conv2d(4, 4, 1)
        self.again = self.shared
        self.block = torch.nn.Sequential(
            torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 4, 3, groups=2)
        )
        self.up = torch.nn.ConvTranspose2d(4, 2, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.up(self.block(self.again(self.shared(self.first(x)).relu())))
        return output


NAMES = ("first", "shared", "block.1", "up")


def make_net(device: torch.device | str = "cpu") -> Net:
    torch.manual_seed(0)
    return Net().to(device)


def test_a_model_is_replaced_and_restored_in_place(device: torch.device) -> None:
    model = make_net(device).eval()
    x = torch.randn(2, 3, 8, 8, device=device)
    expected = model(x)
    modules = dict(model.named_modules())
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    before = {name: (type(module), dict(vars(module))) for name, module in modules.items()}
    keys, pickled = model.state_dict().keys(), pickle.dumps(model)
    calls = []
    model.first.register_forward_hook(lambda *_: calls.append("hook"))

    report = convtime.nn.replace(model)
    assert report == convtime.nn.Replacement(replaced=NAMES, left=())
    assert str(report) == "4 convolution layers replaced, 0 left"
    assert ops_of(lambda: model(x)) == {"convtime::conv2d", "convtime::conv_transpose2d"}
    assert torch.equal(model(x), expected)
    assert calls == ["hook", "hook"]
    assert not model.first.training
    assert all(module is modules[name] for name, module in model.named_modules())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert tensor is tensors[name]
    assert model.state_dict().keys() == keys
    assert convtime.nn.replace(model) == convtime.nn.Replacement((), ())

    model.first.policy = "benchmark"  # type: ignore[assignment]
    assert convtime.nn.restore(model) == NAMES
    assert {
        name: (type(module), dict(vars(module))) for name, module in model.named_modules()
    } == before
    model.first._forward_hooks.clear()
    assert pickle.dumps(model) == pickled
    assert not ops_of(lambda: model(x))
    assert convtime.nn.restore(model) == ()


class Mixed(torch.nn.Module):
    """A model with a layer that is convtime's from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.native = convtime.nn.Conv2d(3, 4, 3)
        self.native.policy = "benchmark"
        self.block = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1), torch.nn.Conv2d(4, 4, 1))
        self.last = torch.nn.Conv2d(4, 4, 1)


def test_layers_of_the_users_own_are_not_restored() -> None:
    model = Mixed()
    assert convtime.nn.restore(model) == ()
    names = ("block.0", "block.1", "last")
    assert convtime.nn.replace(model, policy="heuristic").replaced == names
    assert model.native.policy == "benchmark"
    assert convtime.nn.restore(copy.deepcopy(model)) == names
    assert convtime.nn.restore(model) == names
    assert type(model.native) is convtime.nn.Conv2d
    assert model.native.policy == "benchmark"
    assert not hasattr(model.last, "policy")


def test_only_some_layers_are_replaced() -> None:
    cases: list[tuple[Any, tuple[str, ...]]] = [
        (["last"], ("last",)),
        ({"block"}, ("block.0", "block.1")),
        (("block.1", "block"), ("block.0", "block.1")),
        ([""], ("block.0", "block.1", "last")),
        ([], ()),
        (lambda name, layer: name.endswith("1") and layer.groups == 1, ("block.1",)),
    ]
    for only, names in cases:
        model = Mixed()
        report = convtime.nn.replace(model, only=only, policy="heuristic")
        assert report == convtime.nn.Replacement(names, ())
        policies = {name: getattr(each, "policy", "") for name, each in model.named_modules()}
        assert {name for name, policy in policies.items() if policy == "heuristic"} == set(names)


def test_bad_choices_of_layers_are_refused() -> None:
    model = Mixed()
    asked: list[str] = []

    def only(name: str, layer: torch.nn.Module) -> bool:
        asked.append(name)
        if len(asked) == 2:
            raise LookupError(name)
        return True

    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"only": "block"}, TypeError, "only must be a function .* or a collection .* got 'block'"),
        ({"only": 3}, TypeError, "only must be a function .* got 3"),
        ({"only": ["head"]}, ValueError, "only has 'head', but the model has no"),
        ({"policy": True}, TypeError, "policy must be a str or None, got True"),
        ({"only": only}, LookupError, "block.1"),
    ]
    for options, error, message in cases:
        with pytest.raises(error, match=message):
            convtime.nn.replace(model, **options)
        assert convtime.nn.restore(model) == (), "none is replaced"
    function: Any
    for function in (convtime.nn.replace, convtime.nn.restore):
        with pytest.raises(TypeError, match="model must be a torch.nn.Module, got a dict"):
            function({})


def test_a_replacement_is_undone_at_the_end_of_a_with_statement() -> None:
    model = Mixed()
    convtime.nn.replace(model, only=["last"])
    replacement = convtime.nn.replace(model, policy="heuristic")
    with contextlib.suppress(KeyError), replacement as report:
        assert report.replaced == ("block.0", "block.1")
        assert type(model.block[1]) is convtime.nn.Conv2d
        convtime.nn.restore(model.block[1])
        raise KeyError
    assert [type(layer) for layer in model.block] == [torch.nn.Conv2d] * 2
    assert not hasattr(model.block[0], "policy")
    assert type(model.last) is type(model.native) is convtime.nn.Conv2d


@each_kind
def test_a_model_may_be_one_layer(kind: str) -> None:
    def count_flops(model: torch.nn.Module, x: torch.Tensor) -> dict[str, int]:
        """Those of a training step, by op."""
        with FlopCounterMode(display=False) as counter:
            model(x).sum().backward()
        counts = counter.get_flop_counts()["Global"]
        return {str(op).partition(".")[2]: number for op, number in counts.items()}

    layer = getattr(torch.nn, kind)(4, 6, 3, stride=2, groups=2, dtype=torch.float64)
    twin = copy.deepcopy(layer)
    assert convtime.nn.replace(layer).replaced == ("",)
    assert type(layer) is getattr(convtime.nn, kind)
    for x in (example(kind, dtype=torch.float64), example(kind, dtype=torch.float64)[0]):
        x.requires_grad_()
        assert layer(x).dtype == torch.float64
        expected, actual = (count_flops(each, x) for each in (twin, layer))
        assert expected["convolution"] > 0
        assert actual[kind.lower().replace("transpose", "_transpose")] == expected["convolution"]
        assert actual["convolution_backward"] == expected["convolution_backward"]
        assert sum(actual.values()) == sum(expected.values())


def test_a_replaced_model_is_saved_copied_and_loaded(tmp_path: Any) -> None:
    model = make_net().eval()
    convtime.nn.replace(model)
    x = torch.randn(2, 3, 8, 8)
    torch.save(model, tmp_path / "model")
    for twin in (torch.load(tmp_path / "model", weights_only=False), copy.deepcopy(model)):
        assert torch.equal(twin(x), model(x))
        assert ops_of(lambda: twin(x))  # noqa: B023
        assert convtime.nn.restore(twin) == NAMES
    assert type(model.first) is convtime.nn.Conv2d
    theirs = make_net().eval()
    theirs.load_state_dict(model.state_dict())
    assert torch.equal(theirs(x), model(x))


@pytest.mark.thorough
def test_a_replaced_model_compiles_before_and_after(device: torch.device) -> None:
    model = make_net(device).eval()
    x = torch.randn(2, 3, 8, 8, device=device)
    compiled: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected = compiled(x)
    convtime.nn.replace(compiled)
    exported = torch.export.export(model, (x,)).module()
    for twin in (compiled, torch.jit.trace(model, x), exported):  # compiled anew
        torch.testing.assert_close(twin(x), expected)
        assert ops_of(lambda: twin(x)) == {"convtime::conv2d", "convtime::conv_transpose2d"}  # noqa: B023
    convtime.nn.restore(compiled)
    torch.testing.assert_close(compiled(x), expected)
    assert not ops_of(lambda: compiled(x))


@pytest.mark.thorough
@each_kind
def test_layers_are_not_scripted(kind: str) -> None:
    model = torch.nn.Sequential(getattr(torch.nn, kind)(4, 2, 3))
    convtime.nn.replace(model)
    with pytest.raises(TypeError, match=rf"script cannot compile convtime\.nn\.{kind}, which"):
        torch.jit.script(model)
    convtime.nn.restore(model)
    torch.jit.script(model)


@pytest.mark.parametrize("module", [torch.nn.utils, parametrizations])
@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_normed_layers_are_replaced(module: Any, norm: str) -> None:
    layer = getattr(module, norm)(torch.nn.Conv2d(3, 4, 3)).eval()
    parameters = dict(layer.named_parameters())
    is_shared = (module, norm) == (parametrizations, "weight_norm")
    twin = copy.deepcopy(layer) if is_shared else None
    x = torch.randn(2, 3, 8, 8)
    expected = layer(x)
    assert convtime.nn.replace(layer).replaced == ("",)
    assert isinstance(layer, convtime.nn.Conv2d)
    assert ops_of(lambda: layer(x)) == {"convtime::conv2d"}
    assert torch.equal(layer(x), expected)
    assert all(parameters[name] is parameter for name, parameter in layer.named_parameters())
    if twin is not None:  # which shares its class
        assert not isinstance(twin, convtime.nn.Conv2d)
        assert torch.equal(twin(x), expected)
        parametrize.remove_parametrizations(layer, "weight")
        assert type(layer) is convtime.nn.Conv2d
    assert convtime.nn.restore(layer) == ("",)
    assert not isinstance(layer, convtime.nn.Conv2d)
    torch.testing.assert_close(layer(x), expected)


def test_what_cannot_be_replaced_is_left_and_named() -> None:
    class Standardized(torch.nn.Conv2d):
        pass

    class Wrapped(torch.Tensor):
        pass

    plain = torch.nn.Conv2d
    own_forward, with_policy, wrapped = plain(3, 4, 3), plain(3, 4, 3), plain(3, 4, 3)
    own_forward.forward = own_forward.forward  # type: ignore[method-assign]
    with_policy.policy = "private"  # type: ignore[assignment]
    wrapped.weight = torch.nn.Parameter(wrapped.weight.detach().as_subclass(Wrapped))
    for layer, why in (
        (Standardized(3, 4, 3), r"Standardized is not a class of torch\.nn itself"),
        (lazy := torch.nn.LazyConv2d(4, 3), "a LazyConv2d has no shapes before its first call"),
        (plain(3, 4, 3, dtype=torch.cfloat), "a parameter is torch.complex64"),
        (own_forward, "its forward is replaced on the object"),
        (with_policy, "it has an attribute policy"),
        (wrapped, "a parameter is a Wrapped, not a plain"),
        (torch.jit.script(plain(3, 4, 3)), "TorchScript has compiled it"),
    ):
        model = torch.nn.Sequential(plain(3, 3, 1), layer, torch.nn.ReLU())
        left_class = type(layer)
        report = convtime.nn.replace(model)
        assert report.replaced == ("0",)
        ((name, reason),) = report.left
        assert name == "1"
        assert type(model[1]) is left_class
        assert re.search(why, reason)
    counts = "1 convolution layers replaced, 1 left"
    assert str(report).splitlines() == [counts, f"  1 is left: {reason}"]
    assert repr(report) == f"<convtime.nn.Replacement {counts}: 1>"
    _, _, _, _, left, replaced = report.details().splitlines()
    assert left.split() == ["1", "left:", *reason.split()]
    assert replaced.split() == ["0", "replaced"]
    assert html.escape(reason) in report._repr_html_()
    lazy(torch.randn(1, 3, 5, 5))
    assert convtime.nn.replace(lazy).replaced == ("",)
    assert type(lazy) is convtime.nn.Conv2d


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two CUDA devices")
def test_a_model_over_several_devices_is_pytorchs() -> None:
    model, x = make_net(), torch.randn(2, 3, 8, 8)
    results = []
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        on_device = copy.deepcopy(model).to(device).eval()
        expected = on_device(x.to(device))
        convtime.nn.replace(on_device)
        results.append(on_device(x.to(device)))  # while device 0 is the current one
        assert results[index].device == device
        assert torch.equal(results[index], expected)
    assert torch.equal(results[0].cpu(), results[1].cpu())
