"""Find unusual values in the inputs of calls, which change times and clocks."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
from collections.abc import Iterable, Iterator, Sequence

import torch

from convtime.core.errors import first_line
from convtime.timing.candidate import Candidate
from convtime.timing.sampling.object_graph import (
    Walk,
    is_plain,
    parts_of,
    tensors_by_variable,
    without_modes,
)

_MOST_OBJECTS = 500  # searched for a candidate's tensors, within a millisecond
_MOST_TENSORS = 8  # the largest ones of each candidate
_MOST_ELEMENTS = 1024  # of each tensor
_SMALL_VECTOR = 1 / 16  # of the largest tensor: biases and scales, which are often constant
_HEAVY = 0.01  # share of the elements

_INTEGERS = (
    torch.bool,
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
)
_WIDE_FLOATS = (torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
_FLOATS = (
    *_WIDE_FLOATS,
    *(torch.float16, torch.complex32),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
)


@dataclasses.dataclass(frozen=True)
class Remark:
    """A remark on a tensor of a candidate.

    Attributes:
        sentence: the remark; empty if the values are not unusual.
        tensor: the tensor; None if the sentence is not about a tensor.
        seen: bytes of the elements that were inspected.
        shape: the tensor's shape before the calls.
        candidate: the candidate that uses the tensor.
        on_gpu: whether the work runs on a GPU.
    """

    sentence: str
    tensor: torch.Tensor | None
    seen: torch.Tensor
    shape: tuple[int, ...] = ()
    candidate: Candidate | None = None
    on_gpu: bool = False

    def after(self, now: torch.Tensor) -> str:
        """Return the remark that applies after the calls.

        Tensors that calls overwrite are not inputs, unless the new values are unusual: later calls
        then used them.

        Args:
            now: the current bytes, like ``seen``.
        """
        if self.tensor is None or self.candidate is None:
            return self.sentence
        shape = tuple(self.tensor.shape)
        if shape != self.shape:
            return (
                f"{_name(self.tensor, self.candidate)} had the shape {self.shape} and has "
                f"{shape} since a call changed it: later calls did other work than the first"
            )
        if torch.equal(now, self.seen):
            return self.sentence
        if self.sentence:
            return ""
        unusual = _unusual(_numbers_of(self.tensor, now), self.tensor.dtype, on_gpu=self.on_gpu)
        if unusual is None:
            return ""
        name = _name(self.tensor, self.candidate)
        return f"{name} is {unusual[0]} since a call wrote to it: {unusual[1]}"


@without_modes()
@torch.no_grad()
def remarks_on(
    candidates: Sequence[Candidate], tensors: Sequence[Sequence[torch.Tensor]], *, on_gpu: bool
) -> list[list[Remark]]:
    """Inspect some elements of each candidate's inputs; waits for the current streams.

    Args:
        candidates: candidates that have not been called yet.
        tensors: tensors that each of them uses.
        on_gpu: whether the work runs on a GPU.
    """
    try:
        chosen = [*map(_largest_inputs, candidates, tensors)]
        seen = _bytes_of_some(tensor for tensors in chosen for tensor in tensors)
        return [
            list(_remarks(candidate, tensors, seen, on_gpu=on_gpu))
            for candidate, tensors in zip(candidates, chosen, strict=True)
        ]
    except RuntimeError as error:  # a full GPU, or a tensor of torch.vmap
        failure = Remark(
            f"the inputs could not be inspected: {first_line(error)}", None, torch.empty(0)
        )
        return [[failure] for _ in candidates]


@without_modes()
@torch.no_grad()
def sentences(remarks: Iterable[Sequence[Remark]]) -> list[tuple[str, ...]]:
    """Return the remarks on each candidate's inputs after its calls; as :func:`remarks_on`."""
    return [tuple(filter(None, _after_calls(each))) for each in remarks]


def _after_calls(remarks: Sequence[Remark]) -> Iterator[str]:
    now: dict[int, torch.Tensor] = {}
    # If the calls filled the GPU, keep the remarks from before them.
    with contextlib.suppress(RuntimeError):
        now = _bytes_of_some(remark.tensor for remark in remarks if remark.tensor is not None)
    for remark in remarks:
        yield remark.after(now.get(id(remark.tensor), remark.seen))


def _largest_inputs(candidate: Candidate, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    inspectable = [
        tensor
        for tensor in tensors
        if tensor is not candidate.kwargs.get("out")
        and is_plain(tensor)
        and _can_be_inspected(tensor)
    ]
    largest = heapq.nlargest(_MOST_TENSORS, inspectable, key=torch.Tensor.numel)
    return [
        tensor
        for tensor in largest
        if tensor.dim() > 1 or tensor.numel() >= _SMALL_VECTOR * largest[0].numel()
    ]


def _can_be_inspected(tensor: torch.Tensor) -> bool:
    """Whether it has several elements of a known dtype, in memory that can be read."""
    return (
        tensor.device.type in ("cpu", "cuda")
        and tensor.numel() > 1
        and (tensor.dtype in _FLOATS or tensor.dtype in _INTEGERS)
        and not (tensor.is_conj() or tensor.is_neg())
        and _has_elements(tensor)
        and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _has_elements(tensor: torch.Tensor) -> bool:
    """Whether its storage is as large as its shape needs: sharded modules free unused storages."""
    if not tensor.numel():
        return False
    dimensions = zip(tensor.size(), tensor.stride(), strict=True)
    end = tensor.storage_offset() + 1 + sum((size - 1) * stride for size, stride in dimensions)
    return bool(end * tensor.itemsize <= tensor.untyped_storage().nbytes())


def _bytes_of_some(tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Elements of each tensor as bytes on the host, by the tensor's id; one copy per device."""
    by_device: dict[torch.device, dict[int, torch.Tensor]] = {}
    for tensor in filter(_has_elements, tensors):
        by_device.setdefault(tensor.device, {})[id(tensor)] = _some_of(tensor).view(torch.uint8)
    return {
        key: part
        for parts in by_device.values()
        for key, part in zip(parts, _on_host(list(parts.values())), strict=True)
    }


def _on_host(parts: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    return torch.split_with_sizes(torch.cat(parts).cpu(), [part.numel() for part in parts])


def _some_of(tensor: torch.Tensor) -> torch.Tensor:
    """Elements on a grid over the whole tensor, in one dimension.

    The grid's steps are odd, so that it samples all phases of a pattern that repeats every 2, 4 or
    128 elements.
    """
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    left = _MOST_ELEMENTS
    grid = [slice(None)] * tensor.dim()
    smallest_first = sorted(range(tensor.dim()), key=tensor.size)
    for done, dimension in enumerate(smallest_first):
        size = tensor.size(dimension)
        count = min(size, max(1, int(left ** (1 / (tensor.dim() - done)))))
        left //= count
        grid[dimension] = slice(None, None, -(-size // count) | 1)
    return tensor[tuple(grid)].contiguous().view(-1)


def _remarks(
    candidate: Candidate,
    tensors: Iterable[torch.Tensor],
    seen: dict[int, torch.Tensor],
    *,
    on_gpu: bool,
) -> Iterator[Remark]:
    for tensor in tensors:
        some = seen[id(tensor)]
        numbers = _numbers_of(tensor, some)
        unusual = _unusual(numbers, tensor.dtype, on_gpu=on_gpu)
        sentence = ""
        if unusual:
            what, consequence = unusual
            if numbers.numel() < tensor.numel():
                what += f" in the {numbers.numel():,} elements looked at"
            sentence = f"{_name(tensor, candidate)} is {what}: {consequence}"
        yield Remark(sentence, tensor, some, tuple(tensor.shape), candidate, on_gpu)


def _numbers_of(tensor: torch.Tensor, some: torch.Tensor) -> torch.Tensor:
    """Return the elements that these bytes of a tensor contain."""
    kind = tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype
    return some.clone().view(kind).double()  # cloned, because a part may begin at any byte


def _unusual(numbers: torch.Tensor, dtype: torch.dtype, *, on_gpu: bool) -> tuple[str, str] | None:
    """Return a description of unusual values and their consequence, or None."""
    values = torch.view_as_complex(numbers.view(-1, 2)) if dtype.is_complex else numbers
    if bool((values == values[0]).all()):
        return _constant(values[0].item(), dtype, on_gpu=on_gpu)
    share = float(values.isnan().double().mean())
    if share >= _HEAVY:
        return (
            f"{share:.0%} NaN",
            "results computed from it are NaN too, and may take a different time than with numbers",
        )
    if dtype in _WIDE_FLOATS:
        magnitudes = numbers.abs()
        denormal = (magnitudes > 0) & (magnitudes < torch.finfo(dtype).tiny)
        share = float(denormal.double().mean())
        if share >= _HEAVY:
            return f"{share:.0%} denormal", (
                "kernels that flush denormals compute with zeros instead"
                if on_gpu
                else "a CPU is many times slower on denormals, unless it flushes them to zero"
            )
    return None


def _constant(value: complex, dtype: torch.dtype, *, on_gpu: bool) -> tuple[str, str]:
    if dtype == torch.bool:
        chosen = "everything" if value else "nothing"
        return f"all {bool(value)}", f"as a mask, it selects {chosen}"
    what = f"{value:g} throughout" if value else "all zeros"
    if dtype in _INTEGERS:
        return what, "as indices, equal values read the same data, which are then in the cache"
    if on_gpu:
        return what, (
            "such numbers take less power than random ones, so that under load a GPU's clock stays "
            "higher"
        )
    return what, "work that depends on its values may take a different time with random ones"


def _name(tensor: torch.Tensor, candidate: Candidate) -> str:
    """Return the name by which the caller knows a tensor."""
    roots = parts_of(candidate)
    for name, root in roots.items():
        if root is tensor:
            return name
    for name, root in roots.items():
        if any(each is tensor for each in Walk(_MOST_OBJECTS).below([root])):
            return f"a tensor in {name}"
    for name, each in tensors_by_variable(roots):
        if each is tensor:
            return f"a tensor in {name}"
    return "a tensor that the call uses"
