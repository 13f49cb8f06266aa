"""Families of candidates over an axis, for a GPU and for the CPU.

A factory takes the axis's value and returns the call. Sizes are larger on a GPU, where smaller ones
take as long as nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from convtime import Candidate

_FLAT_NS, _NS_EACH = 20_000, 2_000  # spins that take equally long at 10


@dataclasses.dataclass(frozen=True)
class Family:
    """Candidates of one kind: their factories take a parameter of the axis's name and values."""

    axis: str
    values: Sequence[int]
    candidates: Mapping[str, Callable[..., Candidate]]


def make_families(device: torch.device) -> dict[str, Family]:
    gpu = device.type == "cuda"
    on = functools.partial(_on, device)
    widths = (512, 1024, 2048, 4096, 8192, 16384) if gpu else (32, 64, 128, 256, 512, 1024)
    sides = (256, 384, 512, 1024, 2048, 3072) if gpu else (32, 64, 96, 128, 192, 256)
    batches = (1, 2, 4, 8, 16, 32) if gpu else (1, 2, 3, 4, 6, 8)
    lengths = (64, 128, 256, 512, 1024, 2048) if gpu else (16, 32, 64, 128, 192, 256)
    return {
        "known durations": _known_durations(gpu=gpu),
        "softmax": Family(
            "width",
            widths,
            {
                "softmax": on(_rows, lambda x: torch.softmax(x, 1)),
                "exp of log_softmax": on(_rows, lambda x: torch.log_softmax(x, 1).exp()),
                "by hand": on(_rows, _softmax_by_hand),
            },
        ),
        "product": Family(
            "side",
            sides,
            {
                "mm": on(_square, lambda x: x @ x),
                "einsum": on(_square, lambda x: torch.einsum("ij,jk->ik", x, x)),
                "in halves": on(_square, _product_in_halves),
            },
        ),
        "row sums": Family(
            "width",
            widths,
            {
                "sum": on(_rows, lambda x: x.sum(1)),
                "mean": on(_rows, lambda x: x.mean(1)),
                "norm": on(_rows, lambda x: torch.linalg.vector_norm(x, 1, 1)),
                "copy first": on(_rows, lambda x: x.clone().sum(1)),
            },
        ),
        "gelu": Family(
            "width",
            widths,
            {
                "gelu": on(_rows, F.gelu),
                "tanh": on(_rows, lambda x: F.gelu(x, approximate="tanh")),
                "by hand": on(_rows, lambda x: x * 0.5 * (1 + torch.erf(x * 0.7071067811865476))),
            },
        ),
        "layout": Family(
            "batch",
            batches,
            {
                "contiguous": on(_convolution, torch.contiguous_format),
                "channels last": on(_convolution, torch.channels_last),
            },
        ),
        "attention": Family(
            "length",
            lengths,
            {
                "math": on(_attention, SDPBackend.MATH),
                "flash": on(_attention, SDPBackend.FLASH_ATTENTION),
                **({"efficient": on(_attention, SDPBackend.EFFICIENT_ATTENTION)} if gpu else {}),
            },
        ),
    }


def _known_durations(*, gpu: bool) -> Family:
    """Return calls whose order is known from what they are: on a GPU, they spin for so long."""
    values = (2, 5, 10, 15, 20, 40)
    if gpu:
        spin: Any = torch.ops.convtime.spin_ns
        return Family(
            "times",
            values,
            {
                "flat": lambda **_: Candidate(spin, _FLAT_NS),
                "twin": lambda **_: Candidate(spin, _FLAT_NS),
                "rising": lambda times: Candidate(spin, _NS_EACH * times),
            },
        )
    x = torch.randn(4096)
    return Family(
        "times",
        values,
        {
            "flat": lambda **_: Candidate(_repeat, x, 10),
            "twin": lambda **_: Candidate(_repeat, x, 10),
            "rising": lambda times: Candidate(_repeat, x, times),
        },
    )


def _repeat(x: torch.Tensor, count: int) -> None:
    for _ in range(count):
        torch.exp(x)


def _on(
    device: torch.device, make: Callable[..., Callable[..., Candidate]], *arguments: Any
) -> Callable[..., Candidate]:
    return make(device, *arguments)


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
