"""Compare results of calls that wait after each operation with results of unmodified calls.

If they differ, data is read before it is ready. Work that is launched outside PyTorch's dispatcher,
or replayed from a graph, is awaited as a whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from convtime.diagnosis.evidence import Evidence, Serialized
from convtime.diagnosis.operation import Operation
from convtime.timing.result_check import check_one_call_each

_HELD_SECONDS = 5e-3


#: Size and stream of a tensor that an operation created.
_Created = tuple[int, torch.cuda.Stream]


class _WaitingForEach(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, wait after each operation, and record the memory of its results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.created: list[_Created] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        torch.cuda.synchronize()
        given = {id(leaf) for leaf in pytree.tree_leaves((args, kwargs))}
        self.created += [
            (leaf.nbytes, torch.cuda.current_stream(leaf.device))
            for leaf in pytree.tree_leaves(result)
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda and id(leaf) not in given
        ]
        return result


def look_at_results(operation: Operation, evidence: Evidence) -> Evidence:
    """Compare the results, if there are results to compare."""
    candidate = operation.candidate
    created: list[_Created] = []

    def waiting(*args: Any, **kwargs: Any) -> object:
        with _same_random_numbers(), _WaitingForEach() as mode:
            result = candidate.fn(*args, **kwargs)
        created[:] = mode.created
        return result

    def as_is(held: bool, *args: Any, **kwargs: Any) -> object:
        _forget(created)
        if held:  # the current stream is busy, so other streams run before its earlier work
            torch.ops.convtime.spin_ns(int(_HELD_SECONDS * 1e9))
        with _same_random_numbers():
            return candidate.fn(*args, **kwargs)

    others = [candidate.but(fn=functools.partial(as_is, held)) for held in (False, True) * 2]
    repeats, agreements = check_one_call_each(candidate.but(fn=waiting), others, "close")
    if repeats.same is None:
        return evidence
    errors = [each.largest_error for each in agreements if each.same is False]
    known = [error for error in errors if error is not None]
    serialized = Serialized(
        repeats=bool(repeats.same),
        calls=len(agreements),
        differing=len(errors),
        largest_error=max(known, default=None),
    )
    return dataclasses.replace(evidence, serialized=serialized)


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Use the same random numbers in each call, and preserve the caller's generators."""
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
        torch.default_generator.manual_seed(0)
        torch.cuda.manual_seed(0)
        yield


def _forget(created: list[_Created]) -> None:
    """Zero free memory in matching sizes: leftovers could make a wrong result look correct."""
    torch.cuda.synchronize()
    with contextlib.suppress(torch.OutOfMemoryError):
        zeros = []
        for nbytes, stream in created:
            with torch.cuda.stream(stream):
                zeros.append(torch.zeros(nbytes, dtype=torch.uint8, device=stream.device))
        torch.cuda.synchronize()
        del zeros
