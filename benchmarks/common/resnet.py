"""ResNets as modules of torch, with the layers and names of torchvision's.

He et al., Deep Residual Learning for Image Recognition, table 1. They take images of shape
(N, 3, H, W), and give shape (N, classes).
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class _Block(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.downsample = nn.Sequential()
        if stride > 1 or channels != width:
            shortcut = nn.Conv2d(channels, width, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(width))


class BasicBlock(_Block):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__(channels, width, stride)
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x), inplace=True)


class Bottleneck(_Block):
    """The stride is in the 3×3 convolution, which is what makes it v1.5."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__(channels, 4 * width, stride)
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class _ResNet(nn.Module):
    def __init__(
        self, block: Callable[..., nn.Module], counts: tuple[int, ...], expansion: int, classes: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for stage, count in enumerate(counts):
            layer = nn.Sequential()
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                layer.append(block(channels, 64 << stage, stride))
                channels = expansion * (64 << stage)
            self.add_module(f"layer{stage + 1}", layer)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        # Not adaptive pooling, whose backward pass does not repeat its bits.
        scores: torch.Tensor = self.fc(x.mean((2, 3)))
        return scores


class ResNet18(_ResNet):
    def __init__(self, classes: int = 1000) -> None:
        super().__init__(BasicBlock, (2, 2, 2, 2), 1, classes)


class ResNet50(_ResNet):
    """Version 1.5."""

    def __init__(self) -> None:
        super().__init__(Bottleneck, (3, 4, 6, 3), 4, 1000)
