"""ResNet-50 v1.5 as a torch.nn.Module, with the layers and names of torchvision's."""

import torch
from torch import nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    """A residual block; the stride is in the 3×3 convolution, which is what makes it v1.5."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = nn.Sequential()
        if channels != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet50(nn.Module):
    """Takes images of shape (N, 3, H, W), gives shape (N, 1000).

    He et al., Deep Residual Learning for Image Recognition, table 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
            layer = nn.Sequential()
            for block in range(blocks):
                stride = 2 if stage > 1 and block == 0 else 1
                layer.append(Bottleneck(channels, width, stride))
                channels = 4 * width
            self.add_module(f"layer{stage}", layer)
        self.fc = nn.Linear(channels, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        # Not adaptive pooling, whose backward pass does not repeat its bits.
        scores: torch.Tensor = self.fc(x.mean((2, 3)))
        return scores
