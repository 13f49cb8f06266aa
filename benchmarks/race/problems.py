"""The problems of race: what is to be chosen from, drawn at random."""

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from common.families import log_uniform
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from convtime import Candidate, nn, ops

from . import triton_kernels

_SEED = 34

Make = Callable[[random.Random, torch.device], Iterator[Candidate]]


def names() -> list[str]:
    """In the order of the draws."""
    return [f"{kind} {1 + index}" for kind, (_, count) in _KINDS.items() for index in range(count)]


def make(name: str, device: torch.device) -> dict[str, Candidate]:
    """The candidates of a problem: the same ones in every process."""
    kind, _, _ = name.rpartition(" ")
    draw = random.Random(f"{_SEED} {name}")  # noqa: S311  # not a secret
    with torch.random.fork_rng([device]):
        torch.manual_seed(0)
        return {candidate.name: candidate for candidate in _KINDS[kind][0](draw, device)}


def _size(draw: random.Random, least: int, most: int, multiple: int = 1) -> int:
    return max(multiple, round(log_uniform(draw, least, most) / multiple) * multiple)


def _chosen(draw: random.Random, configurations: Iterator[Any], most: int) -> list[Any]:
    every = [*configurations]
    return draw.sample(every, min(len(every), draw.randint(4, most)))


def _matmul(draw: random.Random, device: torch.device) -> Iterator[Candidate]:
    m, n, k = (_size(draw, 256, 4096, 64) for _ in range(3))
    a = torch.randn(m, k, dtype=torch.bfloat16, device=device)
    b = torch.randn(k, n, dtype=torch.bfloat16, device=device)
    every = itertools.product((64, 128), (64, 128, 256), (32, 64), (4, 8), (2, 3, 4))
    for rows, columns, inner, warps, stages in _chosen(draw, every, 24):
        yield Candidate(
            triton_kernels.matmul,
            *(a, b, (rows, columns, inner), warps, stages),
            name=f"{rows}x{columns}x{inner}, {warps} warps, {stages} stages",
        )


def _softmax(draw: random.Random, device: torch.device) -> Iterator[Candidate]:
    x = torch.randn(_size(draw, 256, 16384), _size(draw, 64, 8192), device=device)
    for rows, warps in _chosen(draw, itertools.product((1, 2, 4), (1, 2, 4, 8, 16)), 15):
        yield Candidate(triton_kernels.softmax, x, rows, warps, name=f"{rows} rows, {warps} warps")


def _scale(draw: random.Random, device: torch.device) -> Iterator[Candidate]:
    x = torch.randn(_size(draw, 1 << 12, 1 << 25), device=device)
    blocks = [1 << power for power in range(6, 14)]
    for block, warps in _chosen(draw, itertools.product(blocks, (1, 2, 4, 8, 16)), 40):
        yield Candidate(triton_kernels.scale, x, block, warps, name=f"{block}, {warps} warps")


def _row_sums(draw: random.Random, device: torch.device) -> Iterator[Candidate]:
    x = torch.randn(_size(draw, 64, 8192), _size(draw, 256, 32768), device=device)
    blocks = [1 << power for power in range(7, 13)]
    for block, warps in _chosen(draw, itertools.product(blocks, (1, 2, 4, 8)), 24):
        yield Candidate(triton_kernels.row_sums, x, block, warps, name=f"{block}, {warps} warps")


def _algorithms(draw: random.Random, device: torch.device) -> Iterator[Candidate]:
    """cuBLASLt's algorithms for a product of a net's training step."""
    width = _size(draw, 256, 4096, 8)
    batch = _size(draw, 64, 4096, 8)
    net = nn.FusedMLP([width] * 3, dtype=torch.bfloat16, device=device)
    inputs = torch.randn(batch, width, dtype=torch.bfloat16, device=device)
    weights = net.weights.detach()
    _, _, size, _ = torch.ops.convtime.mlp_path(
        weights, width, width, batch, net.activation, tf32=False
    )
    scratch = torch.zeros(size, dtype=torch.uint8, device=device)
    products = torch.classes.convtime.MlpProducts(
        inputs, weights, scratch, batch, width, net.activation, True, False
    )
    counts = products.algorithms()
    product = draw.choice([index for index, count in enumerate(counts) if count >= 4])
    for algorithm in range(counts[product]):
        yield Candidate(
            functools.partial(products.run, product, algorithm), name=f"algorithm {algorithm}"
        )


def _convolution(draw: random.Random, device: torch.device) -> Iterator[Candidate]:
    channels = _size(draw, 16, 512, 16)
    side = _size(draw, 7, 64)
    dtype = draw.choice((torch.float32, torch.float16, torch.bfloat16))
    batch, kernel, filters = _size(draw, 1, 32), draw.choice((1, 3)), _size(draw, 16, 512, 16)
    x = torch.randn(batch, channels, side, side, dtype=dtype, device=device)
    weight = torch.randn(filters, channels, kernel, kernel, dtype=dtype, device=device)
    padding = kernel // 2
    last = (x.to(memory_format=torch.channels_last), weight.to(memory_format=torch.channels_last))
    engines = [f"eng{number}" for number in sorted(draw.sample(range(64), 20))]
    for layout, arguments, policies in (
        ("nchw", (x, weight), ["heuristic"]),
        ("nhwc", last, ["heuristic", *engines]),  # cuDNN has some of the engines
    ):
        for policy in policies:
            yield Candidate(
                ops.conv2d,
                *arguments,
                kwargs={"padding": padding, "policy": policy},
                name=f"{layout}, {policy}",
            )
    yield Candidate(_by_matmul, x, weight, padding, name="matmul")


def _by_matmul(x: torch.Tensor, weight: torch.Tensor, padding: int) -> torch.Tensor:
    columns = F.unfold(x, weight.shape[-1], padding=padding)
    return (weight.flatten(1) @ columns).view(len(x), len(weight), *x.shape[2:])


def _reduction(draw: random.Random, device: torch.device) -> Iterator[Candidate]:
    x = torch.randn(_size(draw, 512, 16384), _size(draw, 64, 4096), device=device)
    ones = torch.ones(len(x), device=device)
    ways: dict[str, Callable[..., torch.Tensor]] = {
        "sum": lambda x, _: x.sum(0),
        "matmul": lambda x, ones: ones @ x,
        "einsum": lambda x, _: torch.einsum("ij->j", x),
        "mean": lambda x, _: x.mean(0) * len(x),
        "transposed": lambda x, ones: x.T @ ones,
        "in two": lambda x, _: x[: len(x) // 64 * 64].unflatten(0, (64, -1)).sum(1).sum(0),
        "norm": lambda x, _: torch.linalg.vector_norm(x, 1, 0),
    }
    for name, way in ways.items():
        yield Candidate(way, x, ones, name=name)


def _attention(draw: random.Random, device: torch.device) -> Iterator[Candidate]:
    shape = (_size(draw, 1, 8), _size(draw, 4, 32, 4), _size(draw, 128, 2048, 64), 64)
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device=device) for _ in range(3))
    for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
        yield Candidate(_attend, q, k, v, getattr(SDPBackend, name), name=name)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: Any) -> torch.Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v)


# What makes the candidates of a kind, and how many problems there are of it
_KINDS: dict[str, tuple[Make, int]] = {
    "matmul": (_matmul, 5),
    "softmax": (_softmax, 4),
    "scale": (_scale, 3),
    "row sums": (_row_sums, 3),
    "algorithms": (_algorithms, 5),
    "convolution": (_convolution, 4),
    "reduction": (_reduction, 3),
    "attention": (_attention, 3),
}
