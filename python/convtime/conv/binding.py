"""Identify the convolution in a call: functions and layers, and their arguments."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.overrides import TorchFunctionMode

from convtime import ops
from convtime.conv.call import (
    DGRAD,
    DTYPES,
    FPROP,
    WGRAD,
    ConvCall,
    ConvTensors,
    Flags,
    TensorLayout,
    dtype_name,
    memory_format,
)
from convtime.conv.problem import ConvProblem
from convtime.core.checks import check_one_of
from convtime.core.kinds import KINDS, Numbers
from convtime.ops.arguments import pad_end, resolve_padding
from convtime.timing.candidate import Candidate


@dataclasses.dataclass(frozen=True)
class BoundCall:
    """The arguments of a convolution, by their names in :mod:`convtime.ops`."""

    input: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None = None
    stride: Numbers = 1
    padding: Numbers | str = 0
    dilation: Numbers = 1
    groups: int = 1
    policy: str | None = None
    transposed: bool = False
    output_padding: Numbers = 0

    @property
    def batched_input(self) -> torch.Tensor:
        """The input with a batch; the functions also take a single example without one."""
        return self.input if self.input.dim() == self.weight.dim() else self.input.unsqueeze(0)

    @property
    def problem(self) -> ConvProblem:
        """The convolution; padding "same" is kept."""
        return ConvProblem.of_sizes(
            tuple(self.batched_input.shape),
            tuple(self.weight.shape),
            groups=self.groups,
            transposed=self.transposed,
            stride=self.stride,
            padding=0 if self.padding == "valid" else self.padding,
            dilation=self.dilation,
            bias=self.bias is not None,
            output_padding=self.output_padding,
        )

    def passes(self, backward: bool | None = None) -> list[str]:
        """Return the forward pass, and the gradient passes that are requested.

        None stands for those that input and weight request with requires_grad.
        """
        passes = [FPROP]
        for name, tensor in ((DGRAD, self.input), (WGRAD, self.weight)):
            required = torch.is_grad_enabled() and tensor.requires_grad
            if required if backward is None else backward:
                passes.append(name)
        return passes


# Signatures of the functions, by name, and the namespaces that contain them.
_SIGNATURES = {kind.function: inspect.signature(getattr(ops, kind.function)) for kind in KINDS}
#: The functions that the layers of PyTorch and convtime.nn call, with their names.
_CALLED_BY_LAYERS = {
    getattr(namespace, kind.function): kind.function
    for kind in KINDS
    for namespace in (torch, torch.ops.convtime)
}
_NAMESPACES = (F, torch, torch.ops.aten, ops, torch.ops.convtime)
#: The classes of convolution layers, and the functions that they call.
LAYERS: dict[type[torch.nn.Module], str] = {
    getattr(torch.nn, kind.layer): kind.function for kind in KINDS
}
#: Classes of layers that compute a convolution and nothing else; convtime.nn adds its own.
PLAIN_LAYERS: set[type[torch.nn.Module]] = {*LAYERS}
_TAKEN = (
    f"takes {', '.join(_SIGNATURES)} of torch.nn.functional or convtime.ops, or a module of "
    "torch.nn or convtime.nn that calls one of them"
)
# Forward pre-hooks that compute the weight and leave the input unchanged.
_WEIGHT_HOOKS = (WeightNorm, SpectralNorm, BasePruningMethod)


def function_of(fn: object, caller: str = "explain") -> str:
    """Return the name of the function that fn is, or that the module calls.

    ``caller`` is the function that errors are about, also below.
    """
    for kind, op in LAYERS.items():
        if isinstance(fn, kind):
            reason = _why_not_plain(fn)
            if reason:
                raise TypeError(
                    f"{caller} {_TAKEN}; got a {type(fn).__name__} that may compute something "
                    f"else: {reason}; pass torch.nn.functional.{op} with its tensors instead"
                )
            return op
    for op in _SIGNATURES:
        if any(fn is getattr(namespace, op, None) for namespace in _NAMESPACES):
            return op
    modules = fn.modules() if isinstance(fn, torch.nn.Module) else ()
    inside = sum(isinstance(module, tuple(LAYERS)) for module in modules)
    hint = f"; it contains {inside} convolution(s), which can be passed one by one"
    name = getattr(fn, "__name__", type(fn).__name__)
    raise TypeError(f"{caller} {_TAKEN}; got {name}{hint if inside else ''}")


def own_class_of(module: torch.nn.Module) -> type:
    """Return the module's class without the one that torch.nn.utils.parametrize adds."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def why_not_plain(module: torch.nn.Module) -> str | None:
    """Return why a convolution layer may not compute the same as torch.nn's class of its kind."""
    # Plain layers skip these checks, for speed: each fused call runs this function.
    if type(module) not in PLAIN_LAYERS:
        own_class = own_class_of(module)
        if isinstance(module, LazyModuleMixin):
            return f"a {own_class.__name__} has no shapes before its first call"
        if isinstance(module, torch.jit.ScriptModule):
            return "TorchScript has compiled it"
        if own_class not in PLAIN_LAYERS:
            return (
                f"{own_class.__module__}.{own_class.__qualname__} is not a class of torch.nn itself"
            )
    for function in ("forward", "_conv_forward"):
        if function in vars(module):
            return f"its {function} is replaced on the object"
    return None


def _why_not_plain(module: torch.nn.Module) -> str | None:
    why = why_not_plain(module)
    if why:
        return why
    for hook in module._forward_pre_hooks.values():
        if not isinstance(hook, _WEIGHT_HOOKS):
            name = getattr(hook, "__qualname__", type(hook).__qualname__)
            return f"{name}, a forward pre-hook, may change its input"
    return None


def bound_call(
    caller: str,
    fn: Callable[..., object] | Candidate,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    backward: bool | None,
) -> BoundCall:
    """Check the arguments of a function that takes a convolution's call, and bind that call.

    Raises:
        TypeError: fn is not a convolution, or may be more than one.
        ValueError: backward is not a bool. PyTorch's own errors for invalid arguments propagate.
    """
    if backward is not None and not isinstance(backward, bool):
        raise ValueError(f"backward must be True, False or None, got {backward!r}")
    if isinstance(fn, Candidate) and (args or kwargs):
        raise TypeError(
            f"{caller} got the Candidate {fn.name!r} and arguments; pass these to the Candidate"
        )
    candidate = fn if isinstance(fn, Candidate) else Candidate(fn, *args, kwargs=kwargs)
    function = function_of(candidate.fn, caller)
    calls: list[BoundCall] = []
    with WatchedConvolutions(calls.append):
        candidate.fn(*candidate.args, **candidate.kwargs)  # raises PyTorch's own errors first
    if isinstance(candidate.fn, torch.nn.Module):
        return calls[-1]
    return bind(function, candidate.args, candidate.kwargs)


def bind(op: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BoundCall:
    """Name the arguments of a call of a function in :mod:`convtime.ops`, or of PyTorch's."""
    given = _SIGNATURES[op].bind(*args, **kwargs).arguments
    return BoundCall(**given, transposed="output_padding" in _SIGNATURES[op].parameters)


class WatchedConvolutions(TorchFunctionMode):
    """While entered, passes each convolution that layers call to a function, once it returned.

    Args:
        take: receives the calls.
    """

    def __init__(self, take: Callable[[BoundCall], None]) -> None:
        super().__init__()
        self._take = take

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func in _CALLED_BY_LAYERS:
            self._take(bind(_CALLED_BY_LAYERS[func], args, kwargs))
        return output


def convolutions_of(call: Callable[[], object]) -> list[BoundCall]:
    """Return the convolutions of a call, one entry per execution; this calls it once."""
    calls: list[BoundCall] = []
    with WatchedConvolutions(calls.append):
        call()
    return [each for each in calls if each.input.numel()]


def prepare(bound: BoundCall, caller: str = "explain") -> tuple[ConvTensors, ConvCall]:
    """Return the call as PyTorch's selection sees it: batched, cast, with numeric padding.

    Raises:
        ValueError: the device or dtype is unsupported.
    """
    if bound.input.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{caller} works on a CPU or a GPU, got a tensor on {bound.input.device}")
    x, w = map(_autocast, (bound.batched_input, bound.weight))
    bias = None if bound.bias is None else _autocast(bound.bias)
    check_one_of(f"{caller}: the dtype", x.dtype, DTYPES.values())
    problem, x = _with_padded(bound.problem, x)
    return ConvTensors(x, w, bias), _call_with(problem, x, w)


def call_of(problem: ConvProblem, dtype: str, layout: str, device: torch.device) -> ConvCall:
    """Return the call that a layer with a problem makes, on tensors as PyTorch allocates them.

    Args:
        problem: The convolution; the call has the size and padding after those that are not zeros.
        dtype: A key of convtime.conv.call.DTYPES.
        layout: A member of convtime.conv.call.LAYOUTS, for input and weight.
        device: The device: the layout of a padded input depends on it.
    """
    form = memory_format(layout, 2 + problem.rank)
    x, w = (
        torch.empty(shape, dtype=DTYPES[dtype], device=device, memory_format=form)
        for shape in (problem.input_shape, problem.weight_shape)
    )
    return _call_with(*_with_padded(problem, x), w)


def _call_with(problem: ConvProblem, x: torch.Tensor, w: torch.Tensor) -> ConvCall:
    layouts = TensorLayout.of(x), TensorLayout.of(w)
    return ConvCall(problem, dtype_name(x.dtype), *layouts, flags=Flags.current())


def _with_padded(problem: ConvProblem, x: torch.Tensor) -> tuple[ConvProblem, torch.Tensor]:
    """Pad the input by what is not an equal number of zeros at both ends, as PyTorch does first."""
    padding, surplus = problem.padding, (0,) * problem.rank
    if isinstance(padding, str):
        padding, surplus = resolve_padding(
            "conv", problem.rank, problem.weight_shape, problem.stride, padding, problem.dilation
        )
    if problem.padding_mode == "zeros":
        x = pad_end(x, surplus)
    else:
        ends = [(before, before + more) for before, more in zip(padding, surplus, strict=True)]
        x = F.pad(x, [end for pair in reversed(ends) for end in pair], mode=problem.padding_mode)
        padding = (0,) * problem.rank
    size = tuple(x.shape[2:])
    return dataclasses.replace(problem, size=size, padding=padding, padding_mode="zeros"), x


def _autocast(tensor: torch.Tensor) -> torch.Tensor:
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind) or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))
