"""Has convtime compute the convolution layers of a model, and undoes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from convtime.core.kinds import KINDS
from convtime.nn import layers
from convtime.ops.arguments import DTYPES
from convtime.ops.flops import register_formulas

_OURS: dict[type, type] = {
    getattr(torch.nn, kind.layer): getattr(layers, kind.layer) for kind in KINDS
}
_PYTORCHS = {ours: pytorchs for pytorchs, ours in _OURS.items()}


@dataclass(frozen=True)
class Replacement:
    """What :func:`replace` did to a model.

    Attributes:
        replaced: Names of the layers that were replaced, as ``named_modules`` has them; "" is the
            model itself.
        left: The convolution layers that were not, as (name, why).
    """

    replaced: tuple[str, ...]
    left: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} convolution layers replaced, {len(self.left)} left"]
        lines += [f"  {name or 'the model itself'} is left: {why}" for name, why in self.left]
        return "\n".join(lines)


def replace(model: torch.nn.Module) -> Replacement:
    """Has convtime compute a model's convolution layers, in place.

    Each layer stays the object that it is and becomes one of this module's classes. Its parameters,
    buffers, hooks, name and flags are what they were, and so is what refers to them: optimizers,
    wrappers such as DistributedDataParallel. :func:`restore` undoes it. Calls of
    ``torch.nn.functional`` are no layers, and are left as they are. ``torch.jit.script`` cannot
    compile a replaced model; ``torch.jit.trace`` and ``torch.export`` take it, and a
    ``FlopCounterMode`` that is made afterwards counts it as before.

    Args:
        model: the model, or a wrapper of it.

    Returns:
        The layers that were replaced, and those that were left, with the reason: subclasses with
        code of their own, lazy layers before their first call, quantised and scripted ones, a
        forward that is replaced on the object, and parameters that convtime's ops do not take.

    Raises:
        TypeError: if ``model`` is no module.
    """
    _check_module("replace", model)
    register_formulas()
    replaced, left = [], []
    for name, module in model.named_modules():
        if not _is_convolution(module) or _own_class(module) in _PYTORCHS:
            continue
        why = _why_not(module)
        if why:
            left.append((name, why))
        else:
            _become(module, _OURS[_own_class(module)])
            replaced.append(name)
    return Replacement(tuple(replaced), tuple(left))


def restore(model: torch.nn.Module) -> tuple[str, ...]:
    """Undoes :func:`replace`: convtime's layers become PyTorch's again, in place.

    Their ``policy`` is dropped.

    Args:
        model: the model, or a wrapper of it.

    Returns:
        The names of the layers that were restored.

    Raises:
        TypeError: if ``model`` is no module.
    """
    _check_module("restore", model)
    restored = []
    for name, module in model.named_modules():
        if _own_class(module) in _PYTORCHS:
            _become(module, _PYTORCHS[_own_class(module)])
            vars(module).pop("policy", None)
            restored.append(name)
    return tuple(restored)


def _check_module(function: str, model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{function}: model must be a torch.nn.Module, got {type(model).__name__}")


def _is_convolution(module: torch.nn.Module) -> bool:
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
    own_class = _own_class(module)
    if isinstance(module, LazyModuleMixin):
        return f"a {own_class.__name__} has no shapes before its first call"
    if isinstance(module, torch.jit.ScriptModule):
        return "TorchScript has compiled it"
    if own_class not in _OURS and own_class not in _PYTORCHS:
        return f"{own_class.__module__}.{own_class.__qualname__} is not a class of torch.nn's own"
    for function in ("forward", "_conv_forward"):
        if function in vars(module):
            return f"its {function} is replaced on the object"
    return None


def _why_not(module: torch.nn.Module) -> str | None:
    """Why a convolution layer of PyTorch's cannot be replaced."""
    why = why_not_plain(module)
    if why:
        return why
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
    module.__class__ = own_class
    # torch 2.11's compiled code looks at a class again only where the object's dict has changed.
    vars(module)["_class_exchanged"] = True
    del vars(module)["_class_exchanged"]
