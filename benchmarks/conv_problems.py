"""The convolutions of conv_match: DeepBench's, those of six networks, and random ones."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping

from results import HERE

from convtime.conv.call import ConvCall, TensorLayout
from convtime.conv.flags import Flags
from convtime.conv.problem import ConvLayer, distinct
from convtime.conv.sources.csv_file import from_csv
from convtime.conv.sources.resnet50 import resnet50, square_layer

DEEPBENCH = HERE / "data" / "deepbench_conv_training.csv"
RANDOM_PROBLEMS = 320
CONFIGURATIONS = (("float32", "nchw"), ("float16", "nhwc"))  # dtype, layout
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def vgg16(batch: int = 32) -> Iterator[ConvLayer]:
    """Simonyan and Zisserman, Very Deep Convolutional Networks, table 1, D; 224×224 images."""
    channels, size = 3, 224
    for stage, (count, width) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), 1):
        for index in range(1, count + 1):
            yield square_layer(f"conv{stage}_{index}", batch, channels, width, 3, size, bias=True)
            channels = width
        size //= 2


def mobilenet_v2(batch: int = 32) -> Iterator[ConvLayer]:
    """Sandler et al., MobileNetV2: Inverted Residuals, table 2; 224×224 images."""
    yield square_layer("stem", batch, 3, 32, 3, 224, 2)
    channels, size = 32, 112
    for stage, (expansion, width, count, first_stride) in enumerate(
        ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
         (6, 160, 3, 2), (6, 320, 1, 1)), 1,
    ):  # fmt: skip
        for block in range(count):
            stride = first_stride if block == 0 else 1
            inner, name = expansion * channels, f"stage{stage}.{block}"
            if expansion > 1:
                yield square_layer(f"{name}.expand", batch, channels, inner, 1, size)
            yield square_layer(
                f"{name}.depthwise", batch, inner, inner, 3, size, stride, groups=inner
            )
            size //= stride
            yield square_layer(f"{name}.project", batch, inner, width, 1, size)
            channels = width
    yield square_layer("head", batch, channels, 1280, 1, size)


def efficientnet_b0(batch: int = 32) -> Iterator[ConvLayer]:
    """Tan and Le, EfficientNet, table 1, with squeeze-and-excitation; 224×224 images."""
    yield square_layer("stem", batch, 3, 32, 3, 224, 2)
    channels, size = 32, 112
    for stage, (expansion, kernel, width, count, first_stride) in enumerate(
        ((1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2), (6, 5, 112, 3, 1),
         (6, 5, 192, 4, 2), (6, 3, 320, 1, 1)), 1,
    ):  # fmt: skip
        for block in range(count):
            stride = first_stride if block == 0 else 1
            inner, name = expansion * channels, f"stage{stage}.{block}"
            squeezed = channels // 4
            if expansion > 1:
                yield square_layer(f"{name}.expand", batch, channels, inner, 1, size)
            yield square_layer(
                f"{name}.depthwise", batch, inner, inner, kernel, size, stride, groups=inner
            )
            size //= stride
            yield square_layer(f"{name}.squeeze", batch, inner, squeezed, 1, 1, bias=True)
            yield square_layer(f"{name}.excite", batch, squeezed, inner, 1, 1, bias=True)
            yield square_layer(f"{name}.project", batch, inner, width, 1, size)
            channels = width
    yield square_layer("head", batch, channels, 1280, 1, size)


def convnext_tiny(batch: int = 32) -> Iterator[ConvLayer]:
    """Liu et al., A ConvNet for the 2020s, section 3; its 1×1 layers are torch.nn.Linear."""
    yield square_layer("stem", batch, 3, 96, 4, 224, 4, padding=0, bias=True)
    size = 56
    widths = (96, 192, 384, 768)
    for stage, (width, blocks) in enumerate(zip(widths, (3, 3, 9, 3), strict=True)):
        for block in range(blocks):
            name = f"stage{stage + 1}.{block}.depthwise"
            yield square_layer(name, batch, width, width, 7, size, groups=width, bias=True)
        if stage < 3:
            name = f"downsample{stage + 1}"
            yield square_layer(name, batch, width, 2 * width, 2, size, 2, padding=0, bias=True)
            size //= 2


def unet(batch: int = 2) -> Iterator[ConvLayer]:
    """Ronneberger et al., U-Net, figure 1: 572×572 images, no padding; up-convolutions left out."""

    def pair(name: str, c: int, k: int, size: int) -> Iterator[ConvLayer]:
        yield square_layer(f"{name}.1", batch, c, k, 3, size, padding=0, bias=True)
        yield square_layer(f"{name}.2", batch, k, k, 3, size - 2, padding=0, bias=True)

    channels, size = 1, 572
    for width in (64, 128, 256, 512, 1024):
        yield from pair(f"down{width}", channels, width, size)
        channels, size = width, (size - 4) // 2
    size *= 2  # there is no pooling after the last pair
    for width in (512, 256, 128, 64):
        size *= 2  # the up-convolution; its output is joined by as many channels from before
        yield from pair(f"up{width}", 2 * width, width, size)
        size -= 4
    yield square_layer("head", batch, 64, 2, 1, size, bias=True)


NETWORKS: dict[str, Callable[[], list[ConvLayer]]] = {
    "resnet50": lambda: resnet50(32),
    "vgg16": lambda: distinct(vgg16()),
    "mobilenet_v2": lambda: distinct(mobilenet_v2()),
    "efficientnet_b0": lambda: distinct(efficientnet_b0()),
    "convnext_tiny": lambda: distinct(convnext_tiny()),
    "unet": lambda: distinct(unet()),
}


def all_problems() -> dict[str, ConvCall]:
    """Every problem by a name that begins with the name of its set; each problem once."""
    dtype, layout = CONFIGURATIONS[0]
    named = {
        f"deepbench {layer.name} {dtype} {layout}": of_layer(layer, dtype, layout)
        for layer in from_csv(DEEPBENCH)
    }
    named |= of_networks(NETWORKS)
    named |= {f"random {index}": problem for index, problem in enumerate(random_problems())}
    return each_once(named)


def of_networks(networks: Mapping[str, Callable[[], list[ConvLayer]]]) -> dict[str, ConvCall]:
    """The layers of networks in every configuration, by network, layer and configuration."""
    return {
        f"{network} {layer.name} {dtype} {layout}": of_layer(layer, dtype, layout)
        for network, layers in networks.items()
        for dtype, layout in CONFIGURATIONS
        for layer in layers()
    }


def each_once(named: Mapping[str, ConvCall]) -> dict[str, ConvCall]:
    """Each problem under the first of its names."""
    first_names: dict[ConvCall, str] = {}
    for name, problem in named.items():
        first_names.setdefault(problem, name)
    return {name: problem for problem, name in first_names.items()}


def of_layer(layer: ConvLayer, dtype: str, layout: str) -> ConvCall:
    """A layer with all tensors in one layout, "nchw" or "nhwc"."""
    assert not isinstance(layer.padding, str)
    # With one spatial dimension PyTorch has no channels_last.
    strides = channels_last if layout == "nhwc" and layer.rank > 1 else contiguous

    def tensor(sizes: tuple[int, ...]) -> TensorLayout:
        return TensorLayout(sizes, strides(sizes))

    return ConvCall(
        dtype=dtype,
        x=tensor(layer.input_shape),
        w=tensor(layer.weight_shape),
        grad_output=tensor(layer.output_shape),
        bias=layer.bias,
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=layer.groups,
        transposed=layer.transposed,
        output_padding=layer.output_padding,
    )


def contiguous(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def channels_last(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Channels as the innermost dimension of memory, whatever the number of dimensions."""
    n, c, *spatial = sizes
    batch, *inner, channel = contiguous((n, *spatial, c))
    return batch, channel, *inner


def random_problems(count: int = RANDOM_PROBLEMS, seed: int = 2015) -> Iterator[ConvCall]:
    """Valid problems over all parameters, small enough for milliseconds; the same for a seed."""
    generator = random.Random(seed)  # noqa: S311 (not for secrets)
    drawn = iter(lambda: _random_problem(generator), None)
    return itertools.islice(filter(is_small, drawn), count)


def is_small(problem: ConvCall) -> bool:
    """Whether it has an output, and takes milliseconds at most."""
    elements = max(problem.x.extent, problem.w.extent)
    costly = 2e8 if problem.dtype == "float64" else 3e9
    return min(problem.output_sizes) >= 1 and elements <= 2**25 and problem.flops <= costly


def _random_problem(generator: random.Random) -> ConvCall:
    pick = generator.choice
    dtype = random_dtype(generator)
    groups, c, k = random_channels(generator)
    kernel = pick(((1, 1), (1, 1), (3, 3), (3, 3), (3, 3), (5, 5), (7, 7), (1, 3), (5, 1), (2, 3)))
    dilation = pick(((1, 1), (1, 1), (1, 1), (2, 2), (1, 3)))
    stride = pick(((1, 1), (1, 1), (2, 2), (1, 2), (3, 3)))
    spans = [step * (size - 1) for size, step in zip(kernel, dilation, strict=True)]
    vertical, horizontal = (pick((0, span // 2, span // 2, span)) for span in spans)
    side = pick((7, 14, 28, 56))
    height, width = pick(((side, side), (generator.randint(1, 80), generator.randint(1, 80))))
    x = (pick((1, 2, 3, 8, 16, 32)), c, height, width)
    w = (k, c // groups, *kernel)
    problem = ConvCall(
        dtype=dtype,
        x=random_layout(generator, x, BYTES[dtype]),
        w=random_layout(generator, w, BYTES[dtype]),
        bias=pick((False, True)),
        stride=stride,
        padding=(vertical, horizontal),
        dilation=dilation,
        groups=groups,
        flags=Flags(allow_tf32=pick((True, False)), deterministic=generator.random() < 0.15),
    )
    strides = pick((contiguous, channels_last))
    sizes = problem.output_sizes
    return dataclasses.replace(problem, grad_output=TensorLayout(sizes, strides(sizes)))


def random_dtype(generator: random.Random) -> str:
    return generator.choices(tuple(BYTES), weights=(30, 20, 35, 15))[0]


def random_channels(generator: random.Random) -> tuple[int, int, int]:
    """Groups, and channels of input and output."""
    c, k = (
        generator.choice((1, 3, 8, 16, 32, 64, 96, 128, 256, generator.randint(1, 100)))
        for _ in range(2)
    )
    kind = generator.choice(("whole", "whole", "grouped", "depthwise"))
    if kind == "whole":
        return 1, c, k
    if kind == "depthwise":
        return c, c, c * generator.choice((1, 1, 2))
    groups = generator.choice((2, 4, 8, 32))
    return groups, groups * max(1, c // groups), groups * max(1, k // groups)


def random_layout(generator: random.Random, sizes: tuple[int, ...], itemsize: int) -> TensorLayout:
    """Contiguous, channels_last, or rows of a wider tensor; sometimes not aligned."""
    kind = generator.choice(("contiguous", "contiguous", "channels_last", "channels_last", "rows"))
    if kind == "channels_last":
        strides = channels_last(sizes)
    else:
        gap = generator.randint(1, 5) if kind == "rows" else 0
        strides = contiguous((*sizes[:-1], sizes[-1] + gap))
    return TensorLayout(sizes, strides, itemsize * generator.choice((0, 0, 0, 1, 2, 4)))
