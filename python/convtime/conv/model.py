"""Find the convolutions that a model or a call runs, and the command that times them again."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import operator
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from convtime.conv.binding import LAYERS, BoundCall, WatchedConvolutions, convolutions_of
from convtime.conv.call import DTYPES, dtype_name, is_channels_last
from convtime.conv.problem import ConvLayer, ConvProblem, distinct
from convtime.conv.problem_line import ProblemLine
from convtime.core.checks import require
from convtime.core.errors import InputError, first_line
from convtime.core.user_code import attempt, import_from_working_directory
from convtime.timing.candidate import Candidate

# With more problems, no single one dominates the time.
_MOST_PROBLEMS = 8


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A user's model on its device, and an example input.

    Attributes:
        spec: The source of the model: "package.module:factory".
        module: The model.
        example: Normally distributed random values, with the dtype of the module's first
            floating-point parameter.
    """

    spec: str
    module: torch.nn.Module
    example: torch.Tensor

    def called(self) -> str:
        """Describe a call of the model, for error messages."""
        return f"the model of {self.spec}, called on shape {tuple(self.example.shape)},"


def load_model(
    spec: str, input_shape: Sequence[int], device: torch.device | str = "cpu"
) -> LoadedModel:
    """Create the user's model and an input for it.

    Args:
        spec: "package.module:factory"; the factory takes no arguments and returns the model.
            Modules in the working directory can be imported.
        input_shape: Shape of the model's only input, e.g. (8, 3, 224, 224).
        device: The device for both.

    Raises:
        InputError: A step failed: import, factory, moving, or creating the input. The message says
            which.
    """
    factory = _import_factory(spec)
    module = attempt(f"{spec}()", factory)
    require(
        isinstance(module, torch.nn.Module),
        f"{spec}() returned a {type(module).__name__}, but must return a torch.nn.Module",
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


def from_model(model: LoadedModel) -> tuple[list[ConvLayer], tuple[str, ...]]:
    """Collect the convolutions that the model's torch.nn layers compute in one forward pass.

    The model is called once in eval mode, without gradients; its previous mode is then restored.

    Returns:
        All distinct layers, at least one; and the names of the layers whose input was empty, one
        per call, e.g. for a batch of 0.

    Raises:
        InputError: The forward pass failed, or no convolution in it has a nonempty input.
    """
    module = model.module
    modes = {part: part.training for part in module.modules()}
    try:
        module.eval()
        with torch.no_grad(), _recorded_convolutions(module) as recorded:
            attempt(model.called(), lambda: module(model.example))
    finally:
        for part, training in modes.items():
            part.training = training
    layers = distinct(ConvLayer((name,), problem) for name, problem in recorded if problem)
    empty = tuple(name for name, problem in recorded if problem is None)
    tail = f" except on empty inputs ({', '.join(empty)})" if empty else ""
    require(layers, f"{model.called()} ran no convolution of torch.nn{tail}")
    return layers, empty


def _import_factory(spec: str) -> Callable[[], object]:
    module_name, _, attribute = spec.partition(":")
    require(
        module_name and attribute,
        f"the model is {spec!r}, but must look like package.module:factory",
    )
    import_from_working_directory()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        # Only if the module itself is missing, not one that it imports, is the spec wrong.
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise InputError(
                f"module {module_name!r} was not found in {os.getcwd()} or among the "
                "installed packages"
            ) from error
        raise InputError(f"importing {module_name!r} raised {first_line(error)}") from error
    factory = attempt(f"looking up {spec}", lambda: operator.attrgetter(attribute)(module))
    require(callable(factory), f"{spec} is a {type(factory).__name__}, but must be callable")
    return cast("Callable[[], object]", factory)


def is_source_of(spec: str, path: Path) -> bool:
    """Whether a file is the source of the module of an imported 'package.module:factory'."""
    source = getattr(sys.modules.get(spec.partition(":")[0]), "__file__", None)
    return source is not None and Path(source).resolve() == path.resolve()


@contextlib.contextmanager
def _recorded_convolutions(
    model: torch.nn.Module,
) -> Iterator[list[tuple[str, ConvProblem | None]]]:
    """Record every convolution that a model's layers compute, by layer; None for an empty input.

    It observes the functions that layers call, because hooks or subclasses can change the inputs
    and outputs of a layer.
    """
    recorded: list[tuple[str, ConvProblem | None]] = []
    running: list[tuple[str, torch.nn.Module]] = []

    def start(name: str, module: torch.nn.Module, _arguments: object) -> None:
        running.append((name, module))

    def end(module: torch.nn.Module, *_call: object) -> None:
        # If another hook failed earlier, this layer never started.
        if running and running[-1][1] is module:
            running.pop()

    def record(call: BoundCall) -> None:
        if running:
            name, module = running[-1]
            recorded.append((name, _problem(module, call) if call.input.numel() else None))

    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            if any(isinstance(module, kind) for kind in LAYERS):
                start_of = functools.partial(start, name or type(module).__name__)
                hooks.enter_context(module.register_forward_pre_hook(start_of))
                hooks.enter_context(
                    module.register_forward_hook(end, prepend=True, always_call=True)
                )
        with WatchedConvolutions(record):
            yield recorded


def _problem(module: Any, call: BoundCall) -> ConvProblem:
    problem = call.problem
    if module.padding_mode == "zeros":
        return problem
    # The layer has padded the input itself.
    ends = module._reversed_padding_repeated_twice[::-1]  # it lists the last dimension first
    size = tuple(
        length - sum(ends[2 * dim : 2 * dim + 2]) for dim, length in enumerate(problem.size)
    )
    return dataclasses.replace(
        problem,
        size=size,
        padding=(0,) if module.padding == "valid" else module.padding,
        padding_mode=module.padding_mode,
    )


def reproducer_of(candidate: Candidate) -> str:
    """Return the `convtime conv` command for the convolutions that one call runs.

    Empty if it runs none, or too many. This calls the candidate once.
    """
    if candidate.before is not None:
        candidate.before()
    called = convolutions_of(lambda: candidate.fn(*candidate.args, **candidate.kwargs))
    lines = list(dict.fromkeys(map(_line, called)))
    if not 0 < len(lines) <= _MOST_PROBLEMS:
        return ""
    return " ".join(["convtime conv", *lines, *(["--backward"] if candidate.backward else [])])


def _line(call: BoundCall) -> str:
    dtype = dtype_name(call.input.dtype)
    layout = "nhwc" if is_channels_last(call.input) else "nchw"
    return str(ProblemLine(call.problem, dtype if dtype in DTYPES else None, layout))
