"""What is timed: a callable with its arguments, and what happens before each call of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One operation that is to be timed: ``fn(*args, **kwargs)``."""

    name: str
    fn: Callable[..., object]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    setup: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a measurement's name must be a string, got {self.name!r}")
        if not callable(self.fn):
            raise TypeError(
                f"what is timed must be callable, got {type(self.fn).__name__} for {self.name!r}; "
                "pass the function and its arguments, not its result"
            )
        if self.setup is not None and not callable(self.setup):
            raise TypeError(f"setup must be callable, got {type(self.setup).__name__}")


def name_of(fn: Callable[..., object]) -> str:
    """A callable's own name, or its type's where it has none (modules, partials)."""
    if isinstance(fn, functools.partial):
        return name_of(fn.func)
    name = getattr(fn, "__name__", None)  # proxies answer with anything
    return name if isinstance(name, str) else type(fn).__name__


def clearing_gradients(candidate: Candidate, tensors: Iterable[torch.Tensor]) -> Candidate:
    """The candidate with the gradients of ``tensors`` set to None before each call.

    Raises:
        TypeError: for anything but tensors.
    """
    if isinstance(tensors, torch.Tensor):
        raise TypeError("grad_to_none must be a sequence of tensors, got one tensor; put it in []")
    tensors = tuple(tensors)  # an iterator would be empty from the second call on
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"grad_to_none must hold tensors, got {type(tensor).__name__}")

    def setup() -> None:
        _clear_gradients(tensors)
        if candidate.setup is not None:
            candidate.setup()

    return dataclasses.replace(candidate, setup=setup)


@dataclasses.dataclass
class LastPass:
    """What the last backward pass worked on; copies of a candidate share one, and its memory.

    Attributes:
        leaves: what its gradients went to.
        outputs: of the forward pass before it.
        gradients: of these outputs.
    """

    leaves: list[torch.Tensor] = dataclasses.field(default_factory=list)
    outputs: list[torch.Tensor] = dataclasses.field(default_factory=list)
    gradients: list[torch.Tensor] = dataclasses.field(default_factory=list)


def backward_of(candidate: Candidate, last: LastPass | None = None) -> Candidate:
    """The candidate's backward pass alone: its forward pass is run before each call."""
    backward = _Backward(candidate, last or LastPass())
    return Candidate(candidate.name, backward, setup=backward.run_forward)


class _Backward:
    def __init__(self, forward: Candidate, last: LastPass) -> None:
        self._forward = forward
        self._last = last

    def run_forward(self) -> None:
        if torch.is_inference_mode_enabled():
            raise ValueError(
                f"backward=True needs autograd, which torch.inference_mode() turns off for "
                f"{self._forward.name!r}; time it outside of that mode"
            )
        if self._forward.setup is not None:
            self._forward.setup()
        with torch.enable_grad():
            result = self._forward.fn(*self._forward.args, **self._forward.kwargs)
        last = self._last
        last.outputs = differentiable(result)
        if not last.outputs:
            raise ValueError(
                f"backward=True needs a result that requires grad, and that of "
                f"{self._forward.name!r} does not; set requires_grad on an input"
            )
        self._refuse_special(last.outputs)
        if [gradient.shape for gradient in last.gradients] != [
            output.shape for output in last.outputs
        ]:
            # Random, since the time of some kernels depends on what they compute with.
            last.gradients = [torch.randn_like(output) for output in last.outputs]
        # Which leaves a call uses may vary (a mixture of experts): those of the call before have
        # gradients, and those of this one may have some from elsewhere.
        _clear_gradients(last.leaves)
        last.leaves = list(_leaves_of(last.outputs))
        _clear_gradients(last.leaves)

    def _refuse_special(self, outputs: Iterable[torch.Tensor]) -> None:
        for output in outputs:
            ragged = output.is_nested and output.layout == torch.strided
            if ragged or output.layout == torch.sparse_coo:
                kind = "nested" if ragged else "sparse COO"
                raise ValueError(
                    f"backward=True gives each result a random gradient, which PyTorch does not "
                    f"make for the {kind} tensor that {self._forward.name!r} returns; let it "
                    "return a dense tensor"
                )

    def __call__(self) -> None:
        torch.autograd.backward(self._last.outputs, self._last.gradients)


def differentiable(result: object) -> list[torch.Tensor]:
    """The tensors of a call's result, however nested, that require gradients.

    Raises:
        ValueError: for a result that contains itself.
    """
    try:
        leaves = pytree.tree_leaves(result)
    except RecursionError:
        raise ValueError(
            f"the result whose gradients are wanted must not contain itself, got a "
            f"{type(result).__name__} that does; return its tensors alone"
        ) from None
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def _leaves_of(outputs: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The tensors whose gradients a backward pass of the outputs adds to."""
    pending: list[torch.autograd.graph.Node | None] = [
        output.grad_fn
        if output.grad_fn is not None
        else torch.autograd.graph.get_gradient_edge(output).node
        for output in outputs
    ]
    seen = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        pending.extend(following for following, _ in node.next_functions)


def _clear_gradients(tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.grad = None
