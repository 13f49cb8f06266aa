"""Time a model's training step with PyTorch's convolutions and with convtime's."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any

import torch

from convtime import nn
from convtime.conv.call import DTYPES, memory_format
from convtime.conv.model import LoadedModel
from convtime.core import codec
from convtime.core.user_code import attempt
from convtime.layers.compare import measurement_row
from convtime.timing.candidate import differentiable
from convtime.timing.compare import compare
from convtime.timing.measurement import Measurement
from convtime.timing.options import Method
from convtime.timing.verdict import Ratio


@dataclass(frozen=True)
class StepResult:
    """A training step of a model, timed with PyTorch's convolutions and with convtime's.

    Attributes:
        model: The source of the model: "package.module:factory".
        input_shape: Shape of the model's input.
        pytorch: The time of the original model's step, from an idle device until it is idle again.
        convtime: The time of the step after convtime.nn.replace.
        ratio: convtime's time divided by PyTorch's.
        replaced: The report of convtime.nn.replace.
    """

    model: str
    input_shape: tuple[int, ...]
    dtype: str
    layout: str
    pytorch: Measurement
    convtime: Measurement
    ratio: Ratio
    replaced: str

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable dict; times in seconds, every sample included."""
        return codec.encode(self) | {
            "pytorch": measurement_row(self.pytorch),
            "convtime": measurement_row(self.convtime),
        }


def compare_step(
    model: LoadedModel, *, dtype: str = "float32", layout: str = "nchw", **timing: Any
) -> StepResult:
    """Time a forward and backward step of a model before and after convtime.nn.replace.

    The steps are interleaved. There is no loss and no optimizer: the gradient of every output is
    ones. Both models share their parameters.

    Args:
        model: The model; it is set to training mode and converted to dtype and layout.
        dtype: A key of convtime.conv.call.DTYPES.
        layout: A member of convtime.conv.call.LAYOUTS.
        **timing: Passed on to convtime.compare, e.g. budget in seconds.

    Raises:
        InputError: A step failed, e.g. because memory ran out.
    """
    device, called = model.example.device, model.called()
    theirs = attempt(f"converting {called}", lambda: _converted(model.module, dtype, layout))
    shared: dict[int, Any] = {id(parameter): parameter for parameter in theirs.parameters()}
    ours = attempt(f"copying {called}", lambda: copy.deepcopy(theirs, shared))
    replaced = nn.replace(ours)
    x = model.example.to(DTYPES[dtype])
    x = x.to(memory_format=memory_format(layout, x.dim()))
    models = {"pytorch": theirs, "convtime": ours}
    steps = {who: functools.partial(_step, module, x) for who, module in models.items()}
    for step in steps.values():
        attempt(
            f"a training step of {called}",
            step,
            advice="--no-backward times its layers' forward pass alone",
        )
    method: Method = "sync" if device.type == "cuda" else "cpu"
    timed = functools.partial(
        compare,
        steps,
        device=device,
        method=method,
        cache="warm",
        stop="interval",
        check=None,
        interference=False,
    )
    comparison = attempt(f"timing {called}", lambda: timed(**timing))
    theirs.zero_grad()  # frees the memory of the gradients
    return StepResult(
        model=model.spec,
        input_shape=tuple(x.shape),
        dtype=dtype,
        layout=layout,
        pytorch=comparison.measurements["pytorch"],
        convtime=comparison.measurements["convtime"],
        ratio=comparison.ratio("convtime"),
        replaced=str(replaced),
    )


def _converted(module: torch.nn.Module, dtype: str, layout: str) -> torch.nn.Module:
    module.to(DTYPES[dtype]).train()
    for parameter in module.parameters():
        # Module.to takes only one memory format, but parameters can have four or five dimensions.
        dense = memory_format(layout, parameter.dim())
        parameter.data = parameter.data.contiguous(memory_format=dense)
    return module


def _step(model: torch.nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    outputs = differentiable(model(x))
    if not outputs:
        raise RuntimeError(
            "no output has a gradient: its parameters may be frozen, it may run under no_grad, or "
            "return its tensors in something other than a tuple, list or dict, such as a dataclass"
        )
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
