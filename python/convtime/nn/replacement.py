"""Has convtime compute the convolution layers of a model, and undoes it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from convtime.core.kinds import KINDS
from convtime.nn import layers
from convtime.nn.model_change import ModelChange
from convtime.ops.arguments import DTYPES
from convtime.ops.flops import register_formulas

_OURS: dict[type, type] = {
    getattr(torch.nn, kind.layer): getattr(layers, kind.layer) for kind in KINDS
}
_PYTORCHS = {ours: pytorchs for pytorchs, ours in _OURS.items()}
_PLAIN = frozenset({*_OURS, *_PYTORCHS})
# An attribute of the layers that replace converted; those of the user's own making lack it.
_MARK = "_convtime_replaced"


@dataclass(frozen=True, repr=False)
class Replacement(ModelChange):
    """What :func:`replace` did to a model; as a context manager, it undoes that at its end.

    Attributes:
        replaced: Names of the layers that were replaced, as ``named_modules`` has them; "" is the
            model itself.
        left: The convolution layers that were not, as (name, why).
    """

    replaced: tuple[str, ...]
    left: tuple[tuple[str, str], ...]
    _layers: tuple[torch.nn.Module, ...] = field(default=(), compare=False)

    one = "layer"
    counted = "convolution layers replaced"

    @property
    def done(self) -> tuple[tuple[str, str], ...]:
        """The layers that were replaced, as (name, "replaced")."""
        return tuple((name, "replaced") for name in self.replaced)

    def __enter__(self) -> Replacement:
        return self

    def _undo(self) -> None:
        for layer in self._layers:
            if _is_replaced(layer):
                _restore(layer)


def replace(
    model: torch.nn.Module,
    *,
    only: Callable[[str, torch.nn.Module], bool] | Collection[str] | None = None,
    policy: str | None = None,
) -> Replacement:
    """Has convtime compute a model's convolution layers, in place.

    Each layer stays the object that it is and becomes one of this module's classes. Its parameters,
    buffers, hooks, name and flags are what they were, and so is what refers to them: optimizers,
    wrappers such as DistributedDataParallel. :func:`restore` undoes it, and so does the end of a
    ``with`` statement: ``with convtime.nn.replace(model): ...`` restores exactly those layers that
    it replaced. Calls of ``torch.nn.functional`` are no layers, and are left as they are.
    ``torch.jit.script`` cannot compile a replaced model; ``torch.jit.trace`` and ``torch.export``
    take it, and a ``FlopCounterMode`` that is made afterwards counts it as before.

    Args:
        model: the model, or a wrapper of it.
        only: which layers: a function of a layer's name and the layer that says whether it is
            meant, or the names of layers, or of modules all of whose layers are meant. All of them
            unless it is given.
        policy: of each layer that is replaced; see :class:`Conv2d`. Layers that are convtime's
            already keep theirs.

    Returns:
        The layers that were replaced, and of those that were meant the ones that were left, with
        the reason: subclasses with code of their own, lazy layers before their first call,
        quantised and scripted ones, a forward that is replaced on the object, an attribute
        ``policy`` that is something else, and parameters that convtime's ops do not take.

    Raises:
        TypeError: if ``model`` is no module, ``only`` neither a function nor a collection of names,
            or ``policy`` no text.
        ValueError: if the model has no module of a name in ``only``.
    """
    check_module("replace", model)
    if policy is not None and not isinstance(policy, str):
        raise TypeError(f"replace: policy must be a str or None, got {policy!r}")
    is_meant = _selection(model, only)
    register_formulas()
    # All of them first: the caller's function may raise, and none is replaced then.
    meant = [
        (name, module)
        for name, module in model.named_modules()
        if is_convolution(module) and _own_class(module) not in _PYTORCHS and is_meant(name, module)
    ]
    replaced, left, layers = [], [], []
    for name, module in meant:
        why = _why_not(module)
        if why:
            left.append((name, why))
            continue
        _become(module, _OURS[_own_class(module)])
        vars(module)[_MARK] = True
        if policy is not None:
            vars(module)["policy"] = policy
        replaced.append(name)
        layers.append(module)
    return Replacement(tuple(replaced), tuple(left), tuple(layers))


def restore(model: torch.nn.Module) -> tuple[str, ...]:
    """Undoes :func:`replace`: the layers that it converted become PyTorch's again, in place.

    Their ``policy`` is dropped. Layers that were made as convtime's are left as they are.

    Args:
        model: the model, or a wrapper of it.

    Returns:
        The names of the layers that were restored.

    Raises:
        TypeError: if ``model`` is no module.
    """
    check_module("restore", model)
    restored = []
    for name, module in model.named_modules():
        if _is_replaced(module):
            _restore(module)
            restored.append(name)
    return tuple(restored)


def _selection(
    model: torch.nn.Module,
    only: Callable[[str, torch.nn.Module], bool] | Collection[str] | None,
) -> Callable[[str, torch.nn.Module], bool]:
    """`only` as a function."""
    if only is None:
        return lambda _name, _module: True
    if callable(only):
        return only
    if isinstance(only, str) or not isinstance(only, Collection):
        raise TypeError(
            "replace: only must be a function of name and layer, or a collection of names, got "
            f"{only!r}"
        )
    modules = dict(model.named_modules(remove_duplicate=False))
    meant = set()
    for name in only:
        if name not in modules:
            raise ValueError(f"replace: only has {name!r}, but no module of the model is named so")
        meant.update(modules[name].modules())
    return lambda _name, module: module in meant


def _is_replaced(module: torch.nn.Module) -> bool:
    return _MARK in vars(module) and _own_class(module) in _PYTORCHS


def _restore(module: torch.nn.Module) -> None:
    _become(module, _PYTORCHS[_own_class(module)])
    vars(module).pop("policy", None)
    del vars(module)[_MARK]


def check_module(function: str, model: object) -> None:
    """Raises TypeError for what is no module."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{function}: model must be a torch.nn.Module, got {type(model).__name__}")


def is_convolution(module: torch.nn.Module) -> bool:
    """Whether it is a convolution layer of any kind."""
    if isinstance(module, torch.jit.ScriptModule):
        return "Conv" in module.original_name
    if isinstance(module, torch.nn.Sequential):  # torch.ao's ConvReLU2d and the like
        return False
    of_ao = type(module).__module__.startswith("torch.ao.nn") and "Conv" in type(module).__name__
    return isinstance(module, _ConvNd) or of_ao


def _own_class(module: torch.nn.Module) -> type:
    """The module's class, less the one that torch.nn.utils.parametrize puts in front of it."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def why_not_plain(module: torch.nn.Module) -> str | None:
    """Why a convolution layer may compute something else than torch.nn's class of its kind."""
    # What is plain comes first: each fused call asks.
    why = None if type(module) in _PLAIN else _why_not_class(module)
    if why:
        return why
    for function in ("forward", "_conv_forward"):
        if function in vars(module):
            return f"its {function} is replaced on the object"
    return None


def _why_not_class(module: torch.nn.Module) -> str | None:
    own_class = _own_class(module)
    if isinstance(module, LazyModuleMixin):
        return f"a {own_class.__name__} has no shapes before its first call"
    if isinstance(module, torch.jit.ScriptModule):
        return "TorchScript has compiled it"
    if own_class not in _PLAIN:
        return f"{own_class.__module__}.{own_class.__qualname__} is not a class of torch.nn's own"
    return None


def _why_not(module: torch.nn.Module) -> str | None:
    """Why a convolution layer of PyTorch's cannot be replaced."""
    why = why_not_plain(module) or why_not_parameters(module)
    if why:
        return why
    if hasattr(module, "policy"):
        return "it has an attribute policy, which convtime's layers take for their own"
    return None


def why_not_parameters(module: torch.nn.Module) -> str | None:
    """Why convtime's ops do not take a layer's parameters."""
    # Not module.weight: a parametrized one is computed each time, and some change as it is.
    for parameter in module.parameters():
        if type(parameter) is not torch.nn.Parameter:
            return f"a parameter is a {type(parameter).__name__}, not a plain torch.nn.Parameter"
        if parameter.dtype not in DTYPES:
            return f"a parameter is {parameter.dtype}, which is none of {DTYPES}"
        if parameter.device.type not in ("cpu", "cuda", "meta"):
            return f"it is on {parameter.device}, and convtime computes on cpu and cuda"
    return None


def _become(module: torch.nn.Module, own_class: type) -> None:
    if is_parametrized(module):
        # The class that parametrize made holds the properties, and may be shared with copies.
        inherited = ("__dict__", "__weakref__")
        members = {
            name: member for name, member in vars(type(module)).items() if name not in inherited
        }
        own_class = type(f"Parametrized{own_class.__name__}", (own_class,), members)
    # torch 2.11's compiled code looks at a class again only where the object's dict has changed,
    # which the mark sees to.
    module.__class__ = own_class
