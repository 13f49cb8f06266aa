"""Triton kernels, whose blocks, warps and stages a race chooses."""

# mypy: ignore-errors
# Triton has no types, and its compiler reads the annotations of a kernel's parameters.
# ruff: noqa: N803  # its constants have capital names

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n) + 1, mask=at < n)


def scale(x: torch.Tensor, block: int, warps: int) -> torch.Tensor:
    y = torch.empty_like(x)
    n = x.numel()
    _scale[(triton.cdiv(n, block),)](x, y, n, BLOCK=block, num_warps=warps)
    return y


@triton.jit
def _softmax(x, y, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < columns)
    at = row * columns + column
    values = tl.load(x + at, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=1)[:, None])
    tl.store(y + at, powers / tl.sum(powers, axis=1)[:, None], mask=inside)


def softmax(x: torch.Tensor, rows: int, warps: int) -> torch.Tensor:
    y = torch.empty_like(x)
    columns = x.shape[1]
    _softmax[(triton.cdiv(x.shape[0], rows),)](
        x, y, *x.shape, ROWS=rows, COLUMNS=triton.next_power_of_2(columns), num_warps=warps
    )
    return y


@triton.jit
def _row_sums(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        sums += tl.load(x + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
    tl.store(y + row, tl.sum(sums))


def row_sums(x: torch.Tensor, block: int, warps: int) -> torch.Tensor:
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    _row_sums[(x.shape[0],)](x, y, x.shape[1], BLOCK=block, num_warps=warps)
    return y


@triton.jit
def _matmul(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, k, K):
        inner = first + tl.arange(0, K)
        left = tl.load(
            a + row[:, None] * k + inner[None, :],
            mask=(row[:, None] < m) & (inner[None, :] < k),
            other=0.0,
        )
        right = tl.load(
            b + inner[:, None] * n + column[None, :],
            mask=(inner[:, None] < k) & (column[None, :] < n),
            other=0.0,
        )
        total += tl.dot(left, right)
    inside = (row[:, None] < m) & (column[None, :] < n)
    tl.store(c + row[:, None] * n + column[None, :], total.to(c.dtype.element_ty), mask=inside)


def matmul(
    a: torch.Tensor, b: torch.Tensor, tile: tuple[int, int, int], warps: int, stages: int
) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype, device=a.device)
    rows, columns, inner = tile
    grid = (triton.cdiv(m, rows), triton.cdiv(n, columns))
    _matmul[grid](a, b, c, m, n, k, M=rows, N=columns, K=inner, num_warps=warps, num_stages=stages)
    return c
