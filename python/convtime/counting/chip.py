"""Counters that a GPU of this process supports, as reported by CUPTI."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence

import torch

from convtime.core.load import _C
from convtime.core.provenance import gpu_uuid
from convtime.counting.kernel_counters import CountersUnavailable
from convtime.counting.refusals import explain


@contextlib.contextmanager
def telling_refusals(device: torch.device) -> Iterator[None]:
    """Explain CUPTI's refusals in a sentence.

    Raises:
        CountersUnavailable: if counters are unavailable in the current state of the machine.
        RuntimeError: for another failure of CUPTI.
    """
    try:
        yield
    except _C.CuptiError as error:
        result, text = error.args
        reason = explain(result, text, str(device))
        if reason is not None:
            raise CountersUnavailable(reason) from error
        raise RuntimeError(f"hardware counters of {device} could not be read: {text}") from error


class GpuChip:
    """The chip of a GPU. It queries each name only once, because CUPTI is slow to start."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._uuid = gpu_uuid(device)

    @property
    def name(self) -> str:
        return str(self._device)

    def metrics(self) -> Sequence[str]:
        return _metrics(self._uuid, self._device)

    def describe(self, names: Sequence[str]) -> Sequence[tuple[str, str, str] | None]:
        known = _descriptions(self._uuid)
        if unknown := [name for name in names if name not in known]:
            with telling_refusals(self._device), torch.cuda.device(self._device):
                known.update(zip(unknown, _C.describe_metrics(unknown), strict=True))
        return [known[name] for name in names]


@functools.cache
def _metrics(_uuid: str, device: torch.device) -> tuple[str, ...]:
    with telling_refusals(device), torch.cuda.device(device):
        return tuple(_C.metric_names())


@functools.cache
def _descriptions(_uuid: str) -> dict[str, tuple[str, str, str] | None]:
    """Cache of the descriptions that were queried; callers extend it."""
    return {}
