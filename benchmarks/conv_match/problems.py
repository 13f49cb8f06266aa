"""The convolutions of conv_match: DeepBench's, those of six networks, and random ones.

data/networks.json has each convolution of a network once, and where it occurs: of

- VGG-16: Simonyan and Zisserman, Very Deep Convolutional Networks, table 1, D; 224×224 images
- MobileNetV2: Sandler et al., Inverted Residuals, table 2; 224×224 images
- EfficientNet-B0: Tan and Le, table 1, with squeeze-and-excitation; 224×224 images
- ConvNeXt-T: Liu et al., A ConvNet for the 2020s, section 3; its 1×1 layers are torch.nn.Linear
- U-Net: Ronneberger et al., figure 1; 572×572 images, no padding; up-convolutions left out
"""

import dataclasses
import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from results import HERE

from conv_match import LARGE
from convtime.conv.call import ConvCall, Flags, TensorLayout
from convtime.conv.csv_file import from_csv
from convtime.conv.problem import ConvLayer
from convtime.conv.resnet50 import resnet50, square_layer
from convtime.core import codec
from convtime.core.errors import InputError

DEEPBENCH = HERE / "data" / "deepbench_conv_training.csv"
RANDOM_CALLS = 320
_VARIED = 6  # of so many calls one is measured again in each variant
CONFIGURATIONS = (("float32", "nchw"), ("float16", "nhwc"))  # dtype, layout
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def networks_of(benchmark: str) -> dict[str, list[ConvLayer]]:
    text = (HERE / "data" / "networks.json").read_text(encoding="utf-8")
    return codec.decode(dict[str, list[ConvLayer]], json.loads(text)[benchmark])


NETWORKS = {"resnet50": resnet50(32), **networks_of("conv_match")}


def all_calls() -> dict[str, ConvCall]:
    dtype, layout = CONFIGURATIONS[0]
    named = {
        f"deepbench {layer.name} {dtype} {layout}": of_layer(layer, dtype, layout)
        for layer in from_csv(DEEPBENCH)
    }
    drawn = small_calls(_random_call, RANDOM_CALLS, 2015)
    large = {f"{LARGE} {name}": call for name, call in large_calls()}
    return each_once(with_variants(named | of_networks(NETWORKS), drawn) | large)


def of_networks(networks: Mapping[str, list[ConvLayer]]) -> dict[str, ConvCall]:
    return {
        f"{network} {layer.name} {dtype} {layout}": of_layer(layer, dtype, layout)
        for network, layers in networks.items()
        for dtype, layout in CONFIGURATIONS
        for layer in layers
    }


def with_variants(named: dict[str, ConvCall], drawn: Iterable[ConvCall]) -> dict[str, ConvCall]:
    random_ones = {f"random {index}": call for index, call in enumerate(drawn)}
    return named | random_ones | variants(each_once(named))


def variants(named: Mapping[str, ConvCall]) -> dict[str, ConvCall]:
    """Some of the calls again: under `deterministic`, or with a gradient that is not aligned."""
    found = {}
    for index, (name, call) in enumerate(named.items()):
        if index % _VARIED == 0:
            flags = dataclasses.replace(call.flags, deterministic=True)
            found[f"deterministic {name}"] = dataclasses.replace(call, flags=flags)
        elif index % _VARIED == _VARIED // 2:
            assert call.grad_output is not None
            shifted = dataclasses.replace(call.grad_output, misalignment=BYTES[call.dtype])
            found[f"misaligned {name}"] = dataclasses.replace(call, grad_output=shifted)
    return found


def large_calls() -> Iterator[tuple[str, ConvCall]]:
    batch = square_layer("batch", 40, 64, 64, 3, 1024)
    image = square_layer("image", 1, 64, 64, 3, 6144)
    for layer, layout in ((batch, "nhwc"), (batch, "nchw"), (image, "nhwc")):
        yield f"{layer.name} float16 {layout}", of_layer(layer, "float16", layout)


def each_once(named: Mapping[str, ConvCall]) -> dict[str, ConvCall]:
    first_names: dict[ConvCall, str] = {}
    for name, call in named.items():
        first_names.setdefault(call, name)
    return {name: call for call, name in first_names.items()}


def of_layer(layer: ConvLayer, dtype: str, layout: str) -> ConvCall:
    problem = layer.problem
    # With one spatial dimension PyTorch has no channels_last.
    strides = channels_last if layout == "nhwc" and problem.rank > 1 else contiguous
    x, w, grad_output = (
        TensorLayout(shape, strides(shape))
        for shape in (problem.input_shape, problem.weight_shape, problem.output_shape)
    )
    return ConvCall(problem, dtype, x, w, grad_output)


def contiguous(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def channels_last(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Channels as the innermost dimension of memory, whatever the number of dimensions."""
    n, c, *spatial = sizes
    batch, *inner, channel = contiguous((n, *spatial, c))
    return batch, channel, *inner


def small_calls(
    draw: Callable[[random.Random], ConvCall | None], count: int, seed: int
) -> Iterator[ConvCall]:
    """Of what is drawn, the calls that take milliseconds; the same for a seed."""
    generator = random.Random(seed)  # noqa: S311 (not for secrets)
    drawn = (draw(generator) for _ in itertools.count())
    return itertools.islice((call for call in drawn if call and _is_small(call)), count)


def _is_small(call: ConvCall) -> bool:
    elements = max(call.x.extent, call.w.extent)
    costly = 2e8 if call.dtype == "float64" else 3e9
    return elements <= 2**25 and call.problem.flops <= costly


def _random_call(generator: random.Random) -> ConvCall | None:
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
    return under_random_flags(
        generator,
        dtype,
        random_layout(generator, x, BYTES[dtype]),
        random_layout(generator, w, BYTES[dtype]),
        bias=pick((False, True)),
        stride=stride,
        padding=(vertical, horizontal),
        dilation=dilation,
        groups=groups,
    )


def under_random_flags(
    generator: random.Random, dtype: str, x: TensorLayout, w: TensorLayout, **parameters: Any
) -> ConvCall | None:
    """A call with random flags and a gradient in a random layout; None where it is no convolution.

    The generator gives the same numbers whether or not it is one.
    """
    pick = generator.choice
    flags = Flags(allow_tf32=pick((True, False)), deterministic=generator.random() < 0.15)
    strides = pick((contiguous, channels_last))
    try:
        call = ConvCall.of_layouts(dtype, x, w, flags=flags, **parameters)
    except InputError:
        return None
    shape = call.problem.output_shape
    return dataclasses.replace(call, grad_output=TensorLayout(shape, strides(shape)))


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
