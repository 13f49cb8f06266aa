"""Families of candidates over an axis, for a GPU and for the CPU.

A factory takes the axis's value and returns the call. Sizes are larger on a GPU, where smaller ones
take as long as nothing.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from convtime import Candidate

_NS_EACH = 2_000  # of a spin
_FLAT_TIMES = 10


@dataclasses.dataclass(frozen=True)
class Family:
    """Candidates of one kind: their factories take a parameter of the axis's name and values."""

    axis: str
    values: Sequence[int]
    candidates: Mapping[str, Callable[..., Candidate]]


def make_families(device: torch.device) -> dict[str, Family]:
    gpu = device.type == "cuda"
    rows, square, convolution, attention = (
        functools.partial(make, device) for make in (_rows, _square, _convolution, _attention)
    )
    widths = (512, 1024, 2048, 4096, 8192, 16384) if gpu else (32, 64, 128, 256, 512, 1024)
    sides = (256, 384, 512, 1024, 2048, 3072) if gpu else (32, 64, 96, 128, 192, 256)
    batches = (1, 2, 4, 8, 16, 32) if gpu else (1, 2, 3, 4, 6, 8)
    lengths = (64, 128, 256, 512, 1024, 2048) if gpu else (16, 32, 64, 128, 192, 256)
    softmaxes = {
        "softmax": rows(lambda x: torch.softmax(x, 1)),
        "exp of log_softmax": rows(lambda x: torch.log_softmax(x, 1).exp()),
        "by hand": rows(_softmax_by_hand),
    }
    products = {
        "mm": square(lambda x: x @ x),
        "einsum": square(lambda x: torch.einsum("ij,jk->ik", x, x)),
        "in halves": square(_product_in_halves),
    }
    sums = {
        "sum": rows(lambda x: x.sum(1)),
        "mean": rows(lambda x: x.mean(1)),
        "norm": rows(lambda x: torch.linalg.vector_norm(x, 1, 1)),
        "copy first": rows(lambda x: x.clone().sum(1)),
    }
    gelus = {
        "gelu": rows(F.gelu),
        "tanh": rows(lambda x: F.gelu(x, approximate="tanh")),
        "by hand": rows(lambda x: x * 0.5 * (1 + torch.erf(x * 0.7071067811865476))),
    }
    layouts = {
        "contiguous": convolution(torch.contiguous_format),
        "channels last": convolution(torch.channels_last),
    }
    backends = {
        "math": attention(SDPBackend.MATH),
        "flash": attention(SDPBackend.FLASH_ATTENTION),
        **({"efficient": attention(SDPBackend.EFFICIENT_ATTENTION)} if gpu else {}),
    }
    return {
        "known durations": Family("times", (2, 5, 10, 15, 20, 40), _known_durations(gpu=gpu)),
        "softmax": Family("width", widths, softmaxes),
        "product": Family("side", sides, products),
        "row sums": Family("width", widths, sums),
        "gelu": Family("width", widths, gelus),
        "layout": Family("batch", batches, layouts),
        "attention": Family("length", lengths, backends),
    }


def _known_durations(*, gpu: bool) -> dict[str, Callable[..., Candidate]]:
    """Return calls whose order is known from what they are: on a GPU, they spin for so long."""
    x = torch.randn(4096)

    def call(times: int) -> Candidate:
        if gpu:
            return Candidate(torch.ops.convtime.spin_ns, _NS_EACH * times)
        return Candidate(_repeat, x, times)

    return {
        "flat": lambda **_: call(_FLAT_TIMES),
        "twin": lambda **_: call(_FLAT_TIMES),
        "rising": call,
    }


def _repeat(x: torch.Tensor, count: int) -> None:
    for _ in range(count):
        torch.exp(x)


def _rows(device: torch.device, fn: Callable[[torch.Tensor], object]) -> Callable[..., Candidate]:
    count = 4096 if device.type == "cuda" else 64
    return lambda width: Candidate(fn, torch.randn(count, width, device=device))


def _square(device: torch.device, fn: Callable[[torch.Tensor], object]) -> Callable[..., Candidate]:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return lambda side: Candidate(fn, torch.randn(side, side, device=device, dtype=dtype))


def _convolution(device: torch.device, layout: torch.memory_format) -> Callable[..., Candidate]:
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    channels, side = (64, 56) if device.type == "cuda" else (16, 14)

    def make(batch: int) -> Candidate:
        x = torch.randn(batch, channels, side, side, device=device, dtype=dtype)
        weight = torch.randn(channels, channels, 3, 3, device=device, dtype=dtype)
        tensors = (each.to(memory_format=layout) for each in (x, weight))
        return Candidate(F.conv2d, *tensors, kwargs={"padding": 1})

    return make


def _attention(device: torch.device, backend: SDPBackend) -> Callable[..., Candidate]:
    gpu = device.type == "cuda"
    dtype, heads = (torch.float16, 16) if gpu else (torch.float32, 2)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v)

    def make(length: int) -> Candidate:
        shape = (4 if gpu else 1, heads, length, 64)
        return Candidate(attend, *(torch.randn(shape, device=device, dtype=dtype) for _ in "qkv"))

    return make


def _softmax_by_hand(x: torch.Tensor) -> torch.Tensor:
    powers = torch.exp(x - x.amax(1, keepdim=True))
    return powers / powers.sum(1, keepdim=True)


def _product_in_halves(x: torch.Tensor) -> torch.Tensor:
    half = len(x) // 2
    return x[:, :half] @ x[:half] + x[:, half:] @ x[half:]
