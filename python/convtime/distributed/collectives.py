"""The operations of torch.distributed in a call, and their sizes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from convtime.timing.candidate import Candidate
from convtime.timing.ranks import Collective

_NAMESPACES = ("c10d", "_c10d_functional", "symm_mem")
#: Parts of the dispatcher's names, the more specific first, and the names of torch.distributed.
_KINDS = {
    "reduce_scatter": "reduce_scatter",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "gather": "gather",
    "scatter": "scatter",
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "send": "send",
    "recv": "recv",
    "barrier": "barrier",
}
_SPARSE_PARTS: Mapping[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),  # also if it is not coalesced
    **dict.fromkeys(
        (torch.sparse_csr, torch.sparse_bsr), ("crow_indices", "col_indices", "values")
    ),
    **dict.fromkeys(
        (torch.sparse_csc, torch.sparse_bsc), ("ccol_indices", "row_indices", "values")
    ),
}
_NOT_COMMUNICATING = ("wait_tensor", "wrap_tensor")


@dataclasses.dataclass
class Watched:
    """The communication of one call.

    Attributes:
        collectives: the operations in order.
        groups: their process groups.
        unfinished: whether the call returned an operation, or one's tensor, that had not ended.
    """

    collectives: list[Collective] = dataclasses.field(default_factory=list)
    groups: list[dist.ProcessGroup] = dataclasses.field(default_factory=list)
    unfinished: bool = False


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Watched = Watched()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave out PyTorch's protection of modes in compiled code, which imports its compiler."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        namespace, _, name = func._schema.name.partition("::")
        if namespace in _NAMESPACES and not any(each in name for each in _NOT_COMMUNICATING):
            group = next(filter(None, map(_group, args)), None)
            size = 0 if group is None else group.size()
            kind = next((kind for part, kind in _KINDS.items() if part in name), name)
            nbytes = max(map(_nbytes, (*args, result)))  # functional collectives return outputs
            self.seen.collectives.append(Collective(kind, nbytes, size))
            if group is not None and group not in self.seen.groups:
                self.seen.groups.append(group)
        return result


def watch(candidate: Candidate) -> Watched:
    """Call a candidate once, and return its communication."""
    if candidate.before is not None:
        candidate.before()
    watching = _Watch()
    with watching:
        result = candidate.fn(*candidate.args, **candidate.kwargs)
    watching.seen.unfinished = any(map(_is_unfinished, pytree.tree_leaves(result)))
    return watching.seen


def _is_unfinished(returned: object) -> bool:
    if isinstance(returned, dist.Work):
        return not returned.is_completed()
    # Imported by those who use it only: it takes a quarter of a second.
    functional = sys.modules.get("torch.distributed._functional_collectives")
    return (
        functional is not None
        and isinstance(returned, functional.AsyncCollectiveTensor)
        and not returned.completed
    )


def _nbytes(argument: object) -> int:
    """Bytes of tensors of an operation: the larger of input and output is nccl-tests' size."""
    if isinstance(argument, torch.Tensor | list | tuple):
        leaves = pytree.tree_leaves(argument)
        tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        return sum(part.nbytes for tensor in tensors for part in _parts(tensor))
    return 0


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the values and indices of a sparse tensor, or the tensor itself if it is dense."""
    names = _SPARSE_PARTS.get(tensor.layout, ())
    return [getattr(tensor, name)() for name in names] or [tensor]


def _group(argument: object) -> dist.ProcessGroup | None:
    if isinstance(argument, str):  # functional collectives name their group
        try:
            return _resolve_process_group(argument)  # type: ignore[arg-type]
        except (LookupError, RuntimeError, ValueError):  # another string, such as "sum"
            return None
    if isinstance(argument, torch.ScriptObject):
        try:
            return dist.ProcessGroup.unbox(argument)
        except (RuntimeError, TypeError):  # a ReduceOp
            return None
    return None
