"""The diagnosed operation: how it is called and timed, on other tensors, and as in a program."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from convtime.core.load import _C
from convtime.diagnosis.evidence import Calls, Evidence, Timing
from convtime.timing.candidate import (
    DEFERRED_TYPES,
    Candidate,
    backward_of,
    clearing_gradients,
    refuse_deferred_result,
)
from convtime.timing.measurement import Measurement
from convtime.timing.options import Options
from convtime.timing.sampling.copying import Original
from convtime.timing.sampling.measure import measure, on
from convtime.timing.sampling.placement import ALIGNMENT, LARGE_PAGE, MOST_OBJECTS, obstacle

#: Seconds for each timing.
BUDGET = 0.15
_WARMUP_SECONDS = 0.03
_FEWEST_SAMPLES = 10


@dataclasses.dataclass(frozen=True)
class Operation:
    """A diagnosed operation.

    Attributes:
        candidate: the operation.
        device: the device of its work.
        again: command that times it in a fresh process and prints a Measurement as JSON; empty if
            there is none.
        options: the requested metric, stream and turns.
    """

    candidate: Candidate
    device: torch.device
    again: Sequence[str] = ()
    options: Options = dataclasses.field(default_factory=Options)

    @property
    def on_gpu(self) -> bool:
        """Whether its work runs on a GPU."""
        return self.device.type == "cuda"

    @functools.cached_property
    def original(self) -> Original:
        """Tensors on the device in arguments, in the module, or in variables of the function."""
        return Original(self.candidate, self.device, MOST_OBJECTS)

    @functools.cached_property
    def obstacle(self) -> str:
        """Why its tensors cannot be replaced; empty if they can."""
        return obstacle(self.original, backward=self.candidate.backward, any_address=True)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The replaceable tensors."""
        return [each for each in self.original.tensors if each.numel()]

    @functools.cached_property
    def _called(self) -> Candidate:
        cleared = clearing_gradients(self.candidate)
        return backward_of(cleared) if cleared.backward else cleared

    def prepare(self) -> None:
        """Run the work before each call."""
        if self._called.before is not None:
            self._called.before()

    def call(self) -> object:
        """Call the operation once, without the work before it."""
        return self._called.fn(*self._called.args, **self._called.kwargs)

    def on_device(self) -> AbstractContextManager[None]:
        """Make its device and its stream current."""
        return on(self.device, self.options.stream if self.on_gpu else None)

    def wait(self) -> None:
        """Wait for its device."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def time(self, candidate: Candidate | None = None, **options: Any) -> Measurement:
        """Time the operation or another candidate briefly, in the GPU's current state."""
        return self.time_all([candidate or self.candidate], **options)[0]

    def timing(self, candidate: Candidate | None = None, **options: Any) -> Timing:
        """Return the times that :meth:`time` measures."""
        return Timing.of(self.time(candidate, **options))

    def time_all(self, candidates: Sequence[Candidate], **options: Any) -> list[Measurement]:
        """Time several candidates interleaved."""
        usual: dict[str, Any] = {
            "device": self.device,
            "stream": self.options.stream if self.on_gpu else None,
            "exclusive": self.options.exclusive,
            "regime": "as-is",
            "placement": "as-is",
            "warmup": _WARMUP_SECONDS,
            "min_samples": _FEWEST_SAMPLES,
            "stop": "budget",
            "budget": BUDGET * len(candidates),
        }
        if self.on_gpu and options.get("method", "auto") in ("auto", "kernel"):
            usual["metric"] = self.options.metric  # other methods have only the elapsed time
        return measure(candidates, Options(**{**usual, **options}))

    def with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor], name: str) -> Candidate:
        """Return the operation on other tensors; ``change`` returns a tensor's replacement."""
        return self.original.with_tensors(change).but(name=name)


def copies_in_other_memory(operation: Operation, evidence: Evidence) -> str:  # noqa: ARG001
    """Return why copies of its tensors would be in another kind of memory; empty if not."""
    if evidence.work.mapped_bytes:
        return "its tensors are in the host's memory, but copies would be in the GPU's memory"
    return ""


def copy_elsewhere(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy at a random address, with the same layout.

    The allocator itself offers little variety: it places some sizes only at multiples of 2 MiB.
    """
    offset = random.randrange(LARGE_PAGE // ALIGNMENT) * ALIGNMENT  # noqa: S311  # no secret
    return new_like(
        tensor, lambda new: new.copy_(tensor.detach()), offset=offset // tensor.itemsize
    )


def new_like(
    tensor: torch.Tensor, fill: Callable[[torch.Tensor], object], offset: int = 0
) -> torch.Tensor:
    """Return a tensor with the same layout and new values; the tensor itself if elements overlap.

    Args:
        tensor: tensor whose layout is used.
        fill: function that fills the new tensor.
        offset: offset from the start of the allocation, in elements.
    """
    sizes = list(zip(tensor.size(), tensor.stride(), strict=True))
    if any(size > 1 and stride == 0 for size, stride in sizes):
        return tensor
    numbers = 1 + sum((size - 1) * stride for size, stride in sizes) if tensor.numel() else 0
    room = torch.empty(offset + numbers, dtype=tensor.dtype, device=tensor.device)
    new = room.as_strided(tensor.size(), tensor.stride(), offset)
    fill(new)
    return new


def seconds_of(action: Callable[[], object]) -> float:
    """Return the duration of an action on the host's clock, in seconds."""
    begin = perf_counter()
    action()
    return perf_counter() - begin


_FIRST_CALLS = 3
_BLOCKS = 10
_BLOCK_SECONDS = 0.02
_MOST_CALLS = 2000  # per block
_ISSUED = 7


def look_at_calls(operation: Operation) -> Calls:
    """Call the operation as a program would. Its exceptions propagate."""
    if operation.on_gpu:
        torch.empty(1, device=operation.device).fill_(0)  # initialize CUDA
    first = tuple(_call_and_wait(operation) for _ in range(_FIRST_CALLS))
    count = max(1, min(_MOST_CALLS, int(_BLOCK_SECONDS / max(min(first), 1e-7))))
    blocks = _BLOCKS if min(first) * count < 10 * _BLOCK_SECONDS else 3
    waiting = [_call_and_wait(operation) for _ in range(min(count * blocks, 30))]
    # Some calls may take far longer, e.g. if other threads hold the interpreter's lock.
    count = max(1, min(count, int(_BLOCK_SECONDS / statistics.fmean(waiting))))
    issuing = [_issue(operation) for _ in range(min(count * blocks, _ISSUED))]
    before, awake, begin = _blocks(operation), _awake_seconds(), perf_counter()
    loop = [_loop(operation, count) for _ in range(blocks)]
    seconds, awake = perf_counter() - begin, _awake_seconds() - awake
    after, calls = _blocks(operation), count * blocks
    return Calls(
        first=first,
        loop=_timing(loop),
        waiting=_timing(waiting),
        issuing=statistics.median(issuing),
        mean=statistics.fmean(loop),
        fewest=min(loop),
        running=awake / seconds,
        allocations=(after[0] - before[0]) / calls,
        frees=(after[1] - before[1]) / calls,
    )


def _awake_seconds() -> float:
    """Return the total time that this process's threads ran or waited for a CPU."""
    nanoseconds = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has just ended
            ran, waited, _ = map(int, (task / "schedstat").read_text().split())
            nanoseconds += ran + waited
    return 1e-9 * nanoseconds


def _call_and_wait(operation: Operation) -> float:
    operation.prepare()
    operation.wait()
    begin = perf_counter()
    result = operation.call()
    if type(result) in DEFERRED_TYPES:
        refuse_deferred_result(result, operation.candidate.name)
    del result  # part of the measured time, as in a loop
    operation.wait()
    return perf_counter() - begin


def _issue(operation: Operation) -> float:
    operation.prepare()
    operation.wait()
    return seconds_of(operation.call)


def _loop(operation: Operation, count: int) -> float:
    if operation.candidate.acts_before_calls:  # excluded from the call's time
        return statistics.fmean(_call_and_wait(operation) for _ in range(count))
    operation.wait()
    begin = perf_counter()
    for _ in range(count):
        operation.call()
    operation.wait()
    return (perf_counter() - begin) / count


def _blocks(operation: Operation) -> tuple[int, int]:
    """Return the number of blocks that PyTorch's allocator requested from and returned to CUDA."""
    if not operation.on_gpu:
        return 0, 0
    stats = torch.cuda.memory_stats(operation.device)
    allocated, freed = (stats.get(f"segment.all.{what}", 0) for what in ("allocated", "freed"))
    return int(allocated), int(freed)


def _timing(samples: list[float]) -> Timing:
    low, high, _, _ = _C.median_interval(samples, (), (), 0.0, 0.0)
    median = statistics.median(samples)
    spread = _C.quantile(samples, 0.75) - _C.quantile(samples, 0.25)
    known = low > 0 and high < float("inf")
    return Timing(
        median=median,
        low=low if known else None,
        high=high if known else None,
        spread=spread / median if median > 0 else 0.0,
        count=len(samples),
    )
