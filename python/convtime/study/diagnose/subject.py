"""What is diagnosed, and how it is called and timed."""

from __future__ import annotations

import dataclasses
import functools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from convtime.results.evidence import Evidence
from convtime.results.measurement import Measurement
from convtime.timing.candidate import Candidate, backward_of, clearing_gradients
from convtime.timing.copying import Original
from convtime.timing.options import Options
from convtime.timing.placement import ALIGNMENT, LARGE_PAGE, MOST_OBJECTS, obstacle
from convtime.timing.sampling import Place, measure

#: Seconds for each timing.
BUDGET = 0.15
_WARMUP_SECONDS = 0.03
_FEWEST_SAMPLES = 10


@dataclasses.dataclass(frozen=True)
class Subject:
    """An operation that is diagnosed.

    Attributes:
        candidate: the operation.
        place: where its work runs.
        again: the command that times it in a fresh process, and prints a Measurement as JSON; empty
            where there is none.
    """

    candidate: Candidate
    place: Place
    again: Sequence[str] = ()

    @property
    def on_gpu(self) -> bool:
        """Whether its work runs on a GPU."""
        return self.place.on_gpu

    @functools.cached_property
    def original(self) -> Original:
        """Its tensors on the device, in arguments, module, or variables that its function reads."""
        return Original(self.candidate, self.place.device, MOST_OBJECTS)

    @functools.cached_property
    def obstacle(self) -> str:
        """Why its tensors cannot be others; empty where they can."""
        return obstacle(self.original, backward=self.candidate.backward, any_address=True)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Those that can be others."""
        return [each for each in self.original.tensors if each.numel()]

    @functools.cached_property
    def _called(self) -> Candidate:
        cleared = clearing_gradients(self.candidate)
        return backward_of(cleared) if cleared.backward else cleared

    def prepare(self) -> None:
        """Does what comes before each call."""
        if self._called.setup is not None:
            self._called.setup()

    def call(self) -> object:
        """Calls it once, without what comes before."""
        return self._called.fn(*self._called.args, **self._called.kwargs)

    def wait(self) -> None:
        """Waits for its device."""
        if self.on_gpu:
            torch.cuda.synchronize(self.place.device)

    def time(self, candidate: Candidate | None = None, **options: Any) -> Measurement:
        """Times it, or something like it, briefly, in the GPU's state as it is."""
        return self.time_all([candidate or self.candidate], **options)[0]

    def time_all(self, candidates: Sequence[Candidate], **options: Any) -> list[Measurement]:
        """Times several interleaved."""
        usual: dict[str, Any] = {
            "device": self.place.device,
            "regime": "as-is",
            "placement": "as-is",
            "warmup": _WARMUP_SECONDS,
            "min_samples": _FEWEST_SAMPLES,
            "stop": "budget",
            "budget": BUDGET * len(candidates),
        }
        return measure(candidates, Options(**{**usual, **options}))

    def with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor], name: str) -> Candidate:
        """The operation on other tensors; ``change`` gives what takes the place of one."""
        return self.original.with_tensors(change).but(name=name)


def copied_elsewhere(evidence: Evidence) -> str:
    """Why tensors like its own would lie in other memory; empty where they do not."""
    if evidence.work.mapped_bytes:
        return "its tensors lie in the host's memory, and copies of them would not"
    return ""


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """A copy at another address, which chance chooses, in the same layout.

    The allocator's own choices are much alike: some sizes lie at multiples of 2 MiB alone.
    """
    offset = random.randrange(LARGE_PAGE // ALIGNMENT) * ALIGNMENT  # noqa: S311  # no secret
    return filled(
        tensor, lambda made: made.copy_(tensor.detach()), offset=offset // tensor.itemsize
    )


def filled(
    tensor: torch.Tensor, fill: Callable[[torch.Tensor], object], offset: int = 0
) -> torch.Tensor:
    """A tensor of the same layout with other numbers; itself where parts of it overlap.

    Args:
        tensor: what it is like.
        fill: gives it its numbers.
        offset: numbers between the begin of its memory, where the allocator puts it, and its own.
    """
    sizes = list(zip(tensor.size(), tensor.stride(), strict=True))
    if any(size > 1 and stride == 0 for size, stride in sizes):
        return tensor
    numbers = 1 + sum((size - 1) * stride for size, stride in sizes) if tensor.numel() else 0
    room = torch.empty(offset + numbers, dtype=tensor.dtype, device=tensor.device)
    made = room.as_strided(tensor.size(), tensor.stride(), offset)
    fill(made)
    return made


def seconds_of(action: Callable[[], object]) -> float:
    """What it takes by the host's clock."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin
