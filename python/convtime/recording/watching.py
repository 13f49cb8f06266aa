"""Record the modules that a step calls as regions, and copy the arguments of their calls."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from convtime.core.errors import first_line
from convtime.recording.module_times import Direction
from convtime.recording.region import region
from convtime.timing.candidate import differentiable
from convtime.timing.sampling.object_graph import is_plain


def region_name(module: str, direction: Direction) -> str:
    """Return the region name of a module's pass in recordings."""
    return f"{module or 'the model'} {direction}"


def _hook(
    hooks: contextlib.ExitStack,
    module: torch.nn.Module,
    begin: Callable[..., None],
    end: Callable[..., None],
    *,
    with_kwargs: bool = False,
) -> None:
    """Run functions before and after each call of a module, until the stack is closed."""
    before = module.register_forward_pre_hook(begin, prepend=True, with_kwargs=with_kwargs)
    hooks.callback(before.remove)
    hooks.callback(module.register_forward_hook(end, always_call=True).remove)


def innermost_called(model: torch.nn.Module, step: Callable[[], object]) -> set[str]:
    """Run a step once, and return the names of called modules that call no other modules.

    Parametrizations are modules too; they count as part of the module whose parameter they compute.
    """
    running: list[str] = []
    called: set[str] = set()
    calling: set[str] = set()

    def begin(name: str, _module: torch.nn.Module, _args: object) -> None:
        called.add(name)
        calling.update(running)
        running.append(name)

    def end(name: str, _module: torch.nn.Module, _args: object, _output: object) -> None:
        if running and running[-1] == name:
            running.pop()

    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            if "parametrizations" not in name.split("."):
                _hook(hooks, module, functools.partial(begin, name), functools.partial(end, name))
        step()
    return called - calling


@dataclasses.dataclass
class _Call:
    """A running call of a module.

    Attributes:
        module: the module.
        around: names of the enclosing modules, outermost first, ending with this module's name.
        first_node: sequence number of the first autograd node that the call may create.
        left: exit stack that leaves its region.
    """

    module: torch.nn.Module
    around: tuple[str, ...]
    first_node: int
    left: contextlib.ExitStack


class WatchedModules:
    """Context in which each call of the modules, and each backward node of a call, is a region.

    A node belongs to the innermost watched module whose call created it. Node hooks are used, since
    backward hooks of modules turn results into views, which in-place modules reject.
    """

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self._modules = modules
        self._hooks = contextlib.ExitStack()
        self._calls: list[_Call] = []
        self._claimed: set[torch.autograd.graph.Node] = set()

    def __enter__(self) -> WatchedModules:
        for name, module in self._modules.items():
            _hook(self._hooks, module, functools.partial(self._begin, name), self._end)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._hooks.close()
        self._claimed.clear()

    def _begin(self, name: str, module: torch.nn.Module, _args: object) -> None:
        around = self._calls[-1].around if self._calls else ()
        left = contextlib.ExitStack()
        first_node: int = torch._C._autograd._get_sequence_nr()
        self._calls.append(_Call(module, (*around, name), first_node, left))
        left.enter_context(region(region_name(name, "forward")))

    def _end(self, module: torch.nn.Module, _args: object, output: object) -> None:
        # The call did not begin if an earlier hook failed.
        if self._calls and self._calls[-1].module is module:
            call = self._calls.pop()
            call.left.close()
            self._claim(output, call)

    def _claim(self, output: object, call: _Call) -> None:
        """Assign the autograd nodes of a call to its module's regions."""
        own = {id(parameter) for parameter in call.module.parameters()}
        pending = [result.grad_fn for result in differentiable(output)]
        seen: set[torch.autograd.graph.Node] = set()
        while pending:
            node = pending.pop()
            if node is None or node in seen or not _is_of(call, node, own):
                continue
            seen.add(node)
            # A call within this one may have claimed it, for this one too; others lie behind it.
            if node not in self._claimed:
                self._claimed.add(node)
                self._watch(node, call.around)
            pending += [following for following, _ in node.next_functions]

    def _watch(self, node: torch.autograd.graph.Node, around: tuple[str, ...]) -> None:
        regions = [region(region_name(name, "backward")) for name in around]

        def begin(*_gradients: object) -> None:
            for each in regions:
                each.__enter__()

        def end(*_gradients: object) -> None:
            for each in reversed(regions):
                each.__exit__(None, None, None)

        self._hooks.callback(node.register_prehook(begin).remove)
        self._hooks.callback(node.register_hook(end).remove)


def _is_of(call: _Call, node: torch.autograd.graph.Node, own: set[int]) -> bool:
    # Nodes that accumulate a parameter's gradient have no sequence number.
    if hasattr(node, "variable"):
        return id(node.variable) in own
    return node._sequence_nr() >= call.first_node


@dataclasses.dataclass(frozen=True)
class _Modes:
    """Grad mode, and the autocast dtype of each device type."""

    gradients: bool
    autocast: tuple[tuple[str, torch.dtype], ...]

    @classmethod
    def present(cls) -> _Modes:
        kinds = [kind for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind)]
        autocast = tuple((kind, torch.get_autocast_dtype(kind)) for kind in kinds)
        return cls(torch.is_grad_enabled(), autocast)

    def enter(self) -> contextlib.AbstractContextManager[object]:
        """Enter the modes unless active: entering takes longer than a small layer on a CPU."""
        present = self.present()
        if self == present:
            return contextlib.nullcontext()
        stack = contextlib.ExitStack()
        stack.enter_context(torch.set_grad_enabled(self.gradients))
        for kind, _ in present.autocast:
            stack.enter_context(torch.autocast(kind, enabled=False))
        for kind, dtype in self.autocast:
            stack.enter_context(torch.autocast(kind, dtype=dtype))
        return stack


@dataclasses.dataclass
class SeenCall:
    """A step's call of a module, with copies of its arguments and of its results' gradients.

    Attributes:
        args: copies of the positional arguments.
        kwargs: copies of the keyword arguments.
        modes: grad and autocast modes of the call.
        gradients: gradient of each differentiable result tensor, in order; None if it received
            none.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    modes: _Modes
    gradients: list[torch.Tensor | None] = dataclasses.field(default_factory=list)


class CopyError(Exception):
    """The arguments of a module's call, or the gradients of its results, cannot be copied."""


def calls_seen(module: torch.nn.Module, step: Callable[[], object]) -> list[SeenCall]:
    """Run a step once, and return its calls of a module, without recursive calls.

    Raises:
        CopyError: an argument or gradient cannot be copied; raised after the step.
    """
    calls: list[SeenCall] = []
    reasons: list[str] = []
    running: list[SeenCall] = []
    hooks = contextlib.ExitStack()

    def begin(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            args, kwargs = map_tensors(_copy, (args, kwargs))
        except Exception as error:  # from special tensor types; the step itself must not fail
            reasons.append(f"its arguments cannot be copied: {first_line(error)}")
        call = SeenCall(args, kwargs, _Modes.present())
        if not running:
            calls.append(call)
        running.append(call)

    def end(_module: torch.nn.Module, _args: object, output: object) -> None:
        gradients = running.pop().gradients
        for index, result in enumerate(differentiable(output)):
            gradients.append(None)
            keep = functools.partial(_keep, gradients, index, reasons)
            hooks.callback(result.register_hook(keep).remove)  # type: ignore[no-untyped-call]

    with hooks:
        _hook(hooks, module, begin, end, with_kwargs=True)
        step()
    if reasons:
        raise CopyError(reasons[0])
    return calls


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return strided_copy(tensor).requires_grad_(tensor.requires_grad)


def _keep(
    gradients: list[torch.Tensor | None], index: int, reasons: list[str], gradient: torch.Tensor
) -> None:
    try:
        gradients[index] = strided_copy(gradient)
    except Exception as error:  # as for the inputs
        reasons.append(f"its results' gradients cannot be copied: {first_line(error)}")


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    """Map the tensors of a tree; repeated occurrences of a tensor share one mapped tensor.

    Identity matters: attention, for example, runs different kernels if query and key are the same
    tensor.
    """
    changed: dict[int, torch.Tensor] = {}

    def change_once(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in changed:
            changed[id(tensor)] = change(tensor)
        return changed[id(tensor)]

    return pytree.tree_map_only(torch.Tensor, change_once, tree)


def strided_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached copy with the same strides, since strides affect the choice of kernels.

    ``clone()`` loses the strides of tensors with gaps or with elements that share memory, such as
    expanded tensors.
    """
    tensor = tensor.detach()
    copy = tensor.clone()
    if not is_plain(tensor) or copy.stride() == tensor.stride():
        return copy
    copy = torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    dimensions = zip(tensor.size(), tensor.stride(), strict=True)
    # Copy the memory as one line: PyTorch rejects writes to elements that share memory.
    line = 1 + sum((size - 1) * stride for size, stride in dimensions)
    copy.as_strided((line,), (1,)).copy_(tensor.as_strided((line,), (1,)))
    return copy
