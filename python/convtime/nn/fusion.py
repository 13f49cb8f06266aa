"""Fuse each convolution of a model with its epilogue into one call, and undo it."""

from __future__ import annotations

import functools
import inspect
import operator
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import functional as F
from torch.nn.modules import module as every_module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from convtime import ops
from convtime.nn.model_change import ModelChange
from convtime.nn.replacement import (
    check_module,
    is_convolution,
    why_not_parameters,
    why_not_plain,
)
from convtime.ops.activations import FUNCTIONS
from convtime.ops.flops import register_formulas

_CALLS = {1: ops.conv1d_epilogue, 2: ops.conv2d_epilogue, 3: ops.conv3d_epilogue}
_NORMS = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d, 3: torch.nn.BatchNorm3d}
_LAYERS: dict[type, str] = {
    torch.nn.ReLU: "relu",
    torch.nn.ReLU6: "relu6",
    torch.nn.LeakyReLU: "leaky_relu",
    torch.nn.SiLU: "silu",
    torch.nn.Sigmoid: "sigmoid",
    torch.nn.Tanh: "tanh",
}
# Functions of one tensor; `inplace` is irrelevant, since nothing else uses the activation's input.
_FUNCTIONS: dict[Any, str] = {
    F.relu: "relu",
    torch.relu: "relu",
    torch.relu_: "relu",
    F.relu6: "relu6",
    F.silu: "silu",
    F.sigmoid: "sigmoid",
    torch.sigmoid: "sigmoid",
    F.tanh: "tanh",
    torch.tanh: "tanh",
}
_METHODS = {name + suffix: name for name in ("relu", "sigmoid", "tanh") for suffix in ("", "_")}
_GELUS = {"none": "gelu", "tanh": "gelu_tanh"}
_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.setitem)
# Modules whose functions write in place only if their name or arguments say so.
_PURE = frozenset(
    {"torch", "torch.functional", "torch.nn.functional", "torch._C._nn"}
    | {"_operator", "builtins", "math"}
)
_REPLICATE = "_replicate_for_data_parallel"


@dataclass(frozen=True)
class FusedConvolution:
    """A convolution that :func:`fuse` fused with its epilogue.

    Attributes:
        name: The convolution's name in ``named_modules``.
        steps: The fused steps after it, in order: names of modules, or of functions in brackets.
    """

    name: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return " + ".join((self.name, *self.steps))


@dataclass(frozen=True, repr=False)
class Fusion(ModelChange):
    """The report of :func:`fuse`; as a context manager, it restores the model on exit.

    Attributes:
        fused: The fused convolutions. One that is called twice is listed twice.
        left: The convolutions that were not fused, as (name, reason).
    """

    fused: tuple[FusedConvolution, ...]
    left: tuple[tuple[str, str], ...]
    _modules: tuple[torch.nn.Module, ...] = field(default=(), compare=False)

    one = "convolution"
    counted = "convolutions fused"

    @property
    def done(self) -> tuple[tuple[str, str], ...]:
        """The convolutions that were fused, as (name, fused steps)."""
        return tuple((each.name, f"with {' + '.join(each.steps)}") for each in self.fused)

    def __enter__(self) -> Fusion:
        return self

    def _undo(self) -> None:
        for module in self._modules:
            _restore(module)


def fuse(model: torch.nn.Module) -> Fusion:
    """Fuse each convolution of a model with its epilogue into one call, in place.

    The epilogue is a batch norm, then the addition of a tensor, then an activation (ReLU, ReLU6,
    LeakyReLU, GELU, SiLU, sigmoid or tanh). Each step is optional, and nothing else may use the
    intermediate results. The fused call is :func:`convtime.ops.conv2d_epilogue`, or its 1-D or 3-D
    counterpart.

    torch.fx traces each module that calls convolutions separately, without tracing its submodules.
    ``forward`` is replaced on the object; modules, parameters, ``state_dict`` and hooks are
    unchanged. :func:`unfuse`, or leaving a ``with`` statement, undoes it. As with torch.fx, values
    that a ``forward`` reads from anything other than its arguments are read only once, by fuse.

    A batch norm in eval mode is folded into the convolution's weight and bias. The folded tensors
    are kept, and recomputed when parameters or statistics change, except for changes through
    ``.data``. They are computed in each call while a parameter may need a gradient, and in compiled
    code. In training mode, the original modules compute the batch norm and the steps after it. They
    also compute every call that does not fit: an addend with a different shape or dtype, hooks
    registered on a fused module or on all modules, or a fused module that was replaced.

    Args:
        model: the model, or a wrapper around it.

    Returns:
        The fused convolutions, and the others with the reason. Convolutions are left if there is
        nothing to fuse after them, if something else also uses their result, or if they are not
        plain layers of torch.nn or convtime.nn or have hooks. They are also left if the ``forward``
        of their module depends on the training mode, has optional arguments, or cannot be traced by
        torch.fx.

    Raises:
        TypeError: if ``model`` is not a module.
    """
    check_module("fuse", model)
    register_formulas()
    fused: list[FusedConvolution] = []
    left: list[tuple[str, str]] = []
    forwards: list[tuple[torch.nn.Module, Callable[..., Any]]] = []
    if is_convolution(model):
        left.append(("", "nothing follows it"))
    for name, module in model.named_modules():
        convolutions = dict(_convolutions_of(module))
        if not convolutions:
            continue

        def full_name(path: str, name: str = name) -> str:
            return f"{name}.{path}" if name else path

        graph, why = _trace(module)
        if graph is None:
            left += [(full_name(path), why) for path in convolutions]
            continue
        chains, reasons = _find_chains(graph, module, convolutions)
        left += [(full_name(path), reason) for path, reason in reasons]
        for chain in chains:
            steps = tuple(
                full_name(step) if not step.startswith("[") else step for step in chain.steps
            )
            fused.append(FusedConvolution(full_name(chain.conv), steps))
            chain.rewrite(graph)
        if chains:
            forwards.append((module, _compile(graph, module)))
    # After everything that can raise: a model is fused as a whole or not at all.
    for module, forward in forwards:
        _set_forward(module, forward)
    return Fusion(tuple(fused), tuple(left), tuple(module for module, _ in forwards))


def unfuse(model: torch.nn.Module) -> tuple[str, ...]:
    """Undo :func:`fuse`: modules call their original layers again.

    Args:
        model: the model, or a wrapper around it.

    Returns:
        The names of the modules whose ``forward`` was restored.

    Raises:
        TypeError: if ``model`` is not a module.
    """
    check_module("unfuse", model)
    return tuple(name for name, module in model.named_modules() if _restore(module))


def _set_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> None:
    vars(module)["forward"] = types.MethodType(forward, module)
    vars(module)[_REPLICATE] = functools.partial(_replicate, module)


def _replicate(module: Any) -> torch.nn.Module:
    """Create a replica for DataParallel; its forward uses the replica's parameters."""
    replica: torch.nn.Module = getattr(type(module), _REPLICATE)(module)
    vars(replica)["forward"] = types.MethodType(vars(module)["forward"].__func__, replica)
    return replica


def _restore(module: torch.nn.Module) -> bool:
    """Restore a module's forward; return whether it was fused."""
    is_ours = hasattr(vars(module).get("forward"), "_convtime_fused")
    if is_ours or _was_pickled(module):
        del vars(module)["forward"], vars(module)[_REPLICATE]
    return is_ours


def _was_pickled(module: torch.nn.Module) -> bool:
    """Whether the module was fused before pickling, which turns forward into the class's method."""
    return _REPLICATE in vars(module) and (
        vars(module).get("forward") == types.MethodType(type(module).forward, module)
    )


def _convolutions_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the convolutions that the module itself calls, with their names in it."""
    if is_convolution(module) or _is_container(module):
        return
    pending = list(module.named_children())
    while pending:
        name, child = pending.pop(0)
        if is_convolution(child):
            yield name, child
        elif _is_container(child):
            pending += [(f"{name}.{inner}", part) for inner, part in child.named_children()]


def _is_container(module: torch.nn.Module) -> bool:
    """Whether the module only holds modules that others call."""
    return isinstance(module, torch.nn.ModuleList | torch.nn.ModuleDict)


def _add_in_place(first: Any, second: Any) -> Any:
    first += second
    return first


class _Proxy(fx.Proxy):
    """Distinguishes `y += x` from `y = y + x`; torch.fx does not."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        # torch.fx would write operator.iadd as a statement, which changes a number's variable.
        return self.tracer.create_proxy("call_function", _add_in_place, (self, other), {})


class _Tracer(fx.Tracer):
    """Traces only one module's forward, without its submodules."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
        return True


def _trace(module: torch.nn.Module) -> tuple[fx.Graph | None, str]:
    """Trace a module's forward; if that fails, return None and the reason."""
    if isinstance(module, torch.jit.ScriptModule):
        return None, "TorchScript has compiled the module that calls it"
    if "forward" in vars(module) and not _was_pickled(module):
        return None, "the forward of the module that calls it is replaced on the object"
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return None, "the forward of the module that calls it has no readable signature"
    for parameter in parameters:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD or (
            parameter.default is not parameter.empty
        ):
            return None, (
                "the forward of the module that calls it takes optional arguments "
                f"({parameter.name}), and a trace would cover only one case"
            )
    before = dict(vars(module))
    # Submodules too: the forward may read their modes. TorchScript modules have none in vars().
    modes = [(part, part.training) for part in module.modules() if "training" in vars(part)]
    try:
        now = _Tracer().trace(module)
        for part, training in modes:
            vars(part)["training"] = not training
        otherwise = _Tracer().trace(module)
    except Exception as error:  # a forward can raise anything when it is given proxies
        text = str(error).strip().partition("\n")[0]
        return None, (
            "torch.fx cannot trace the forward of the module that calls it "
            f"({type(error).__name__}: {text})"
        )
    finally:
        for part, training in modes:
            vars(part)["training"] = training
        changed = [name for name, value in vars(module).items() if before.get(name) is not value]
        for name in changed:
            del vars(module)[name]
        vars(module).update(before)
    if changed:
        return None, f"the forward of the module that calls it sets attributes ({changed[0]})"
    if now.python_code("self").src != otherwise.python_code("self").src:
        return None, "the forward of the module that calls it depends on the training mode"
    return now, ""


@dataclass
class _Chain:
    """A call of a convolution, and the calls that are fused with it."""

    nodes: list[fx.Node]
    norm: str | None = None
    sum: fx.Node | None = None
    place: int = 0  # position of the addend among the sum's arguments
    alpha: float = 1.0
    in_place: bool = False  # whether the sum is in place
    activation: str = "identity"
    negative_slope: float = 0.01
    layer: str | None = None  # the activation's module, if it is one

    @property
    def conv(self) -> str:
        return str(self.nodes[0].target)

    @property
    def steps(self) -> list[str]:
        def name(node: fx.Node) -> str:
            if node.op == "call_module":
                return str(node.target)
            return "[add]" if node is self.sum else f"[{self.activation}]"

        return [name(node) for node in self.nodes[1:]]

    def rewrite(self, graph: fx.Graph) -> None:
        last = self.nodes[-1]
        with graph.inserting_before(last):
            modules = [
                None if path is None else graph.get_attr(path)
                for path in (self.conv, self.norm, self.layer)
            ]
            other = None if self.sum is None else self.sum.args[self.place]
            tensors = self.nodes[0].args[0], other
            settings = self.activation, self.negative_slope, self.alpha, self.in_place
            call = graph.call_function(call_fused, (*modules, *tensors, *settings))
        last.replace_all_uses_with(call)
        for node in reversed(self.nodes):
            graph.erase_node(node)


def _find_chains(
    graph: fx.Graph, module: torch.nn.Module, convolutions: dict[str, torch.nn.Module]
) -> tuple[list[_Chain], list[tuple[str, str]]]:
    """Find the chains to fuse, and the convolutions that cannot be fused, with the reason."""
    chains: list[_Chain] = []
    left: list[tuple[str, str]] = []
    for node in graph.nodes:
        if node.op != "call_module" or node.target not in convolutions:
            continue
        why = _why_not(convolutions[node.target], node)
        if not why:
            chain = _follow(node, module)
            why = _why_not_chain(chain, module)
            if not why:
                chains.append(chain)
        if why:
            left.append((node.target, why))
    called = {node.target for node in graph.nodes if node.op == "call_module"}
    left += [
        (path, "the forward of the module that has it does not call it")
        for path in convolutions
        if path not in called
    ]
    # If two convolutions are added, the second one takes the first one's result.
    taken: set[fx.Node] = set()
    kept: list[_Chain] = []
    for chain in reversed(chains):
        while len(chain.nodes) > 1 and taken & set(chain.nodes):
            _shorten(chain)
        if len(chain.nodes) == 1:
            left.append((chain.conv, "its epilogue is fused with another convolution"))
            continue
        taken |= set(chain.nodes)
        kept.append(chain)
    return kept[::-1], left


def _shorten(chain: _Chain) -> None:
    """Remove the addition and the activation from the chain."""
    kept = chain.nodes[: 2 if chain.norm else 1]
    chain.nodes = kept
    chain.sum, chain.alpha, chain.in_place = None, 1.0, False
    chain.activation, chain.layer = "identity", None


def _why_not(conv: torch.nn.Module, call: fx.Node) -> str | None:
    why = why_not_plain(conv) or why_not_parameters(conv)
    if why:
        return why
    if conv.transposed:
        return "it is a transposed convolution, and cuDNN fuses nothing after those"
    if len(call.args) != 1 or call.kwargs:
        return "it is called with more than its input"
    return None


def _follow(call: fx.Node, module: torch.nn.Module) -> _Chain:
    """Collect the calls that each use only the result of the previous one, as its only user."""
    chain = _Chain([call])
    conv: Any = module.get_submodule(str(call.target))
    while len(chain.nodes[-1].users) == 1:
        last = chain.nodes[-1]
        (user,) = last.users
        if len(chain.nodes) == 1 and _is_norm(user, module, conv):
            chain.norm = str(user.target)
        elif chain.sum is None and (added := _addend(user, last)) is not None:
            chain.sum = user
            chain.place, chain.alpha = added
            chain.in_place = _adds_in_place(user)
        elif (activated := _activation(user, module)) is not None:
            chain.activation, chain.negative_slope = activated
            chain.layer = str(user.target) if user.op == "call_module" else None
            chain.nodes.append(user)
            break
        else:
            break
        chain.nodes.append(user)
    return chain


def _why_not_chain(chain: _Chain, module: torch.nn.Module) -> str | None:
    first, last = chain.nodes[0], chain.nodes[-1]
    if first is last:
        if len(first.users) > 1:
            return "its result is used more than once"
        return "no batch norm, addition or activation follows it"
    for path in (chain.conv, chain.norm, chain.layer):
        if path is not None and has_hooks(module.get_submodule(path)):
            return f"{path} has hooks, which would see the intermediate results"
    node = first.next
    while node is not last:
        if node not in chain.nodes and _may_change_in_place(node, module):
            return "a tensor is or may be changed in place between it and its epilogue"
        node = node.next
    return None


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether a call of the module also runs hooks."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _have_hooks_of_all() -> bool:
    """Whether hooks are registered for all modules."""
    return bool(
        every_module._global_forward_hooks
        or every_module._global_forward_pre_hooks
        or every_module._global_backward_hooks
        or every_module._global_backward_pre_hooks
    )


def _is_norm(node: fx.Node, module: torch.nn.Module, conv: _ConvNd) -> bool:
    if node.op != "call_module":
        return False
    norm = module.get_submodule(str(node.target))
    return _is_plain_norm(norm, conv) and len(node.args) == 1 and not node.kwargs


def _is_plain_norm(norm: Any, conv: _ConvNd) -> bool:
    return (
        type(norm) is _NORMS[len(conv.kernel_size)]
        and "forward" not in vars(norm)
        and norm.running_mean is not None
        and norm.running_var is not None
    )


def _addend(node: fx.Node, last: fx.Node) -> tuple[int, float] | None:
    """Return which argument of a node is added to the last node's result, and its factor."""
    is_function = node.op == "call_function" and node.target in (
        operator.add,
        operator.iadd,
        _add_in_place,
        torch.add,
    )
    is_method = node.op == "call_method" and node.target in ("add", "add_")
    if not (is_function or is_method) or len(node.args) != 2 or set(node.kwargs) - {"alpha"}:
        return None
    first, second = node.args
    alpha = node.kwargs.get("alpha", 1)
    if not isinstance(alpha, int | float) or first is second:
        return None
    if first is last and isinstance(second, fx.Node):
        return 1, float(alpha)
    if second is last and isinstance(first, fx.Node) and alpha == 1 and not _adds_in_place(node):
        return 0, 1.0
    return None


def _adds_in_place(node: fx.Node) -> bool:
    return node.target in (operator.iadd, _add_in_place, "add_")


def _activation(node: fx.Node, module: torch.nn.Module) -> tuple[str, float] | None:
    """Return the name and slope of the activation that a node computes."""
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        return _layer_activation(layer) if len(node.args) == 1 and not node.kwargs else None
    if node.op == "call_method":
        name = _METHODS.get(str(node.target))
        return (name, 0.01) if name and len(node.args) == 1 and not node.kwargs else None
    if node.op != "call_function":
        return None
    options = dict(node.kwargs)
    options.pop("inplace", None)
    if node.target is F.gelu and len(node.args) == 1:
        approximate = str(options.pop("approximate", "none"))
        return (_GELUS[approximate], 0.01) if not options and approximate in _GELUS else None
    if node.target is F.leaky_relu and len(node.args) <= 2:
        slope = options.pop("negative_slope", node.args[1] if len(node.args) == 2 else 0.01)
        return ("leaky_relu", float(slope)) if not options and isinstance(slope, float) else None
    if options or len(node.args) != 1:
        return None
    name = _FUNCTIONS.get(node.target)
    return None if name is None else (name, 0.01)


def _layer_activation(layer: Any) -> tuple[str, float] | None:
    if "forward" in vars(layer):
        return None
    if type(layer) is torch.nn.GELU and layer.approximate in _GELUS:
        return _GELUS[layer.approximate], 0.01
    name = _LAYERS.get(type(layer))
    return None if name is None else (name, float(vars(layer).get("negative_slope", 0.01)))


def _may_change_in_place(node: fx.Node, module: torch.nn.Module) -> bool:
    """Whether the node writes into a tensor, or calls code that may do so."""
    if node.op == "call_module":
        parts = module.get_submodule(str(node.target)).modules()
        return not all(_is_pure(part) for part in parts)
    if node.op not in ("call_function", "call_method"):
        return False
    if node.op == "call_function" and getattr(node.target, "__module__", None) not in _PURE:
        return True
    name = str(getattr(node.target, "__name__", node.target))
    in_place_name = name.endswith("_") and not name.endswith("__")
    return (
        in_place_name
        or node.target in _IN_PLACE
        or bool(node.kwargs.get("inplace"))
        or node.kwargs.get("out") is not None
    )


def _is_pure(part: torch.nn.Module) -> bool:
    plain = type(part).__module__.startswith("torch.nn.modules.") or (
        is_convolution(part) and why_not_plain(part) is None
    )
    return (
        plain
        and "forward" not in vars(part)
        and not getattr(part, "inplace", False)
        and not has_hooks(part)
    )


def _compile(graph: fx.Graph, module: torch.nn.Module) -> Callable[..., Any]:
    """Compile the graph into a method of the module; each call looks up the module's parts."""
    compiled = fx.GraphModule(module, graph, class_name=type(module).__name__)
    forward: Any = type(compiled).forward
    forward._convtime_fused = True
    return forward  # type: ignore[no-any-return]


# --- Functions that a fused model calls ----------------------------------------------------------


def call_fused(
    conv: Any,
    norm: Any,
    layer: Any,
    input: torch.Tensor,
    other: torch.Tensor | None,
    activation: str,
    negative_slope: float,
    alpha: float,
    in_place: bool,
) -> torch.Tensor:
    """Compute a convolution and its epilogue: in one call if possible, else with the modules."""
    is_as_fused = layer is None or _layer_activation(layer) == (activation, negative_slope)
    if is_as_fused and _fits(conv, norm, layer, input, other):
        weight, bias = (conv.weight, conv.bias) if norm is None else _fold(conv, norm)
        padding = conv.padding
        if conv.padding_mode != "zeros":
            input = F.pad(input, conv._reversed_padding_repeated_twice, mode=conv.padding_mode)
            padding = 0
        return _CALLS[len(conv.kernel_size)](
            input,
            weight,
            bias,
            conv.stride,
            padding,
            conv.dilation,
            conv.groups,
            other=other,
            alpha=alpha,
            activation=activation,  # type: ignore[arg-type]
            negative_slope=negative_slope,
            policy=conv.policy if hasattr(type(conv), "policy") else None,
        )
    y: torch.Tensor = conv(input)
    if norm is not None:
        y = norm(y)
    if other is not None:
        # An in-place addition keeps shape and dtype, or raises.
        y = y.add_(other, alpha=alpha) if in_place else torch.add(y, other, alpha=alpha)
    if layer is not None:
        activated: torch.Tensor = layer(y)
        return activated
    return FUNCTIONS[activation](y, negative_slope)


def _fits(conv: Any, norm: Any, layer: Any, input: Any, other: Any) -> bool:
    """Whether one call computes the same as the modules."""
    if not isinstance(input, torch.Tensor) or _have_hooks_of_all():
        return False
    for module in (conv, norm, layer):
        if module is not None and has_hooks(module):
            return False
    # Modules may have been replaced since they were fused.
    if why_not_plain(conv) or conv.transposed or not (norm is None or _is_plain_norm(norm, conv)):
        return False
    if norm is not None and (norm.training or input.dim() != conv.weight.dim()):
        return False
    if other is None:
        return True
    autocasts = torch.is_autocast_enabled(input.device.type)
    dtype = torch.get_autocast_dtype(input.device.type) if autocasts else input.dtype
    return (
        isinstance(other, torch.Tensor)
        and other.dtype == dtype
        and other.device == input.device
        and list(other.shape) == _output_size(conv, input.shape)
    )


def _output_size(conv: Any, size: Sequence[int]) -> list[int]:
    spatial = len(conv.kernel_size)
    padding = conv._reversed_padding_repeated_twice  # the last dimension first
    lengths = []
    for i, length in enumerate(size[-spatial:]):
        place = 2 * (spatial - 1 - i)
        reach = conv.dilation[i] * (conv.kernel_size[i] - 1) + 1
        padded = length + padding[place] + padding[place + 1]
        lengths.append((padded - reach) // conv.stride[i] + 1)
    return [*size[: -spatial - 1], conv.out_channels, *lengths]


_Sources = Sequence[tuple[torch.Tensor | None, tuple[int, int] | None]]


@dataclass
class _Folded:
    """A convolution's weight and bias with a folded batch norm, and the source tensors."""

    norm: _BatchNorm
    eps: float
    sources: _Sources
    weight: torch.Tensor
    bias: torch.Tensor


_folded: weakref.WeakKeyDictionary[_ConvNd, _Folded] = weakref.WeakKeyDictionary()


def _fold(conv: _ConvNd, norm: _BatchNorm) -> tuple[torch.Tensor, torch.Tensor]:
    if is_compiling():
        return _compute_folded(conv, norm)
    tensors = (conv.weight, conv.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var)
    if _is_observed(tensors):
        return _compute_folded(conv, norm)
    sources = [(tensor, _state_of(tensor)) for tensor in tensors]
    known = _folded.get(conv)
    if (
        known is not None
        and known.norm is norm
        and known.eps == norm.eps
        and _are_same(known.sources, sources)
    ):
        return known.weight, known.bias
    capturing = conv.weight.is_cuda and torch.cuda.is_current_stream_capturing()
    # Values that a graph computes do not exist yet during capture.
    if capturing or any(tensor is not None and state is None for tensor, state in sources):
        return _compute_folded(conv, norm)
    with torch.inference_mode(False), torch.no_grad():
        weight, bias = _compute_folded(conv, norm)
        if known is not None and _can_hold(known.weight, weight) and _can_hold(known.bias, bias):
            # In place, because a CUDA graph may read these tensors.
            weight, bias = known.weight.copy_(weight), known.bias.copy_(bias)
    if weight.is_cuda:
        torch.cuda.current_stream(weight.device).synchronize()  # for calls on other streams
    _folded[conv] = _Folded(norm, norm.eps, sources, weight, bias)
    return weight, bias


def _is_observed(tensors: Iterable[torch.Tensor | None]) -> bool:
    """Whether autograd, a trace or a transform must see operations on these tensors."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return (
        torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def _compute_folded(conv: _ConvNd, norm: _BatchNorm) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute weight and bias in float32 or wider; round once to the convolution's dtype."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    dtype = torch.promote_types(conv.weight.dtype, torch.float32)
    scale = torch.rsqrt(norm.running_var.to(dtype) + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    weight = conv.weight * scale.reshape(-1, *[1] * (conv.weight.dim() - 1))
    bias = (
        -norm.running_mean * scale
        if conv.bias is None
        else ((conv.bias - norm.running_mean) * scale)
    )
    if norm.bias is not None:
        bias = bias + norm.bias
    return weight.to(conv.weight.dtype), bias.to(conv.weight.dtype)


def _state_of(tensor: torch.Tensor | None) -> tuple[int, int] | None:
    """Return a state that changes with a tensor's values; None if the changes are not counted."""
    if tensor is None or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    # Inference tensors have no version counter.
    if tensor.is_inference() or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    return tensor.data_ptr(), tensor._version


def _are_same(before: _Sources, now: _Sources) -> bool:
    for (tensor, state), (other, other_state) in zip(before, now, strict=True):
        if tensor is not other or state != other_state:
            return False
    return True


def _can_hold(held: torch.Tensor, tensor: torch.Tensor) -> bool:
    return (
        held.shape == tensor.shape
        and held.dtype == tensor.dtype
        and held.device == tensor.device
        and held.stride() == tensor.stride()
    )
