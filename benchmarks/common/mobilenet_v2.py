"""MobileNetV2 as a torch.nn.Module, with the layers of torchvision's."""

import torch
from torch import nn


def convolution(
    channels: int, width: int, size: int = 1, stride: int = 1, groups: int = 1
) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, width, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """A block that is wide inside, with a depthwise convolution there."""

    def __init__(self, channels: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = expansion * channels
        self.conv = nn.Sequential()
        if expansion > 1:
            self.conv.append(convolution(channels, inner))
        self.conv.append(convolution(inner, inner, 3, stride, groups=inner))
        self.conv.append(nn.Conv2d(inner, width, 1, bias=False)).append(nn.BatchNorm2d(width))
        self._adds = stride == 1 and channels == width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(x)
        return x + y if self._adds else y


class MobileNetV2(nn.Module):
    """Takes images of shape (N, 3, H, W), gives shape (N, 1000).

    Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, table 2.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(convolution(3, 32, 3, 2))
        channels = 32
        for expansion, width, count, first_stride in (
            (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
            (6, 160, 3, 2), (6, 320, 1, 1),
        ):  # fmt: skip
            for block in range(count):
                stride = first_stride if block == 0 else 1
                self.features.append(InvertedResidual(channels, width, stride, expansion))
                channels = width
        self.features.append(convolution(channels, 1280))
        self.classifier = nn.Linear(1280, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.classifier(self.features(x).mean((2, 3)))
        return scores
