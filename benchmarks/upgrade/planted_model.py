"""A model of independent layers as a file describes it; each side of an upgrade has its own file.

Runs under any torch, without convtime. The description is JSON, in the file that UPGRADE_MODEL
names: "flags", settings of torch.backends by name, and "sites", layers by name, each with
- kind, args: a class of torch.nn, and its parameters;
- input: the sizes of its input; dtype; and channels_last of input and weights;
- extra: of what it does beside its own work, the amount by kind; see EXTRAS.
"""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SPIN_HZ = 1.8e9  # the clock by which _sleep counts, roughly


def spin(_site: Extra, _x: torch.Tensor, seconds: float) -> None:
    """Waits, in a kernel that the other side has, too."""
    cuda: Any = torch.cuda
    cuda._sleep(int(seconds * SPIN_HZ))


def on_scratch(work: Callable[[torch.Tensor], object]) -> Callable[..., None]:
    """Work on elements of a tensor that belongs to the site, so that its input stays as it is."""

    def extra(site: Extra, x: torch.Tensor, elements: float) -> None:
        count = 4096 * max(1, round(elements / 4096))
        if site.scratch is None or site.scratch.numel() < count:
            site.scratch = torch.zeros(count, device=x.device)
        work(site.scratch[:count])

    return extra


EXTRAS: dict[str, Callable[..., None]] = {
    "copy": on_scratch(torch.Tensor.clone),
    "cast": on_scratch(torch.Tensor.double),  # a dtype that the site does not have
    "spin": spin,
    "buffer": on_scratch(lambda buffer: buffer.add_(1)),  # is larger than the other side's
}


class Extra(torch.nn.Module):
    extra: dict[str, float]
    scratch: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> Any:
        for kind, amount in self.extra.items():
            EXTRAS[kind](self, x, amount)
        return super().forward(x)


class Sites(torch.nn.Module):
    """Calls each site on the beginning of one long input."""

    def __init__(self, sites: dict[str, dict[str, Any]]) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self._described = sites
        for name, site in sites.items():
            made: Any = type(site["kind"], (Extra, getattr(torch.nn, site["kind"])), {})
            module = made(**site["args"])
            module.extra = site.get("extra", {})
            module.to(getattr(torch, site["dtype"]), memory_format=_format(site))
            self.add_module(name, module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale  # needs a gradient, as inside of a net
        results = [
            module(input_of(self._described[name], x)).float().mean()
            for name, module in self.named_children()
        ]
        return torch.stack(results)


def input_of(site: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    sizes = site["input"]
    own = x[: math.prod(sizes)].view(sizes).to(getattr(torch, site["dtype"]))
    return own.contiguous(memory_format=_format(site))


def _format(site: dict[str, Any]) -> torch.memory_format:
    return torch.channels_last if site.get("channels_last") else torch.contiguous_format


def described() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(os.environ["UPGRADE_MODEL"]).read_text())
    return found


def model() -> Sites:
    description = described()
    for name, value in description["flags"].items():
        holder, _, last = name.rpartition(".")
        setattr(operator.attrgetter(holder)(torch.backends), last, value)
    return Sites(description["sites"])


def resnet50_in_half() -> torch.nn.Module:
    from common.resnet import ResNet50

    return ResNet50().half().to(memory_format=torch.channels_last)
