"""The rate at which a GPU takes the larger of two values: a bound of pooling by large windows."""

# mypy: ignore-errors
# Triton has no types, and its compiler reads the annotations of a kernel's parameters.
# ruff: noqa: N803  # its constants have capital names

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

import convtime

# Enough for every multiprocessor, and so many comparisons that loads and stores take no time.
_BLOCKS, _BLOCK, _ROUNDS = 2048, 2048, 256
_UNROLLED = tl.constexpr(16)


@triton.jit
def compare_in_registers(x, y, ROUNDS: tl.constexpr, BLOCK: tl.constexpr, IN_PAIRS: tl.constexpr):
    """The instructions are written out, and have a side effect: or they would be optimized away."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at)
    others = tl.load(x + at + BLOCK)
    for _ in range(ROUNDS):
        for _ in tl.static_range(_UNROLLED):
            if IN_PAIRS:
                values = tl.inline_asm_elementwise(
                    "max.NaN.f16x2 $0, $1, $2;",
                    "=r,r,r",
                    [values, others],
                    dtype=tl.float16,
                    is_pure=False,
                    pack=2,
                )
            else:
                values = tl.inline_asm_elementwise(
                    "max.NaN.f32 $0, $1, $2;",
                    "=r,r,r",
                    [values, others],
                    dtype=tl.float32,
                    is_pure=False,
                    pack=1,
                )
    tl.store(y + at, values)


@functools.cache
def comparisons_per_second(dtype: torch.dtype, device: torch.device) -> float:
    """Of two values of a dtype, float16 or float32, as often as all multiprocessors can."""
    x = torch.randn((_BLOCKS + 1) * _BLOCK, dtype=dtype, device=device)
    y = torch.empty(_BLOCKS * _BLOCK, dtype=dtype, device=device)

    def call() -> None:
        compare_in_registers[(_BLOCKS,)](
            x, y, ROUNDS=_ROUNDS, BLOCK=_BLOCK, IN_PAIRS=dtype == torch.float16, num_warps=4
        )

    measured = convtime.time_op(call, method="kernel", regime="as-is", budget=0.1)
    return y.numel() * _ROUNDS * _UNROLLED.value / measured.median
