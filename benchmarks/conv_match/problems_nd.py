"""The convolutions of conv_match_nd: in one and three dimensions, and transposed ones.

data/networks.json has those of networks, each once: of

- 3D U-Net: Çiçek et al., figure 2; 132×132×116 voxels of three channels, no padding
- R3D-18: Tran et al., A Closer Look at Spatiotemporal Convolutions, table 1; 16 frames of 112×112
- M5: Dai et al., Very Deep Convolutional Neural Networks for Raw Waveforms, table 1; 4 s
- wav2vec 2.0: Baevski et al., section 4.2; features of 1 s at 16 kHz, and their positions
- DCGAN: Radford et al.; the generator of PyTorch's example, 64×64 images from 100 numbers
- decoders of diffusion models, which grow images, videos and waveforms: Ho et al., Denoising
  Diffusion Probabilistic Models, and Video Diffusion Models, as widely implemented; Kong et al.,
  DiffWave, section 3.2; Evans et al., Stable Audio Open, section 3.1
"""

import math
import random

from conv_match import problems
from convtime.conv.call import ConvCall
from convtime.core.kinds import KINDS

RANDOM_CALLS = 240
Sides = tuple[int, ...]

OTHER_KINDS = tuple(kind for kind in KINDS if kind.function != "conv2d")


def all_calls() -> dict[str, ConvCall]:
    drawn = problems.small_calls(_random_call, RANDOM_CALLS, 2016)
    named = problems.with_variants(
        problems.of_networks(problems.networks_of("conv_match_nd")), drawn
    )
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
