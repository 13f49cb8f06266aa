"""Layers of a model's convolutions, and of ResNet-50's."""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import convtime
from convtime.conv.model import LoadedModel, from_model, load_model
from convtime.conv.problem import ConvLayer, ConvProblem
from convtime.conv.resnet50 import resnet50
from convtime.core.errors import InputError

MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, (3, 5), stride=(1, 2), padding=(1, 2))
        self.body = nn.ModuleList(
            nn.Conv2d(8, 8, 3, padding="same", groups=4, bias=False) for _ in range(3)
        )
        self.valid = nn.Conv2d(8, 4, 3, padding="valid", dilation=2, padding_mode="circular")
        self.unused = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        assert not self.training and not torch.is_grad_enabled()
        x = self.stem(x)
        for conv in self.body:
            x = conv(input=x)
        return self.valid(x), self.valid(x[0])

class Kinds(nn.Module):
    def __init__(self):
        super().__init__()
        self.audio = nn.Conv1d(3, 4, 5, padding="valid")
        self.up = nn.ConvTranspose1d(4, 2, 3, stride=3, padding=1, bias=False)
        self.volume = nn.Conv3d(1, 2, (1, 2, 3))
        self.grow = nn.ConvTranspose3d(2, 2, 2, stride=2, output_padding=(0, 1, 1))

    def forward(self, x):
        y = self.up(self.audio(x))
        self.up(self.audio(x), output_size=[y.shape[-1] + 2])
        return self.grow(self.volume(x[:, None, :, :, None].expand(-1, -1, -1, -1, 4)))

def linear():
    return nn.Linear(3, 3)

def only_conv():
    return nn.Conv2d(3, 2, 1).bfloat16()

def broken():
    raise RuntimeError("first line\\nsecond line")

def leaves():
    raise SystemExit("bye")

def text():
    return "resnet"

number = 3
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package `mymodels` in the working directory."""
    package = tmp_path / "mymodels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(MODELS)
    (package / "needs.py").write_text("import not_installed_anywhere\n")
    (package / "syntax.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "mymodels"]:
        del sys.modules[name]


def loaded(module: torch.nn.Module, *shape: int) -> LoadedModel:
    return LoadedModel("my:net", module, torch.randn(shape))


def problem_in(module: torch.nn.Module, *shape: int) -> ConvProblem:
    (layer,) = from_model(loaded(module, *shape))[0]
    return layer.problem


def test_every_distinct_call_is_gathered(models: None) -> None:
    stem, body, valid, single = from_model(load_model("mymodels.nets:Net", (2, 3, 16, 20)))[0]
    assert stem == ConvLayer(
        ("stem",),
        ConvProblem(2, 3, (16, 20), 8, (3, 5), stride=(1, 2), padding=(1, 2), bias=True),
    )
    assert body == ConvLayer(
        ("body.0", "body.1", "body.2"),
        ConvProblem(2, 8, (16, 10), 8, (3, 3), padding="same", groups=4),
    )
    assert (valid.problem.padding, valid.problem.dilation) == ((0, 0), (2, 2))
    assert valid.problem.padding_mode == "circular"
    # The second call had no batch dimension.
    assert (valid.problem.batch, single.problem.batch) == (2, 1)
    assert valid.names == single.names == ("valid",)
    (only,) = from_model(load_model("mymodels.nets:only_conv", (1, 3, 4, 4)))[0]
    assert only.name == "Conv2d"


def test_every_kind_of_convolution_is_gathered(models: None) -> None:
    layers = from_model(load_model("mymodels.nets:Kinds", (2, 3, 10)))[0]
    audio, up, longer, volume, grow = (layer.problem for layer in layers)
    kinds = ["Conv1d", "ConvTranspose1d", "Conv3d", "ConvTranspose3d"]
    assert [problem.kind.layer for problem in (audio, up, volume, grow)] == kinds
    assert audio.padding == (0,)
    assert (up.size, up.output_padding, up.output_size) == ((6,), (0,), (16,))
    assert (longer.output_padding, longer.output_size) == ((2,), (18,))
    assert volume.input_shape == (2, 1, 3, 10, 4)
    assert (grow.size, grow.output_padding) == ((3, 9, 2), (0, 1, 1))


def test_a_model_is_left_in_its_mode_and_without_hooks(models: None) -> None:
    for shape in ((2, 3, 16, 20), (1, 7, 16, 20)):
        model = load_model("mymodels.nets:Net", shape)
        net: Any = model.module
        net.stem.eval()
        with contextlib.nullcontext() if shape[1] == 3 else pytest.raises(InputError):
            from_model(model)
        assert net.training
        assert not net.stem.training
        for module in net.modules():
            assert not module._forward_hooks
            assert not module._forward_pre_hooks


def test_errors_say_which_step(models: None) -> None:
    nets = "mymodels.nets"
    for spec, says in (
        ("resnet50", "the model is 'resnet50', but must look like package.module:factory"),
        (f"{nets}:", "must look like"),
        ("nowhere:net", "module 'nowhere' was not found"),
        ("mymodels.needs:net", "importing 'mymodels.needs' raised ModuleNotFoundError: No module"),
        ("mymodels.syntax:net", "importing 'mymodels.syntax' raised SyntaxError"),
        (f"{nets}:nett", "looking up .*:nett raised AttributeError: .* no attribute 'nett'"),
        (f"{nets}:number", "is a int, but must be callable"),
        (f"{nets}:broken", r"mymodels.nets:broken\(\) raised RuntimeError: first line$"),
        (f"{nets}:leaves", r"mymodels.nets:leaves\(\) raised SystemExit: bye"),
        (f"{nets}:text", r"returned a str, but must return a torch.nn.Module"),
        (f"{nets}:linear", r"shape \(1, 3\), ran no convolution of torch.nn"),
        (f"{nets}:Net", r"called on shape \(1, 3\), raised RuntimeError"),
    ):
        with pytest.raises(InputError, match=says):
            from_model(load_model(spec, (1, 3)))


def changed_by_hook(change: Callable[[torch.Tensor], object]) -> torch.nn.Module:
    layer = torch.nn.ConvTranspose2d(2, 3, 2, stride=2)
    layer.register_forward_hook(lambda module, args, output: change(output))
    return layer


class Cropped(torch.nn.ConvTranspose2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x, output_size=[8, 9])[..., 1:, 1:]


class Same(torch.nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, 2, 1)


def test_a_layers_geometry_is_that_of_its_own_computation() -> None:
    changes: list[Callable[[torch.Tensor], object]] = [
        lambda y: F.pad(y, (0, 1, 0, 1)),
        lambda y: y[..., 1:, 1:],
        lambda y: (y, None),
    ]
    for module, output_padding in (
        *((changed_by_hook(change), (0, 0)) for change in changes),
        (Cropped(2, 3, 2, stride=2), (0, 1)),
    ):
        problem = problem_in(module, 1, 2, 4, 4)
        assert (problem.size, problem.output_padding) == ((4, 4), output_padding)
    problem = problem_in(Same(3, 4, 3), 2, 3, 8, 10)
    assert (problem.size, problem.stride, problem.padding) == ((9, 11), (2, 2), (1, 1))


@pytest.mark.parametrize("namespace", [torch.nn, convtime.nn])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", ["same", (2, 1)])
def test_what_a_layer_pads_is_no_part_of_its_input(namespace: Any, mode: str, padding: Any) -> None:
    layer = namespace.Conv2d(3, 4, (4, 2), padding=padding, padding_mode=mode)
    problem = problem_in(layer, 2, 3, 8, 10)
    assert (problem.size, problem.padding, problem.padding_mode) == ((8, 10), padding, mode)


class Routed(torch.nn.Module):
    """Three experts: one gets nothing to do, and a hook keeps another from running."""

    def __init__(self) -> None:
        super().__init__()
        self.busy, self.idle = torch.nn.Conv2d(3, 4, 1), torch.nn.Conv2d(3, 4, 1, padding=1)
        self.refused = torch.nn.Conv2d(3, 4, 2)
        self.refused.register_forward_pre_hook(lambda *_: 1 / 0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with contextlib.suppress(ZeroDivisionError):
            self.refused(x)
        return self.busy(x), self.idle(x[:0]), self.idle(x[:0, :, :0])


def test_calls_that_do_nothing_are_left_out_and_empty_ones_are_named() -> None:
    layers, empty = from_model(loaded(Routed(), 2, 3, 8, 8))
    assert [layer.names for layer in layers] == [("busy",)]
    assert empty == ("idle", "idle")
    with pytest.raises(InputError, match=r"ran no convolution .* on empty inputs \(busy, idle"):
        from_model(loaded(Routed(), 0, 3, 8, 8))


def test_resnet50_has_23_distinct_and_53_convolutions() -> None:
    layers = resnet50(batch=1)
    assert len(layers) == len({layer.problem for layer in layers}) == 23
    assert sum(layer.count for layer in layers) == 53
    # 4.09 GMACs is the literature's number for v1.5 (v1 has 3.86); 2.05 M of them are in the
    # last layer, which is no convolution.
    macs = sum(layer.count * layer.problem.flops for layer in layers) / 2
    assert macs + 2048 * 1000 == pytest.approx(4.09e9, rel=1e-3)
    # Parameters of torchvision's resnet50, less batch normalisations' and the last layer's.
    weights = sum(layer.count * math.prod(layer.problem.weight_shape) for layer in layers)
    assert weights == 25_557_032 - 2 * 26_560 - (2048 * 1000 + 1000)


def test_resnet50_is_torchvisions() -> None:
    pytest.importorskip("torchvision")
    found = from_model(load_model("torchvision.models:resnet50", (2, 3, 224, 224)))[0]
    # A block's downsample runs after its convolutions but is equal to them in ours too.
    theirs, ours = (
        {layer.problem: sorted(layer.names) for layer in layers}
        for layers in (found, resnet50(batch=2))
    )
    assert theirs == ours
