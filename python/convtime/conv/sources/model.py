"""Convolution layers from a model: those that a forward pass of it calls."""

from __future__ import annotations

import dataclasses
import importlib
import operator
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from convtime.conv.problem import ConvLayer, ConvProblem, distinct
from convtime.core.errors import InputError, first_line
from convtime.core.kinds import KINDS


@dataclass(frozen=True)
class LoadedModel:
    """A model of the user, on its device, and an input that it takes.

    Attributes:
        spec: Where it is from: "package.module:factory".
        module: The model.
        example: Normally distributed random numbers, of the type of the module's first
            floating-point parameter.
    """

    spec: str
    module: torch.nn.Module
    example: torch.Tensor

    def called(self) -> str:
        """What a call of it is called in errors."""
        return f"the model of {self.spec}, called on shape {tuple(self.example.shape)},"


def load_model(
    spec: str, input_shape: Sequence[int], device: torch.device | str = "cpu"
) -> LoadedModel:
    """Makes the user's model and an input for it.

    Args:
        spec: "package.module:factory"; the factory takes no arguments and returns the model. The
            working directory can be imported from.
        input_shape: Of the model's only input, e.g. (8, 3, 224, 224).
        device: Where to put both.

    Raises:
        InputError: Says which step failed: import, factory, moving, or making the input.
    """
    factory = _import_factory(spec)
    module = attempt(f"{spec}()", factory)
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            f"{spec}() returned a {type(module).__name__}, but must return a torch.nn.Module"
        )
    attempt(f"moving the model of {spec} to {device}", lambda: module.to(device))
    dtypes = (p.dtype for p in module.parameters() if p.is_floating_point())
    dtype = next(dtypes, torch.get_default_dtype())
    shape = tuple(input_shape)
    example = attempt(
        f"making an input of shape {shape}",
        lambda: torch.randn(shape, dtype=dtype, device=device),
    )
    return LoadedModel(spec, module, example)


def from_model(model: LoadedModel) -> list[ConvLayer]:
    """Gathers every distinct call of a convolution of torch.nn in one forward pass of the model.

    The model is called once in eval mode, without gradients, and left in the mode that it was in.

    Raises:
        InputError: Its forward pass failed, or there is no convolution in it.
    """
    module = model.module
    modes = {part: part.training for part in module.modules()}
    try:
        module.eval()
        with torch.no_grad(), _RecordedConvolutions(module) as calls:
            attempt(model.called(), lambda: module(model.example))
    finally:
        for part, training in modes.items():
            part.training = training
    if not calls:
        raise InputError(f"{model.called()} ran no convolution of torch.nn")
    return distinct(calls)


def attempt(what: str, step: Callable[[], Any]) -> Any:
    """Runs a step of the user's code.

    Raises:
        InputError: Whatever the step raised, a script's exit too, as one line.
    """
    try:
        return step()
    except (Exception, SystemExit) as error:
        raise InputError(f"{what} raised {first_line(error)}") from error


def _import_factory(spec: str) -> Callable[[], object]:
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise InputError(f"the model is {spec!r}, but must look like package.module:factory")
    # A console script, unlike `python -m`, does not look into the working directory.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        # The module itself, or one that it imports? Only the first is a wrong spec.
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise InputError(
                f"module {module_name!r} was not found, neither in {os.getcwd()} nor among the "
                "installed packages"
            ) from error
        raise InputError(f"importing {module_name!r} raised {first_line(error)}") from error
    factory = attempt(f"looking up {spec}", lambda: operator.attrgetter(attribute)(module))
    if not callable(factory):
        raise InputError(f"{spec} is a {type(factory).__name__}, but must be callable")
    return cast("Callable[[], object]", factory)


def is_source_of(spec: str, path: Path) -> bool:
    """Whether a file is the source of the module of an imported 'package.module:factory'."""
    source = getattr(sys.modules.get(spec.partition(":")[0]), "__file__", None)
    return source is not None and Path(source).resolve() == path.resolve()


_CONVOLUTIONS = tuple(getattr(torch.nn, kind.layer) for kind in KINDS)


class _RecordedConvolutions:
    """While entered, lists every call of a convolution in a model; leaves no hook behind."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> list[ConvLayer]:
        calls: list[ConvLayer] = []
        for name, module in self._model.named_modules():
            if isinstance(module, _CONVOLUTIONS):
                hook = self._recorder(name or type(module).__name__, calls)
                self._handles.append(module.register_forward_hook(hook, with_kwargs=True))
        return calls

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()

    @staticmethod
    def _recorder(name: str, calls: list[ConvLayer]) -> Callable[..., None]:
        def record(
            module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
        ) -> None:
            x: torch.Tensor = args[0] if args else kwargs["input"]
            rank = len(module.kernel_size)
            padding = () if module.padding == "valid" else module.padding
            problem = ConvProblem(
                batch=x.shape[0] if x.dim() == rank + 2 else 1,  # they take one example too
                in_channels=module.in_channels,
                size=_numbers(x.shape[-rank:]),
                out_channels=module.out_channels,
                kernel_size=_numbers(module.kernel_size),
                stride=_numbers(module.stride),
                padding=padding if padding == "same" else _numbers(padding),
                dilation=_numbers(module.dilation),
                groups=module.groups,
                bias=module.bias is not None,
                padding_mode=module.padding_mode,
                transposed=module.transposed,
            )
            if module.transposed:
                # The module's own, or what the call's output_size made of it.
                sizes = zip(output.shape[-rank:], problem.output_size, strict=True)
                surplus = _numbers([size - least for size, least in sizes])
                problem = dataclasses.replace(problem, output_padding=surplus)
            calls.append(ConvLayer((name,), problem))

        return record


def _numbers(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(int, sizes))
