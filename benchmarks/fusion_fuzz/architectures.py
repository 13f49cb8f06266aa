"""Small models with the structures of known architectures, for models with and without fusion.

Each takes the number of channels, and a batch of images with 3 channels whose sides are multiples
of 4, unless its `sides` say otherwise.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


def conv_bn(given: int, channels: int, side: int = 3, **options: Any) -> nn.Sequential:
    conv = nn.Conv2d(given, channels, side, padding=side // 2, bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(channels))


class Residual(nn.Module):
    """A block of a ResNet, which adds in place."""

    def __init__(self, given: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.first = conv_bn(given, channels, stride=stride)
        self.relu = nn.ReLU(inplace=True)
        self.second = conv_bn(channels, channels)
        self.shortcut = conv_bn(given, channels, 1, stride=stride) if stride > 1 else None

    def forward(self, x: torch.Tensor) -> Any:
        y = self.second(self.relu(self.first(x)))
        y += x if self.shortcut is None else self.shortcut(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(3, channels), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        blocks = Residual(channels, channels), Residual(channels, 2 * channels, 2)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(2 * channels, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Inverted(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.block = nn.Sequential(
            *conv_bn(channels, wide, 1),
            nn.ReLU6(inplace=True),
            *conv_bn(wide, wide, groups=wide),
            nn.ReLU6(inplace=True),
            *conv_bn(wide, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.block(x)


class MobileNet(nn.Sequential):
    def __init__(self, channels: int) -> None:
        super().__init__(
            *conv_bn(3, channels, stride=2),
            nn.Hardswish(),
            Inverted(channels),
            Inverted(channels),
            nn.Conv2d(channels, 2 * channels, 1),
            nn.SiLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


class DenseNet(nn.Module):
    """Each layer normalises before its convolution, and takes the results of all before it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(channels * count),
                nn.ReLU(inplace=True),
                nn.Conv2d(channels * count, channels, 1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
                nn.Conv2d(channels, channels, 3, padding=1),
            )
            for count in (1, 2, 3)
        )
        self.last = nn.Conv2d(4 * channels, channels, 1)

    def forward(self, x: torch.Tensor) -> Any:
        found = [self.stem(x)]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return self.last(torch.cat(found, 1)).relu_()


class Inception(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = conv_bn(3, channels)
        self.one = conv_bn(channels, channels, 1)
        self.three = nn.Sequential(conv_bn(channels, channels, 1), nn.ReLU(), conv_bn(channels, 4))
        self.five = nn.Sequential(*conv_bn(channels, 4, 5), nn.Sigmoid())
        self.pooled = nn.Conv2d(channels, 4, 1)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = F.relu(self.stem(x))
        branches = [
            F.relu(self.one(x), inplace=True),
            torch.relu(self.three(x)),
            self.five(x),
            F.avg_pool2d(x, 3, 1, 1).clone().add_(0.5),
            self.pooled(F.max_pool2d(x, 3, 1, 1)).tanh(),
        ]
        return [torch.cat(branches, 1), branches[2]]


class UNet(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Sequential(*conv_bn(3, channels), nn.LeakyReLU(0.2, inplace=True))
        self.deep = nn.Sequential(*conv_bn(channels, 2 * channels), nn.GELU(approximate="tanh"))
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.norm = nn.BatchNorm2d(channels)
        self.join = nn.Sequential(*conv_bn(2 * channels, channels), nn.ReLU())
        self.out = nn.Conv2d(channels, 2, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        skip = self.down(x)
        deep = self.deep(F.max_pool2d(skip, 2))
        up = F.relu(self.norm(self.up(deep)))
        return {"deep": deep, "mask": torch.sigmoid(self.out(self.join(torch.cat([up, skip], 1))))}


class DetectionHead(nn.Module):
    """EfficientDet's: levels share convolutions, and each has its own batch norms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)) for _ in range(2)
        )
        self.boxes = nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = []
        for level, norms in enumerate(self.norms):
            y = F.silu(self.stem(F.avg_pool2d(x, 2**level)))
            for conv, norm in zip(self.convs, norms.children(), strict=True):
                y = F.silu(norm(conv(y)))
            found.append(self.boxes(y))
        return tuple(found)


class ConvNeXt(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 4, stride=4)
        self.deep = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.wide = nn.Linear(channels, 2 * channels)
        self.narrow = nn.Linear(2 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.5))
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.stem(x)
        y = self.narrow(F.gelu(self.wide(self.norm(self.deep(x).permute(0, 2, 3, 1)))))
        return F.gelu(self.out(x + (self.scale * y).permute(0, 3, 1, 2)))


class StochasticDepth(nn.Module):
    """Drops whole branches in training, by the generator and for each sample."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.branches = nn.ModuleList(
            nn.Sequential(*conv_bn(channels, channels), nn.ReLU()) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> Any:
        x = self.stem(x)
        for index, branch in enumerate(self.branches):
            if not self.training:
                x = x + 0.8 * branch(x)
            elif index != 1 or float(torch.rand(())) < 0.8:
                kept = torch.rand(len(x), 1, 1, 1) < 0.8
                x = x + kept.to(x) * branch(x)
        return x


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = conv_bn(3, channels)
        self.deep = conv_bn(channels, channels, groups=channels)
        self.reduce = nn.Conv2d(channels, 2, 1)
        self.expand = nn.Conv2d(2, channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.stem(x)
        y = F.silu(self.deep(F.silu(x)))
        y *= torch.sigmoid(self.expand(F.relu(self.reduce(y.mean((2, 3), keepdim=True)))))
        y = self.out(y)
        y -= x
        return F.relu(y, inplace=True)


class Siamese(nn.Module):
    """Both branches share a module, and a weight is tied."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(*conv_bn(3, channels), nn.LeakyReLU(0.1))
        self.one = nn.Conv2d(channels, channels, 1)
        self.two = nn.Conv2d(channels, channels, 1)
        self.two.weight = self.one.weight
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> Any:
        left, right = self.branch(x), self.branch(x.flip(3))
        left = F.relu(self.norm(self.one(left)))
        right = torch.tanh(self.two(right))
        return (left - right).abs().mean((2, 3))


class Recurrent(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *conv_bn(3, channels, stride=2), nn.ReLU(), *conv_bn(channels, channels), nn.ReLU()
        )
        self.lstm = nn.LSTM(channels, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.lstm(self.stem(x).mean(2).transpose(1, 2))[0]


class Branching(nn.Module):
    """Its values choose what it computes, and it counts its calls."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.calls = 0
        self.stem = conv_bn(3, channels)
        self.often = nn.Sequential(*conv_bn(channels, channels), nn.ReLU())
        self.seldom = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        positive = bool(x.mean() > 0)
        x = F.relu6(self.stem(x))
        x = self.often(x) if positive else torch.sigmoid(self.seldom(x))
        return x * (1 + self.calls % 3)


class Checkpointed(nn.Module):
    """Recomputes a block in the backward pass.

    Its batch norms update their statistics again then, but not where torch.compile does it. The
    backend "eager" of torch.compile cannot compute its gradients.
    """

    compiled_twin = "aot_eager"

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(3, channels), nn.ReLU())
        self.block = Residual(channels, channels)
        self.last = nn.Sequential(nn.Conv2d(channels, channels, 3), nn.Tanh())

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(checkpoint(self.block, self.stem(x), use_reentrant=False))


class Teacher(nn.Module):
    """One branch has no gradients, and an argument is optional."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.student = nn.Sequential(*conv_bn(3, channels), nn.ReLU())
        self.teacher = nn.Sequential(*conv_bn(3, channels), nn.ReLU())
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor, weight: float = 0.5) -> Any:
        y = self.student(x)
        with torch.no_grad():
            target = self.teacher(x)
        return F.relu(self.mix(y + weight * target)) + (y.detach() - target).square()


class Parametrized(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        first = parametrizations.weight_norm(nn.Conv2d(3, channels, 3, padding=1))
        self.stem = nn.Sequential(first, nn.BatchNorm2d(channels), nn.ReLU())
        self.plain = nn.Sequential(*conv_bn(channels, channels), nn.GELU())

    def forward(self, x: torch.Tensor) -> Any:
        return self.plain(self.stem(x)).sum((2, 3))


class Audio(nn.Module):
    """1-D, with two results, one of which is changed in place."""

    sides = (24,)

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(3, channels, 5, stride=2, padding=2)
        self.norm = nn.BatchNorm1d(channels)
        self.second = nn.Conv1d(channels, channels, 3, padding=2, dilation=2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.relu(self.norm(self.first(x)))
        z = self.second(y).sigmoid_() + 0
        z[:, 0] = 0
        return y, z


class Video(nn.Module):
    """3-D, padded by reflection."""

    sides = (4, 8, 8)

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv3d(3, channels, 3, padding=1, padding_mode="reflect")
        self.second = nn.Conv3d(channels, channels, (1, 3, 3), padding="same", bias=False)
        self.norm = nn.BatchNorm3d(channels, affine=False)

    def forward(self, x: torch.Tensor) -> Any:
        y = F.relu(self.first(x))
        return F.hardtanh(self.norm(self.second(y)) + y, 0, 6)


ARCHITECTURES: dict[str, Callable[[int], nn.Module]] = {
    each.__name__: each
    for each in (
        ResNet, MobileNet, DenseNet, Inception, UNet, DetectionHead, ConvNeXt, StochasticDepth,
        SqueezeExcite, Siamese, Recurrent, Branching, Checkpointed, Teacher, Parametrized, Audio,
        Video,
    )
}  # fmt: skip


def sides_of(model: nn.Module) -> tuple[int, ...]:
    sides: tuple[int, ...] = getattr(model, "sides", (16, 12))
    return sides


def draw_images(
    model: nn.Module, count: int, scale: int, generator: torch.Generator
) -> torch.Tensor:
    """A batch of what a model takes, with sides that are `scale` times as long."""
    shape = (count, 3, *(scale * side for side in sides_of(model)))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def norms_of(model: nn.Module) -> list[Any]:
    return [each for each in model.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]


def randomise(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Gives batch norms statistics and parameters that matter."""
    with torch.no_grad():
        for norm in norms_of(model):
            norm.running_mean.normal_(generator=generator)
            norm.running_var.uniform_(0.5, 2, generator=generator)
            if norm.affine:
                norm.weight.uniform_(0.5, 2, generator=generator)
                norm.bias.normal_(generator=generator)
    return model
