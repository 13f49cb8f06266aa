"""A training loop of a convolutional net in PyTorch, and some of its convolutions by themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from common.resnet import ResNet18
from torch import nn
from torch.nn import functional as F

import convtime

BATCH, SIDE = 64, 224  # images of a step, and their side in pixels
CLASSES = 10


#: The convolutions that are looked at, by their names in the net.
LAYERS = ("layer1.0.conv2", "layer2.0.conv2", "layer3.0.conv2")


class Training:
    """The net, with the data of one batch, in channels_last."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        self.net = ResNet18(CLASSES).to(device)
        self.net.to(memory_format=torch.channels_last)
        shape = (BATCH, 3, SIDE, SIDE)
        self._x = torch.randn(shape, device=device).contiguous(memory_format=torch.channels_last)
        self._y = torch.randint(CLASSES, (BATCH,), device=device)
        self._optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)
        for name in LAYERS:
            layer = self.net.get_submodule(name)
            layer.forward = convtime.region(name)(layer.forward)

    def step(self) -> None:
        self._optimizer.zero_grad()
        loss = F.cross_entropy(self.forward(), self._y)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def forward(self) -> torch.Tensor:
        logits: torch.Tensor = self.net(self._x)
        return logits

    def in_place(self, name: str) -> InPlace:
        return InPlace(self, self.net.get_submodule(name))

    def isolated(self, name: str) -> Isolated:
        layer = self.net.get_submodule(name)
        assert isinstance(layer, nn.Conv2d)
        seen: list[torch.Tensor] = []
        handle = layer.register_forward_pre_hook(
            lambda _module, args: seen.append(args[0].detach().clone())
        )
        self.step()
        handle.remove()
        same = [
            each
            for each in self.net.modules()
            if isinstance(each, nn.Conv2d)
            and each.weight.shape == layer.weight.shape
            and each.stride == layer.stride
        ]
        return Isolated(seen[0], layer.weight.detach().clone(), layer.padding, len(same))


class _Reached(Exception):  # noqa: N818 (no error)
    """A forward pass has come to the layer that it is to stop at."""


class InPlace:
    """A convolution within a step, without the step's rest: to count all would take minutes."""

    def __init__(self, training: Training, layer: nn.Module) -> None:
        self._training = training
        self._layer = layer
        self._input: torch.Tensor | None = None

    def run_until_layer(self) -> None:
        self._input = None
        self._training.step()
        handle = self._layer.register_forward_pre_hook(self._stop)
        try:
            self._training.forward()
        except _Reached:
            pass
        finally:
            handle.remove()

    def _stop(self, _module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        (self._input,) = args
        raise _Reached

    def __call__(self) -> torch.Tensor:
        output: torch.Tensor = self._layer(self._input)
        return output


@dataclasses.dataclass(frozen=True)
class Isolated:
    """A convolution by itself, on what a ReLU gave; a step of the net has `count` like it."""

    x: torch.Tensor
    weight: torch.Tensor
    padding: str | tuple[int, ...]
    count: int

    def __call__(self) -> torch.Tensor:
        return F.conv2d(self.x, self.weight, padding=self.padding)

    def behind(self, work: Callable[[], None]) -> Callable[[], None]:
        """Runs a step or other work, and then what writes the input in the net, as in place."""

        def load() -> None:
            work()
            self.x.relu_()

        return load
