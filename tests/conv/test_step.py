"""A model's training step, timed with PyTorch's convolutions and with convtime's."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch

from convtime.conv import step
from convtime.conv.sources.model import LoadedModel
from convtime.conv.step import compare_step
from convtime.core.errors import InputError
from tests.helpers.convolutions import with_known_times

QUICK: dict[str, Any] = {"budget": 0.001, "max_samples": 20, "warmup": 1}


class Net(torch.nn.Module):
    """Two kinds of layers, and outputs of which some are no tensors."""

    steps: list[Any] = []  # noqa: RUF012 (the copy's too)

    def __init__(self) -> None:
        super().__init__()
        self.flat = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.deep = torch.nn.ConvTranspose3d(4, 2, 2)

    def forward(self, x: torch.Tensor) -> object:
        self.steps.append((torch.is_grad_enabled(), self.training, x, type(self.flat).__module__))
        y = self.norm(self.flat(x))
        return {"deep": self.deep(y[:, :, None]), "flat": [y, None]}, "text"


def loaded(module: torch.nn.Module, *shape: int, device: Any = "cpu") -> LoadedModel:
    return LoadedModel("my:net", module.to(device), torch.randn(shape, device=device))


def test_a_models_step_is_timed_before_and_after_replacing(device: torch.device) -> None:
    Net.steps.clear()
    net = Net().eval()
    model = loaded(net, 2, 3, 8, 8, device=device)
    found = compare_step(model, dtype="float64", layout="nhwc", **QUICK)
    assert all(training and grad for grad, training, _, _ in net.steps)
    assert {where for *_, where in net.steps} == {"torch.nn.modules.conv", "convtime.nn.layers"}
    assert net.steps[-1][2].dtype == torch.float64
    assert net.flat.weight.is_contiguous(memory_format=torch.channels_last)
    assert net.deep.weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert type(net.flat) is torch.nn.Conv2d
    assert net.flat.weight.grad is None
    assert (found.model, found.input_shape) == ("my:net", (2, 3, 8, 8))
    assert found.pytorch.method == ("cpu" if device.type == "cpu" else "sync")
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["ratio"]["value"] == found.ratio.value
    assert document["pytorch"]["seconds"]


def test_the_ratio_is_convtimes_time_by_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "compare", with_known_times)
    found = compare_step(loaded(Net(), 2, 3, 8, 8), **QUICK)
    assert found.ratio.value == pytest.approx(2)
    assert (found.pytorch.median, found.convtime.median) == pytest.approx((1e-5, 2e-5))


class ReturnsDataclass(torch.nn.Linear):
    @dataclasses.dataclass
    class Output:
        y: torch.Tensor

    def forward(self, x: torch.Tensor) -> Output:  # type: ignore[override]
        return self.Output(super().forward(x))


def test_a_step_that_fails_is_said() -> None:
    norm = torch.nn.Sequential(torch.nn.Unflatten(0, (1, 2)), torch.nn.BatchNorm2d(1))
    no_gradient = "no output has a gradient"
    for module, says in (
        (torch.nn.Identity(), f"{no_gradient}: its parameters may be frozen.*; --no"),
        (torch.nn.Linear(3, 3).requires_grad_(False), no_gradient),
        (ReturnsDataclass(3, 3), f"{no_gradient}.* such as a dataclass"),
        (norm, "called on shape .* raised ValueError: .*; --no-backward times its layers' forward"),
        (torch.nn.Linear(7, 7), "the model of my:net, called on shape .* raised RuntimeError: "),
    ):
        with pytest.raises(InputError, match=f"a training step of .*{says}"):
            compare_step(loaded(module, 2, 3), **QUICK)
