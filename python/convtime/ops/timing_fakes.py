"""What torch.compile needs to know of the ops that tests of timers need."""

from __future__ import annotations

import torch

from convtime.core.load import _C as _C  # registers the ops

_COPY_BLOCK_BYTES = 32_768  # that a block of copy_stamped copies


@torch.library.register_fake("convtime::spin_ns")  # type: ignore[untyped-decorator]
def _spin_ns_fake(nanoseconds: int, blocks: int = 1, threads: int = 1) -> torch.Tensor:  # noqa: ARG001
    return torch.empty((blocks, 2), dtype=torch.int64, device="cuda")


@torch.library.register_fake("convtime::sleep_cycles")  # type: ignore[untyped-decorator]
def _sleep_cycles_fake(cycles: int) -> None:
    pass


@torch.library.register_fake("convtime::flush_l2")  # type: ignore[untyped-decorator]
def _flush_l2_fake() -> None:
    pass


@torch.library.register_fake("convtime::read_clocks")  # type: ignore[untyped-decorator]
def _read_clocks_fake() -> torch.Tensor:
    return torch.empty(3, dtype=torch.int64, device="cuda")


@torch.library.register_fake("convtime::copy_stamped")  # type: ignore[untyped-decorator]
def _copy_stamped_fake(input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = -(-input.nbytes // _COPY_BLOCK_BYTES)
    return torch.empty_like(input), input.new_empty((blocks, 2), dtype=torch.int64)
