"""Replace the convolution layers of a model by convtime's, and undo it."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import NoneType
from typing import ClassVar

import torch
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrize import is_parametrized

from convtime.conv.binding import PLAIN_LAYERS, own_class_of, why_not_plain
from convtime.conv.plans.loading import load_plans
from convtime.conv.plans.plan_set import Plans
from convtime.core.checks import check_type, require
from convtime.core.kinds import KINDS
from convtime.nn import layers
from convtime.ops.arguments import DTYPES
from convtime.ops.flops import register_formulas
from convtime.view.shown import Shown

_OURS: dict[type, type] = {
    getattr(torch.nn, kind.layer): getattr(layers, kind.layer) for kind in KINDS
}
_PYTORCHS = {ours: pytorchs for pytorchs, ours in _OURS.items()}
PLAIN_LAYERS.update(_PYTORCHS)
# An attribute of the layers that replace converted; convtime layers made by the user lack it.
_MARK = "_convtime_replaced"


class LayerReport(Shown, abc.ABC, show="convtime.nn.show", package="convtime.nn"):
    """What was done with the layers of a model.

    Attributes:
        left: The layers that were not changed, as (name, reason); "" is the model itself.
    """

    left: tuple[tuple[str, str], ...]

    #: Column title for such a layer in a table, and the phrase after the count of changed ones.
    one: ClassVar[str]
    counted: ClassVar[str]

    @property
    @abc.abstractmethod
    def done(self) -> tuple[tuple[str, str], ...]:
        """The changed layers, as (name, change)."""


@dataclass(frozen=True, repr=False)
class Replacement(LayerReport):
    """The report of :func:`replace`; as a context manager, it restores the model on exit.

    Attributes:
        replaced: Names of the replaced layers, as in ``named_modules``; "" is the model itself.
        left: The convolution layers that were not replaced, as (name, reason).
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

    def __exit__(self, *_error: object) -> None:
        for layer in self._layers:
            if _is_replaced(layer):
                _restore(layer)


def replace(
    model: torch.nn.Module,
    *,
    only: Callable[[str, torch.nn.Module], bool] | Collection[str] | None = None,
    policy: str | None = None,
    plans: str | os.PathLike[str] | Plans | None = None,
) -> Replacement:
    """Make convtime compute a model's convolution layers, in place.

    Each layer stays the same object, and its class becomes one of this module's. Its parameters,
    buffers, hooks, name and flags are unchanged, and references to it stay valid: optimizers,
    wrappers such as DistributedDataParallel. :func:`restore` undoes it. So does leaving a ``with``
    statement: ``with convtime.nn.replace(model): ...`` restores exactly those layers that it
    replaced. Calls of ``torch.nn.functional`` are not layers, and are unchanged.
    ``torch.jit.script`` cannot compile a replaced model; ``torch.jit.trace`` and ``torch.export``
    accept it. A ``FlopCounterMode`` that is created afterward counts it as before.

    Args:
        model: the model, or a wrapper around it.
        only: the layers to select: a function of a layer's name and the layer that returns a bool,
            or the names of layers, or of modules whose layers are all selected. None (default): all
            layers.
        policy: policy of each replaced layer; see :class:`Conv2d`. Layers that already are
            convtime's keep theirs.
        plans: a file of :func:`convtime.conv.tune`, or its plans, which
            :func:`convtime.conv.load_plans` loads first. They hold for the whole process, also
            after :func:`restore`.

    Returns:
        The replaced layers, and the selected layers that were left, with the reason: subclasses
        with their own code, lazy layers before their first call, quantized and scripted layers, a
        forward that is replaced on the object, an unrelated attribute ``policy``, and parameters
        that convtime's ops do not support.

    Raises:
        TypeError: if ``model`` is not a module, ``only`` is neither a function nor a collection of
            names, or ``policy`` is not a string.
        ValueError: if the model has no module with a name in ``only``, both ``policy`` and
            ``plans`` are given, or the plans cannot be used here.
    """
    check_type("replace: model", model, torch.nn.Module, "a torch.nn.Module")
    check_type("replace: policy", policy, (str, NoneType), "a str or None")
    require(
        policy is None or plans is None,
        f"replace: plans are used by layers without a policy, got plans and policy {policy!r}; "
        "leave one of them out",
    )
    is_meant = _selection(model, only)
    if plans is not None:
        load_plans(plans)
    register_formulas()
    # Select first: the caller's function may raise, and then no layer must be replaced.
    meant = {
        name: module
        for name, module in model.named_modules()
        if is_convolution(module)
        and own_class_of(module) not in _PYTORCHS
        and is_meant(name, module)
    }
    left = {name: why for name, layer in meant.items() if (why := _why_not(layer))}
    replaced = {name: layer for name, layer in meant.items() if name not in left}
    for layer in replaced.values():
        _become(layer, _OURS[own_class_of(layer)])
        vars(layer)[_MARK] = True
        if policy is not None:
            vars(layer)["policy"] = policy
    return Replacement(tuple(replaced), tuple(left.items()), tuple(replaced.values()))


def restore(model: torch.nn.Module) -> tuple[str, ...]:
    """Undo :func:`replace`: the layers that it converted become PyTorch's again, in place.

    Their ``policy`` is dropped. Layers that were created as convtime's are unchanged.

    Args:
        model: the model, or a wrapper around it.

    Returns:
        The names of the layers that were restored.

    Raises:
        TypeError: if ``model`` is not a module.
    """
    check_type("restore: model", model, torch.nn.Module, "a torch.nn.Module")
    replaced = {name: module for name, module in model.named_modules() if _is_replaced(module)}
    for module in replaced.values():
        _restore(module)
    return tuple(replaced)


def _selection(
    model: torch.nn.Module,
    only: Callable[[str, torch.nn.Module], bool] | Collection[str] | None,
) -> Callable[[str, torch.nn.Module], bool]:
    """Return `only` as a function."""
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
    for name in only:
        require(name in modules, f"replace: only has {name!r}, but the model has no such module")
    meant = {part for name in only for part in modules[name].modules()}
    return lambda _name, module: module in meant


def _is_replaced(module: torch.nn.Module) -> bool:
    return _MARK in vars(module) and own_class_of(module) in _PYTORCHS


def _restore(module: torch.nn.Module) -> None:
    _become(module, _PYTORCHS[own_class_of(module)])
    vars(module).pop("policy", None)
    del vars(module)[_MARK]


def is_convolution(module: torch.nn.Module) -> bool:
    """Whether the module is a convolution layer of any kind."""
    if isinstance(module, torch.jit.ScriptModule):
        return "Conv" in module.original_name
    if isinstance(module, torch.nn.Sequential):  # torch.ao's ConvReLU2d and the like
        return False
    of_ao = type(module).__module__.startswith("torch.ao.nn") and "Conv" in type(module).__name__
    return isinstance(module, _ConvNd) or of_ao


def _why_not(module: torch.nn.Module) -> str | None:
    """Return why a PyTorch convolution layer cannot be replaced."""
    why = why_not_plain(module) or why_not_parameters(module)
    if not why and hasattr(module, "policy"):
        return "it has an attribute policy, which convtime's layers use themselves"
    return why


def why_not_parameters(module: torch.nn.Module) -> str | None:
    """Return why convtime's ops do not support a layer's parameters."""
    # module.weight would compute a parametrized weight, and some change when they are computed.
    for parameter in module.parameters():
        if type(parameter) is not torch.nn.Parameter:
            return f"a parameter is a {type(parameter).__name__}, not a plain torch.nn.Parameter"
        if parameter.dtype not in DTYPES:
            return f"a parameter is {parameter.dtype}, but must be one of {DTYPES}"
        if parameter.device.type not in ("cpu", "cuda", "meta"):
            return f"it is on {parameter.device}, but convtime computes only on cpu and cuda"
    return None


def _become(module: torch.nn.Module, own_class: type) -> None:
    if is_parametrized(module):
        # The class that parametrize created holds the properties, and copies may share it.
        members = {
            name: member
            for name, member in vars(type(module)).items()
            if name not in ("__dict__", "__weakref__")
        }
        own_class = type(f"Parametrized{own_class.__name__}", (own_class,), members)
    # torch 2.11's compiled code checks a class again only if the object's dict has changed. The
    # mark changes it.
    module.__class__ = own_class
