"""The convolutions of conv_match_nd: in one and three dimensions, and transposed ones."""

import functools
import math
import random
from collections.abc import Iterator
from typing import Any

from conv_match import problems
from convtime.conv.call import ConvCall
from convtime.conv.problem import ConvLayer, ConvProblem
from convtime.core.kinds import KINDS

RANDOM_CALLS = 240
Sides = tuple[int, ...]

OTHER_KINDS = tuple(kind for kind in KINDS if kind.function != "conv2d")


def _conv(
    name: str, batch: int, c: int, k: int, kernel: Sides, size: Sides, *steps: Any, **options: Any
) -> ConvLayer:
    """`steps` are strides and paddings, where they are not 1 and 0."""
    return ConvLayer((name,), ConvProblem(batch, c, size, k, kernel, *steps, **options))


def unet_3d(batch: int = 1) -> Iterator[ConvLayer]:
    """Çiçek et al., 3D U-Net, figure 2: 132×132×116 voxels of three channels, no padding."""

    size: Sides = (116, 132, 132)

    def pair(name: str, c: int, inner: int, k: int) -> Iterator[ConvLayer]:
        nonlocal size
        for part, (before, after) in enumerate(((c, inner), (inner, k)), start=1):
            yield _conv(f"{name}.{part}", batch, before, after, (3, 3, 3), size, bias=True)
            size = tuple(side - 2 for side in size)

    channels = 3
    for inner in (32, 64, 128, 256):
        yield from pair(f"down{inner}", channels, inner, 2 * inner)
        channels = 2 * inner
        if inner < 256:
            size = tuple(side // 2 for side in size)  # max-pool
    for skipped in (256, 128, 64):
        name, steps = f"up{skipped}", (2, 2, 2)
        yield _conv(name, batch, channels, channels, steps, size, steps, transposed=True)
        size = tuple(2 * side for side in size)
        yield from pair(f"joined{skipped}", channels + skipped, skipped, skipped)
        channels = skipped
    yield _conv("head", batch, channels, 3, (1, 1, 1), size, bias=True)


def r3d_18(batch: int = 4) -> Iterator[ConvLayer]:
    """Tran et al., A Closer Look at Spatiotemporal Convolutions, table 1; 16 frames of 112×112."""
    yield _conv("stem", batch, 3, 64, (3, 7, 7), (16, 112, 112), (1, 2, 2), (1, 3, 3))
    channels, size = 64, (16, 56, 56)
    for stage, width in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            step = 2 if stage > 1 and block == 0 else 1
            stride, name = (step,) * 3, f"layer{stage}.{block}"
            yield _conv(f"{name}.conv1", batch, channels, width, (3, 3, 3), size, stride, (1, 1, 1))
            if step > 1:
                yield _conv(f"{name}.downsample", batch, channels, width, (1, 1, 1), size, stride)
                frames, rows, columns = size
                size = (frames // 2, rows // 2, columns // 2)
            yield _conv(f"{name}.conv2", batch, width, width, (3, 3, 3), size, (), (1, 1, 1))
            channels = width


def m5(batch: int = 64) -> Iterator[ConvLayer]:
    """Dai et al., Very Deep Convolutional Neural Networks for Raw Waveforms, table 1; 4 s."""
    yield _conv("conv1", batch, 1, 128, (80,), (32_000,), (4,), (38,), bias=True)
    channels, length = 128, 8_000
    for index, width in enumerate((128, 256, 512), start=2):
        length //= 4  # max-pool
        yield _conv(f"conv{index}", batch, channels, width, (3,), (length,), (), (1,), bias=True)
        channels = width


def wav2vec2(batch: int = 4) -> Iterator[ConvLayer]:
    """Baevski et al., wav2vec 2.0, section 4.2: features of 1 s at 16 kHz, and their positions."""
    channels, length = 1, 16_000
    kernels, strides = (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)
    for index, (kernel, stride) in enumerate(zip(kernels, strides, strict=True)):
        layer = _conv(f"features.{index}", batch, channels, 512, (kernel,), (length,), (stride,))
        yield layer
        channels, (length,) = 512, layer.problem.output_size
    yield _conv("positions", batch, 768, 768, (128,), (length,), (), (64,), groups=16, bias=True)


def dcgan(batch: int = 128) -> Iterator[ConvLayer]:
    """Radford et al., DCGAN; the generator of PyTorch's example, 64×64 images from 100 numbers."""
    yield _grown("main.0", batch, 100, 512, 1, 1, 0)
    for index, (c, k) in enumerate(((512, 256), (256, 128), (128, 64), (64, 3))):
        yield _grown(f"main.{3 * index + 3}", batch, c, k, 4 << index)


def _grown(
    name: str, batch: int, c: int, k: int, size: int, stride: int = 2, padding: int = 1,
    **options: Any,
) -> ConvLayer:  # fmt: skip
    """A transposed 4×4 layer, which doubles a square's sides unless said otherwise."""
    steps = (stride, stride), (padding, padding)
    return _conv(name, batch, c, k, (4, 4), (size, size), *steps, transposed=True, **options)


def diffusion(batch: int = 8) -> Iterator[ConvLayer]:
    """How decoders of diffusion models grow: images, videos, and waveforms.

    Ho et al., Denoising Diffusion Probabilistic Models, and Video Diffusion Models, as widely
    implemented; Kong et al., DiffWave, section 3.2; Evans et al., Stable Audio Open, section 3.1.
    """
    grown = functools.partial(_conv, bias=True, transposed=True)
    for width, size in ((512, 8), (256, 16), (128, 32)):
        yield _grown(f"image{width}", batch, width, width, size, bias=True)
        before, steps = (16, size, size), ((1, 2, 2), (0, 1, 1))
        yield grown(f"video{width}", 1, width, width, (1, 4, 4), before, *steps)
    for index, frames in enumerate((62, 62 * 16)):
        yield grown(f"mel{index}", batch, 1, 1, (3, 32), (80, frames), (1, 16), (1, 8))
    channels, length = 2048, 64
    for width, stride in ((1024, 8), (512, 8), (256, 4), (128, 4), (128, 2)):
        kernel, padding = 2 * stride, stride // 2
        yield grown(
            f"audio{length}", 1, channels, width, (kernel,), (length,), (stride,), (padding,)
        )
        channels, length = width, length * stride


NETWORKS: problems.Networks = {
    make.__name__: make for make in (unet_3d, r3d_18, m5, wav2vec2, dcgan, diffusion)
}


def all_calls() -> dict[str, ConvCall]:
    drawn = problems.small_calls(_random_call, RANDOM_CALLS, 2016)
    named = problems.with_variants(problems.of_networks(NETWORKS), drawn)
    return problems.each_once(named)


def _random_call(generator: random.Random) -> ConvCall | None:
    """None where what was drawn is no convolution, or its result is large."""
    pick = generator.choice
    kind = pick(OTHER_KINDS)
    rank, transposed = kind.rank, kind.transposed
    dtype = problems.random_dtype(generator)
    groups, c, k = problems.random_channels(generator)
    largest = {1: 4000, 2: 40, 3: 14}[rank]

    def numbers(*allowed: int) -> Sides:
        """Mostly the same in all dimensions, as in most networks."""
        if generator.random() < 0.6:
            return (pick(allowed),) * rank
        return tuple(pick(allowed) for _ in range(rank))

    kernel, stride = numbers(1, 2, 3, 3, 4, 5, *((9, 16) if rank == 1 else ())), numbers(1, 1, 2, 3)
    dilation = numbers(1, 1, 1, 2, 3)
    spans = [step * (size - 1) for size, step in zip(kernel, dilation, strict=True)]
    output_padding: Sides = ()
    if transposed:
        steps = zip(stride, dilation, strict=True)
        output_padding = tuple(pick((0, generator.randrange(max(step)))) for step in steps)
    x = (pick((1, 2, 3, 8)), c, *(generator.randint(1, largest) for _ in range(rank)))
    w = (c, k // groups, *kernel) if transposed else (k, c // groups, *kernel)
    itemsize = problems.BYTES[dtype]
    call = problems.under_random_flags(
        generator,
        dtype,
        problems.random_layout(generator, x, itemsize),
        problems.random_layout(generator, w, itemsize),
        bias=pick((False, True)),
        stride=stride,
        padding=tuple(pick((0, span // 2, span // 2)) for span in spans),
        dilation=dilation,
        groups=groups,
        transposed=transposed,
        output_padding=output_padding,
    )
    return call if call and math.prod(call.problem.output_shape) <= 2**25 else None
