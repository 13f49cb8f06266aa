"""Find the convolutions with their epilogues in a graph that Dynamo captured, and fuse each.

A graph of Dynamo's has torch's functions as nodes. Parameters and buffers are placeholders, and
``meta["example_value"]`` has the shape and the dtype of each result.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from convtime import ops
from convtime.nn.folding import Folding, fold_norm
from convtime.ops.arguments import DTYPES

_EPILOGUES = {1: ops.conv1d_epilogue, 2: ops.conv2d_epilogue, 3: ops.conv3d_epilogue}
_SPATIAL: dict[Any, int] = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
_OURS = {getattr(torch.ops.convtime, f"conv{rank}d"): rank for rank in (1, 2, 3)}
_SPATIAL |= _OURS | {op.default: rank for op, rank in _OURS.items()}
_TRANSPOSED = frozenset(
    getattr(owner, f"conv_transpose{rank}d")
    for owner in (torch, torch.ops.convtime)
    for rank in (1, 2, 3)
)
# Functions of one tensor; `inplace` is irrelevant, since nothing else uses the activation's input.
_FUNCTIONS: dict[Any, str] = {
    F.relu: "relu",
    torch.relu: "relu",
    torch.relu_: "relu",
    F.relu6: "relu6",
    F.hardtanh: "relu6",  # with the limits 0 and 6
    F.gelu: "gelu",
    F.leaky_relu: "leaky_relu",
    F.silu: "silu",
    F.sigmoid: "sigmoid",
    torch.sigmoid: "sigmoid",
    torch.sigmoid_: "sigmoid",
    F.tanh: "tanh",
    torch.tanh: "tanh",
    torch.tanh_: "tanh",
}
_ACTIVATION_PARAMETERS: dict[Any, tuple[str, ...]] = {
    F.hardtanh: ("input", "min_val", "max_val", "inplace"),
    F.gelu: ("input", "approximate"),
    F.leaky_relu: ("input", "negative_slope", "inplace"),
}
_METHODS = {name + suffix: name for name in ("relu", "sigmoid", "tanh") for suffix in ("", "_")}
_GELUS = {"none": "gelu", "tanh": "gelu_tanh"}
_SUMS = (operator.add, operator.iadd, torch.add)
# Modules whose functions write in place only if their name or arguments say so.
_PURE = frozenset(
    {"torch", "torch.functional", "torch.nn.functional", "torch._C._nn"}
    | {"_operator", "builtins", "math"}
)
_IN_PLACE = frozenset(
    getattr(operator, name)
    for name in (
        *("iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow"),
        *("irshift", "isub", "itruediv", "ixor", "setitem"),
    )
)
# Convolutions and what replaces them, which write to none of their arguments.
_OWN = frozenset((*_SPATIAL, *_EPILOGUES.values(), fold_norm))
_NORM_PARAMETERS = tuple(inspect.signature(F.batch_norm).parameters)
# The fused call keeps their result for its gradient; torch keeps what they were computed from.
_RESULT_IS_KEPT = frozenset({"leaky_relu", "relu6"})
_SLOPE = 0.01  # torch's default of leaky_relu


@dataclasses.dataclass(frozen=True)
class FusedConvolution:
    """A convolution that was fused with its epilogue.

    Attributes:
        name: The convolution's name in ``named_modules``, or its function in brackets.
        steps: The fused steps after it, in order: names of modules, or of functions in brackets.
    """

    name: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return " + ".join((self.name, *self.steps))


#: A convolution that was fused, or the name of one that was not, and why not.
Convolution = FusedConvolution | tuple[str, str]


@dataclasses.dataclass
class _Chain:
    """Calls that each use only the result of the previous one, as its only user."""

    nodes: list[fx.Node]
    norm: fx.Node | None = None
    sum: fx.Node | None = None
    other: fx.Node | None = None
    alpha: float = 1.0
    activation: str = "identity"
    negative_slope: float = _SLOPE


def fuse_chains(
    module: fx.GraphModule,
    inputs: Sequence[object],
    is_constant: Callable[[object], bool],
    names: Mapping[int, str],
) -> tuple[list[Convolution], list[Folding]]:
    """Fuse the chains of a graph in place.

    Args:
        module: the graph.
        inputs: values of its placeholders.
        is_constant: whether a tensor keeps its values, so that a batch norm with such tensors can
            be folded in advance.
        names: names of modules by their id.

    Returns:
        All convolutions, and what is to be folded in advance: for each, the graph has got two more
        placeholders, for the weight and the bias.
    """
    # The graphs of checkpoints are not given constants, so that they fold in each call.
    convolutions = [
        each for body in inline_checkpoints(module) for each in _fuse(body, {}, [], names)
    ]
    constants = {
        node: position
        for position, (node, value) in enumerate(
            zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True)
        )
        if is_constant(value) and not any(node in _written_by(user) for user in node.users)
    }
    foldings: list[Folding] = []
    return convolutions + _fuse(module, constants, foldings, names), foldings


def _fuse(
    module: fx.GraphModule,
    constants: Mapping[fx.Node, int],
    foldings: list[Folding],
    names: Mapping[int, str],
) -> list[Convolution]:
    """Fuse the chains of one graph, and return all of its convolutions."""
    graph = module.graph
    convolutions: list[Convolution] = []
    for node in list(graph.nodes):
        if node.target in _TRANSPOSED:
            reason = "it is a transposed convolution, and cuDNN fuses nothing after those"
            convolutions.append((_module_of(node, names) or f"[{_name(node)}]", reason))
        if node.op != "call_function" or node.target not in _SPATIAL:
            continue
        name = _module_of(node, names) or f"[{_name(node)}]"
        chain = _follow(node)
        reason = _why_not(chain)
        if not reason:
            convolutions.append(FusedConvolution(name, tuple(_steps(chain, names))))
            _rewrite(graph, chain, constants, foldings)
        else:
            convolutions.append((name, reason))
    graph.lint()
    module.recompile()
    return convolutions


def _steps(chain: _Chain, names: Mapping[int, str]) -> Iterator[str]:
    """Yield the names of the steps after the convolution."""
    for step in chain.nodes[1:]:
        kind = {chain.norm: "batch_norm", chain.sum: "add"}.get(step, chain.activation)
        yield _module_of(step, names) or f"[{kind}]"


def _module_of(node: fx.Node, names: Mapping[int, str]) -> str:
    """Return the name of the module whose forward calls the node's function by itself."""
    stack = node.meta.get("nn_module_stack") or {}
    for key in reversed([*stack]):
        identity = str(key).partition("@")[0]  # the same module's later calls have a number
        name = names.get(int(identity), "") if identity.isdecimal() else ""
        path, kind = stack[key]
        is_torchs = getattr(kind, "__module__", "").startswith(("torch.nn.", "convtime.nn"))
        return (name or _plain_path(path)) if is_torchs else ""
    return ""


def _plain_path(path: str) -> str:
    """Return a module's name from Dynamo's path, such as ``L['self']._modules['block'].0.conv``."""
    plain = re.sub(r"\.?(__dict__)?(\['_modules'\]|_modules)?\['(\w+)'\]", r".\3", path)
    return plain.partition(".")[2].partition(".")[2]


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target)).strip("_")


def _value(node: object) -> Any:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def _arguments(node: fx.Node, *names: str) -> dict[str, Any] | None:
    """Return a call's arguments by name; None if it has others than these."""
    if len(node.args) > len(names) or set(node.kwargs) - set(names):
        return None
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _convolution_arguments(node: fx.Node) -> dict[str, Any] | None:
    return _arguments(
        node,
        *("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
        *(("policy",) if node.target not in (torch.conv1d, torch.conv2d, torch.conv3d) else ()),
    )


def _follow(convolution: fx.Node) -> _Chain:
    chain = _Chain([convolution])
    while len(chain.nodes[-1].users) == 1:
        last = chain.nodes[-1]
        (user,) = last.users
        if len(chain.nodes) == 1 and _is_foldable_norm(user, last):
            chain.norm = user
        elif chain.sum is None and (added := _addend(user, last)) is not None:
            chain.sum = user
            chain.other, chain.alpha = added
        elif (activated := _activation(user, last)) is not None:
            if activated[0] in _RESULT_IS_KEPT and _is_written_later(user):
                break
            chain.activation, chain.negative_slope = activated
            chain.nodes.append(user)
            break
        else:
            break
        chain.nodes.append(user)
    return chain


def _why_not(chain: _Chain) -> str:
    first, last = chain.nodes[0], chain.nodes[-1]
    arguments = _convolution_arguments(first)
    if arguments is None or not _is_supported(arguments, first):
        return f"convtime does not compute it (dtypes: one of {DTYPES}; devices: cpu and cuda)"
    if first is last:
        if len(first.users) > 1:
            return "its result is used more than once"
        if first.users and (user := next(iter(first.users))).target is F.batch_norm:
            return "its batch norm uses statistics of the batch"
        if first.users and _activation(user, first) is not None:
            return "its activation's result is changed in place, and the gradient needs it"
        return "no batch norm, addition or activation follows it"
    node = first.next
    while node is not last:
        if node not in chain.nodes and _may_write(node):
            return "a tensor or a mode is or may be changed between it and its epilogue"
        node = node.next
    return ""


def _is_supported(arguments: Mapping[str, Any], node: fx.Node) -> bool:
    values = [_value(arguments.get(name)) for name in ("input", "weight")]
    result = _value(node)
    return (
        all(isinstance(value, torch.Tensor) for value in (*values, result))
        and result.device.type in ("cpu", "cuda")
        and all(value.dtype in DTYPES for value in (*values, result))
        and all(value.layout == torch.strided for value in values)
    )


def _is_foldable_norm(node: fx.Node, last: fx.Node) -> bool:
    """Whether the node is a batch norm with running statistics of the last node's result."""
    if node.target is not F.batch_norm:
        return False
    arguments = _arguments(node, *_NORM_PARAMETERS)
    return (
        arguments is not None
        and arguments["input"] is last
        and arguments.get("training", False) is False
        and all(isinstance(arguments[name], fx.Node) for name in ("running_mean", "running_var"))
        and isinstance(arguments.get("eps", 1e-5), float)
        and _value(node) is not None
        and _value(node).dtype == _value(last).dtype
    )


def _addend(node: fx.Node, last: fx.Node) -> tuple[fx.Node, float] | None:
    """Return the tensor that a node adds to the last node's result, and its factor."""
    is_function = node.op == "call_function" and node.target in _SUMS
    is_method = node.op == "call_method" and node.target in ("add", "add_")
    if not (is_function or is_method) or len(node.args) != 2 or set(node.kwargs) - {"alpha"}:
        return None
    first, second = node.args
    alpha = node.kwargs.get("alpha", 1)
    if not isinstance(alpha, int | float) or first is second:
        return None
    if first is last and isinstance(second, fx.Node):
        other = second
    elif (
        second is last
        and isinstance(first, fx.Node)
        and alpha == 1
        and not (node.target is operator.iadd or node.target == "add_")
    ):
        other = first
    else:
        return None
    return (other, float(alpha)) if _is_like(_value(other), _value(last)) else None


def _is_like(one: Any, other: Any) -> bool:
    """Whether two tensors have the same shape, dtype and device."""
    # Imported here: sympy, which Dynamo has imported by now.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return (
        isinstance(one, torch.Tensor)
        and one.dtype == other.dtype
        and one.device == other.device
        and one.layout == torch.strided
        and one.dim() == other.dim()
        and all(statically_known_true(a == b) for a, b in zip(one.shape, other.shape, strict=True))
    )


def _activation(node: fx.Node, last: fx.Node) -> tuple[str, float] | None:
    """Return the name and the slope of the activation that a node computes."""
    if not node.args or node.args[0] is not last:
        return None
    if node.op == "call_method":
        name = _METHODS.get(str(node.target))
        return (name, _SLOPE) if name and len(node.args) == 1 and not node.kwargs else None
    name = _FUNCTIONS.get(node.target)
    options = _arguments(node, *_ACTIVATION_PARAMETERS.get(node.target, ("input", "inplace")))
    if node.op != "call_function" or name is None or options is None:
        return None
    if node.target is F.gelu:
        name = _GELUS.get(options.get("approximate", "none"))
    if node.target is F.hardtanh:  # torch.nn.ReLU6 calls this
        limits = options.get("min_val", -1.0), options.get("max_val", 1.0)
        name = "relu6" if limits == (0, 6) else None
    slope = options.get("negative_slope", _SLOPE)
    return (name, float(slope)) if name and isinstance(slope, int | float) else None


def _may_write(node: fx.Node) -> bool:
    """Whether a node may write into a tensor, or change a mode such as autocast."""
    if node.op not in ("call_function", "call_method"):
        return node.op == "call_module"
    if node.op == "call_function":
        if node.target is F.batch_norm:
            arguments = _arguments(node, *_NORM_PARAMETERS) or {"training": True}
            return arguments.get("training", False) is not False
        if getattr(node.target, "__module__", None) not in _PURE and node.target not in _OWN:
            return True
    name = str(getattr(node.target, "__name__", node.target))
    return (
        (name.endswith("_") and not name.endswith("__"))
        or node.target in _IN_PLACE
        or bool(node.kwargs.get("inplace"))
        or node.kwargs.get("out") is not None
    )


def _written_by(node: fx.Node) -> Sequence[fx.Node]:
    """Return the arguments that a node may write to: of torch's functions, the first one."""
    if not _may_write(node):
        return ()
    is_function = node.op == "call_function" and node.target is not F.batch_norm
    is_known = node.op == "call_method" or (
        is_function and getattr(node.target, "__module__", None) in _PURE
    )
    first = node.args[0] if node.args else None
    if is_known and node.kwargs.get("out") is None and isinstance(first, fx.Node):
        return (first,)
    return node.all_input_nodes


def _is_written_later(node: fx.Node) -> bool:
    """Whether gradients are needed, and a later node may write to a node's result or its views."""
    value = _value(node)
    if not value.requires_grad:
        return False
    storage = value.untyped_storage()._cdata
    while node.op != "output":
        node = node.next
        if any(
            isinstance(each, torch.Tensor) and each.untyped_storage()._cdata == storage
            for each in map(_value, _written_by(node))
        ):
            return True
    return False


def _rewrite(
    graph: fx.Graph,
    chain: _Chain,
    constants: Mapping[fx.Node, int],
    foldings: list[Folding],
) -> None:
    """Replace a chain by one call, at the place of its last node."""
    first, last = chain.nodes[0], chain.nodes[-1]
    arguments = _convolution_arguments(first)
    assert arguments is not None  # of _why_not
    if chain.norm is not None:
        sources, eps = _sources_of(arguments, chain.norm)
        positions = [None if source is None else constants.get(source, -1) for source in sources]
        if -1 not in positions:
            foldings.append(Folding(tuple(positions), eps))
            weight, bias = _add_placeholders(graph, len(foldings))
        else:
            with graph.inserting_before(last):
                both = graph.call_function(fold_norm, (*sources, eps))
                weight, bias = (graph.call_function(operator.getitem, (both, i)) for i in (0, 1))
        arguments |= {"weight": weight, "bias": bias}
    given = {
        "input": None,
        "weight": None,
        "bias": None,
        "stride": 1,
        "padding": 0,
        "dilation": 1,
        "groups": 1,
        "policy": None,
        **arguments,
    }
    policy = given.pop("policy")
    with graph.inserting_before(last):
        fused = graph.call_function(
            _EPILOGUES[_SPATIAL[first.target]],
            tuple(given.values()),
            {
                "other": chain.other,
                "alpha": chain.alpha,
                "activation": chain.activation,
                "negative_slope": chain.negative_slope,
                "policy": policy,
            },
        )
    fused.meta = dict(last.meta)
    last.replace_all_uses_with(fused)
    for node in reversed(chain.nodes):
        graph.erase_node(node)


def _sources_of(
    arguments: Mapping[str, Any], norm: fx.Node
) -> tuple[tuple[fx.Node | None, ...], float]:
    """Return the tensors that are folded, in the order of `fold_norm`, and eps."""
    of_norm = _arguments(norm, *_NORM_PARAMETERS)
    assert of_norm is not None  # of _is_foldable_norm
    return (
        arguments["weight"],
        arguments.get("bias"),
        of_norm["running_mean"],
        of_norm["running_var"],
        of_norm.get("weight"),
        of_norm.get("bias"),
    ), of_norm.get("eps", 1e-5)


def _add_placeholders(graph: fx.Graph, number: int) -> tuple[fx.Node, fx.Node]:
    """Add placeholders for a folded weight and bias after the existing ones."""
    *_, last = graph.find_nodes(op="placeholder")
    with graph.inserting_after(last):  # each directly after the last one: in reverse order
        bias = graph.placeholder(f"folded_bias_{number}")
        weight = graph.placeholder(f"folded_weight_{number}")
    return weight, bias


def inline_checkpoints(module: fx.GraphModule) -> list[fx.GraphModule]:
    """Replace calls of checkpoint by what they call, where no gradient is needed.

    There, checkpoint does nothing else. The other calls get copies of their graphs, which may
    then be changed; Dynamo reads the originals later.

    Returns:
        The graphs of the calls that are left.
    """
    left: list[fx.GraphModule] = []
    graph = module.graph
    target = torch.ops.higher_order.tag_activation_checkpoint
    for node in graph.find_nodes(op="call_function", target=target):
        source, *arguments = node.args
        called = getattr(module, source.target)
        body = fx.GraphModule(called, copy.deepcopy(called.graph))
        nested = inline_checkpoints(body)
        if nested or not _is_inlinable(node, body):
            setattr(module, source.target, body)
            left += [body, *nested]
            continue
        values = dict(zip(body.graph.find_nodes(op="placeholder"), arguments, strict=True))
        with graph.inserting_before(node):
            results = graph.graph_copy(body.graph, values)
        assert isinstance(results, tuple)  # as Dynamo's graphs return
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
        if not source.users:
            graph.erase_node(source)
    return left


def _is_inlinable(node: fx.Node, body: fx.GraphModule) -> bool:
    """Whether no result needs a gradient, and the graph can be copied to another module."""
    results = node.meta.get("example_value") or ()
    return (
        not any(isinstance(each, torch.Tensor) and each.requires_grad for each in results)
        and not body.graph.find_nodes(op="get_attr")
        and all(user.target is operator.getitem for user in node.users)
    )
