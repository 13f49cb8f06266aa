"""The convolutions of ResNet-50."""

from __future__ import annotations

from collections.abc import Iterator

from convtime.conv.problem import ConvLayer, ConvProblem, distinct


def square_layer(
    name: str,
    batch: int,
    c: int,
    k: int,
    kernel: int,
    size: int,
    stride: int = 1,
    *,
    padding: int | None = None,
    groups: int = 1,
    bias: bool = False,
) -> ConvLayer:
    """Return a layer for square images; by default, stride 1 keeps the size."""
    padding = kernel // 2 if padding is None else padding
    problem = ConvProblem(
        batch=batch,
        in_channels=c,
        size=(size, size),
        out_channels=k,
        kernel_size=(kernel, kernel),
        stride=(stride, stride),
        padding=(padding, padding),
        groups=groups,
        bias=bias,
    )
    return ConvLayer((name,), problem)


def resnet50(batch: int) -> list[ConvLayer]:
    """Return the distinct convolutions of ResNet-50 v1.5 for 224×224 images.

    Layer names follow torchvision. v1.5 has the stride of a stage's first block in its 3×3
    convolution; v1 has it in the first 1×1. He et al., Deep Residual Learning for Image
    Recognition, table 1.
    """
    return distinct(_resnet50_convolutions(batch))


def _resnet50_convolutions(batch: int) -> Iterator[ConvLayer]:
    yield square_layer("conv1", batch, 3, 64, 7, 224, 2)
    channels, size = 64, 56  # after the 3×3 max-pool of stride 2
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        for block in range(blocks):
            prefix = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            yield square_layer(f"{prefix}.conv1", batch, channels, width, 1, size)
            yield square_layer(f"{prefix}.conv2", batch, width, width, 3, size, stride)
            yield square_layer(f"{prefix}.conv3", batch, width, 4 * width, 1, size // stride)
            if block == 0:
                name = f"{prefix}.downsample.0"
                yield square_layer(name, batch, channels, 4 * width, 1, size, stride)
            channels, size = 4 * width, size // stride
