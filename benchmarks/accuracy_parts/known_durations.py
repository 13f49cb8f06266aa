"""Kernels of known duration: that spin for so long, or stamp their own start and end."""

from __future__ import annotations

import functools
from collections.abc import Callable

import results
import torch
from common.running import Measure
from common.truth import median_of_stamps

from accuracy_parts.passes import PASSES, MethodPasses
from accuracy_parts.rows import STAMPED_REFERENCE_NS
from convtime.timing.options import Cache

# Whole ticks of 32 ns, since that is what a kernel spins for.
SPINS_NS = (1_024, 2_016, 4_992, 9_984, 100_000, 1_000_000)
STAMPED_BLOCKS = (1, 132, 528)
STAMPED_MIB = (1, 16, 256)
ONE_WAVE_MIB = 16  # of a copy whose blocks all fit on the device at a time
COPY_GRID = (32_768, 256)  # bytes of a block of copy_stamped, and its threads


def measure_spin(asked_ns: int) -> results.Row:
    passes = MethodPasses(lambda: torch.ops.convtime.spin_ns(asked_ns), "kernel", "warm", 50)
    for _ in range(PASSES):
        passes.take()
    return {"asked_ns": asked_ns, "kernel": passes.row()}


def measure_stamped(
    call: Callable[[], torch.Tensor],
    cache: Cache,
    grid: tuple[int, int],
    reference_grid: tuple[int, int],
    asked_ns: int | None,
) -> results.Row:
    """By turns the traced kernel time, and the stamps of the same calls untraced."""
    passes = MethodPasses(call, "kernel", cache, 50)
    stamps = []
    for _ in range(PASSES):
        passes.take()
        stamps.append(median_of_stamps(call, 50, cold=cache == "cold"))
    return {
        "cache": cache,
        "grid": list(grid),
        "reference_grid": list(reference_grid),
        "asked_ns": asked_ns,
        "kernel": passes.row(),
        "stamps": stamps,
    }


def stamped_cases(device: torch.device) -> dict[str, Measure]:
    def spin(grid: tuple[int, int], asked_ns: int) -> results.Row:
        call: Callable[[], torch.Tensor] = functools.partial(
            torch.ops.convtime.spin_ns, asked_ns, *grid
        )
        return measure_stamped(call, "warm", grid, grid, asked_ns)

    def copy(mib: int) -> results.Row:
        source = torch.randn(mib << 18, device=device)
        return measure_stamped(
            lambda: torch.ops.convtime.copy_stamped(source)[1],
            "cold",
            copy_grid(mib),
            copy_grid(min(mib, ONE_WAVE_MIB)),
            None,
        )

    def copy_grid(mib: int) -> tuple[int, int]:
        return (mib << 20) // COPY_GRID[0], COPY_GRID[1]

    spun = [(blocks, 1) for blocks in STAMPED_BLOCKS]
    cases: dict[str, Measure] = {}
    for grid in (*spun, copy_grid(1), copy_grid(ONE_WAVE_MIB)):
        for asked_ns in (STAMPED_REFERENCE_NS, *((4_992, 100_000) if grid in spun else ())):
            key = f"stamped/spin {asked_ns} ns, {grid[0]} x {grid[1]}"
            cases[key] = functools.partial(spin, grid, asked_ns)
    for mib in STAMPED_MIB:
        cases[f"stamped/copy {mib} MiB"] = functools.partial(copy, mib)
    return cases
