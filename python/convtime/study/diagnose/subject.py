"""What is diagnosed, and how it is called and timed."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from convtime.results.measurement import Measurement
from convtime.timing.candidate import Candidate, backward_of, clearing_gradients
from convtime.timing.options import Options
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

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The plain tensors in its arguments."""
        found = pytree.tree_leaves((self.candidate.args, dict(self.candidate.kwargs)))
        return [leaf for leaf in found if isinstance(leaf, torch.Tensor) and is_plain(leaf)]

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
        """The operation on other tensors in its arguments; one in two places is changed once."""
        change_once = functools.cache(change)
        candidate = self.candidate

        def changed(value: Any) -> Any:
            plain = isinstance(value, torch.Tensor) and is_plain(value)
            return change_once(value) if plain else value

        return candidate.but(
            name=name,
            args=pytree.tree_map(changed, candidate.args),
            kwargs=pytree.tree_map(changed, dict(candidate.kwargs)),
        )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be copied by its sizes and strides, and takes part in no graph."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.grad_fn is None
        and tensor.numel() > 0
        and not (tensor.is_quantized or tensor.is_meta or tensor.is_conj() or tensor.is_neg())
    )


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """A copy at another address, in the same layout; the tensor itself where it overlaps itself."""
    sizes = zip(tensor.size(), tensor.stride(), strict=True)
    if any(size > 1 and stride == 0 for size, stride in sizes):
        return tensor
    return filled(tensor, lambda made: made.copy_(tensor.detach()))


def filled(tensor: torch.Tensor, fill: Callable[[torch.Tensor], object]) -> torch.Tensor:
    """A tensor of the same layout with other numbers, which asks for gradients like the given."""
    made = torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    with torch.no_grad():
        fill(made)
    return made.requires_grad_(tensor.requires_grad)


def seconds_of(action: Callable[[], object]) -> float:
    """What it takes by the host's clock."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin
