"""Find the convolutions that a model or a call runs, and the command that times them again."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import operator
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from convtime.conv.binding import BoundCall, WatchedConvolutions, convolutions_of
from convtime.conv.call import DTYPES, memory_format
from convtime.conv.problem import ConvLayer, ConvProblem, distinct
from convtime.conv.problem_line import ProblemLine
from convtime.core.dimensions import Numbers, per_dimension
from convtime.core.errors import InputError, first_line
from convtime.core.kinds import KINDS
from convtime.core.user_code import attempt, import_from_working_directory
from convtime.timing.candidate import Candidate

_LAYERS = tuple(getattr(torch.nn, kind.layer) for kind in KINDS)
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
        with torch.no_grad(), _RecordedConvolutions(module) as recorded:
            attempt(model.called(), lambda: module(model.example))
    finally:
        for part, training in modes.items():
            part.training = training
    if not recorded.layers:
        tail = f" except on empty inputs ({', '.join(recorded.empty)})" if recorded.empty else ""
        raise InputError(f"{model.called()} ran no convolution of torch.nn{tail}")
    return distinct(recorded.layers), tuple(recorded.empty)


def _import_factory(spec: str) -> Callable[[], object]:
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise InputError(f"the model is {spec!r}, but must look like package.module:factory")
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
    if not callable(factory):
        raise InputError(f"{spec} is a {type(factory).__name__}, but must be callable")
    return cast("Callable[[], object]", factory)


def is_source_of(spec: str, path: Path) -> bool:
    """Whether a file is the source of the module of an imported 'package.module:factory'."""
    source = getattr(sys.modules.get(spec.partition(":")[0]), "__file__", None)
    return source is not None and Path(source).resolve() == path.resolve()


class _RecordedConvolutions(WatchedConvolutions):
    """While entered, records every convolution that a model's layers compute; removes its hooks.

    It observes the functions that layers call, because hooks or subclasses can change the inputs
    and outputs of a layer.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(self._record)
        self.layers: list[ConvLayer] = []
        self.empty: list[str] = []
        self._model = model
        self._running: list[tuple[str, torch.nn.Module]] = []
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> _RecordedConvolutions:
        for name, module in self._model.named_modules():
            if isinstance(module, _LAYERS):
                layer = (name or type(module).__name__, module)
                starts = functools.partial(self._starts, layer)
                self._handles += [
                    module.register_forward_pre_hook(starts),
                    module.register_forward_hook(self._ends, prepend=True, always_call=True),
                ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()

    def _starts(self, layer: tuple[str, torch.nn.Module], *_call: object) -> None:
        self._running.append(layer)

    def _ends(self, module: torch.nn.Module, *_call: object) -> None:
        # If another hook failed earlier, this layer never started.
        if self._running and self._running[-1][1] is module:
            self._running.pop()

    def _record(self, call: BoundCall) -> None:
        if not self._running:
            return
        name, module = self._running[-1]
        if call.input.numel():
            self.layers.append(ConvLayer((name,), _problem(module, call)))
        else:
            self.empty.append(name)


def _problem(module: Any, call: BoundCall) -> ConvProblem:
    problem = problem_of(call)
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
        padding=_padding(module.padding, problem.rank),
        padding_mode=module.padding_mode,
    )


def problem_of(call: BoundCall) -> ConvProblem:
    rank = call.weight.dim() - 2
    # The functions also take a single example without a batch.
    batched = call.input if call.input.dim() == call.weight.dim() else call.input.unsqueeze(0)

    def numbers(given: Numbers) -> tuple[int, ...]:
        return tuple(map(int, per_dimension(given, rank)))

    return ConvProblem.of_sizes(
        tuple(batched.shape),
        tuple(call.weight.shape),
        groups=call.groups,
        transposed=call.transposed,
        stride=numbers(call.stride),
        padding=_padding(call.padding, rank),
        dilation=numbers(call.dilation),
        bias=call.bias is not None,
        output_padding=numbers(call.output_padding),
    )


def _padding(given: Numbers | str, rank: int) -> tuple[int, ...] | str:
    if given == "same":
        return "same"
    numbers: Any = 0 if given == "valid" else given
    return tuple(map(int, per_dimension(numbers, rank)))


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
    x = call.input
    names = {dtype: name for name, dtype in DTYPES.items()}
    nhwc = memory_format("nhwc", x.dim())
    layout = "nhwc" if x.is_contiguous(memory_format=nhwc) and not x.is_contiguous() else "nchw"
    return str(ProblemLine(problem_of(call), names.get(x.dtype), layout))
