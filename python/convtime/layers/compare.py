"""Time PyTorch's convolution layers, and models with them, against convtime's."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from convtime import nn
from convtime.conv.binding import convolutions_of, prepare
from convtime.conv.call import DTYPES, FPROP, Flags, memory_format, same_bits
from convtime.conv.model import LoadedModel
from convtime.conv.problem import FORWARD, ConvLayer, ConvProblem
from convtime.conv.problem_line import ProblemLine
from convtime.core import codec
from convtime.core.checks import require
from convtime.core.errors import InputError, first_line
from convtime.core.user_code import attempt
from convtime.timing.activity import same_launches
from convtime.timing.candidate import differentiable
from convtime.timing.compare import compare
from convtime.timing.comparison import Comparison
from convtime.timing.measurement import Measurement
from convtime.timing.verdict import Ratio, Verdict

SIDES = ("pytorch", "convtime")
MARGIN = 0.01  # difference that counts as equal, relative to PyTorch's time


@dataclass(frozen=True)
class LayerResult:
    """A pass of one layer, timed in PyTorch and convtime with the same weights and input.

    The backward pass computes the gradients of input, weight and bias.

    Attributes:
        backend: The name of the ConvBackend that PyTorch selects for the layer, e.g. "Cudnn".
        pytorch: PyTorch's time.
        convtime: convtime's time.
        ratio: convtime's time divided by PyTorch's.
        bit_identical: Whether both results are bitwise identical.
        pytorch_repeats: Whether PyTorch's second call gives the same bits as its first.
        flags: The torch settings that decide which kernels may run.
        pass_name: A member of PASSES.
    """

    layer: ConvLayer
    dtype: str
    layout: str
    backend: str
    pytorch: Measurement
    convtime: Measurement
    ratio: Ratio
    bit_identical: bool
    pytorch_repeats: bool
    flags: Flags
    pass_name: str = FORWARD

    @property
    def title(self) -> str:
        """The layer's name, followed by the pass if it is not the forward pass."""
        return self.layer.title(self.pass_name)

    @property
    def flops(self) -> int:
        """Floating-point operations of a call; the backward pass counts as two convolutions."""
        return self.layer.problem.flops * (1 if self.pass_name == FORWARD else 2)

    @property
    def gflops(self) -> float:
        """The throughput of convtime, in 1e9 floating-point operations per second."""
        return self.flops / self.convtime.median / 1e9

    @property
    def verdict(self) -> Verdict:
        """Whether convtime is faster or slower than PyTorch by more than MARGIN."""
        return self.ratio.verdict(MARGIN)

    @property
    def contradiction(self) -> str:
        """Describes contradicting verdicts of busy time and span; empty if they agree."""
        sides = {side: getattr(self, side) for side in SIDES}
        return Comparison(sides, MARGIN).judge("convtime").contradiction

    @property
    def is_different(self) -> bool:
        """Whether the results differ bitwise although PyTorch's own result is reproducible."""
        return self.pytorch_repeats and not self.bit_identical

    @property
    def reproducer(self) -> str:
        """The command that repeats this measurement, without the device option."""
        line = ProblemLine(self.layer.problem, self.dtype, self.layout)
        return f"convtime conv {line}" + ("" if self.pass_name == FORWARD else " --backward")

    @property
    def same_kernels(self) -> bool | None:
        """Whether both launched the same kernels; None if kernels were not recorded."""
        theirs, ours = self.pytorch.activities, self.convtime.activities
        return same_launches(theirs, ours) if theirs or ours else None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable dict; times in seconds, every sample included."""
        return codec.encode(self) | {
            "pytorch": measurement_row(self.pytorch),
            "convtime": measurement_row(self.convtime),
            "verdict": self.verdict,
            "same_kernels": self.same_kernels,
            "reproducer": self.reproducer,
            "flops": self.flops,
            "gflops": self.gflops,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], provenance: Mapping[str, Any]) -> LayerResult:
        """Reverse to_dict.

        Args:
            data: The dict that to_dict returned; further keys are ignored.
            provenance: The provenance of the run, which to_dict omits.

        Raises:
            ValueError: A field is missing or has the wrong type.
        """
        sides = {
            who: {**data[who], "provenance": provenance}
            for who in ("pytorch", "convtime")
            if isinstance(data.get(who), Mapping)
        }
        return codec.decode(cls, {**data, **sides})


def measurement_row(measurement: Measurement) -> dict[str, Any]:
    """Encode a measurement without its provenance, which is the same for every row of a run."""
    fields = codec.encode(measurement)
    del fields["provenance"]
    # To the picosecond: no clock is finer, and further digits only enlarge the file.
    for name in (
        "seconds",
        "discarded",
        "raw_seconds",
        "busy_seconds",
        "span_seconds",
        "sum_seconds",
    ):
        fields[name] = [round(sample, 12) for sample in fields[name]]
    for activity in fields["activities"]:
        activity["seconds"] = [
            None if duration is None else round(duration, 12) for duration in activity["seconds"]
        ]
    statistics = ("median", "iqr", "min", "max")
    return {name: getattr(measurement, name) for name in statistics} | fields


def compare_layers(
    layers: Iterable[ConvLayer],
    *,
    device: torch.device,
    dtype: str = "float32",
    layout: str = "nchw",
    passes: Sequence[str] = (FORWARD,),
    **timing: Any,
) -> Iterator[LayerResult]:
    """Compare the layers one by one, lazily; free each layer's memory afterward.

    Args:
        layers: The problems.
        device: The device to run them on.
        dtype: A key of convtime.conv.call.DTYPES.
        layout: A member of convtime.conv.call.LAYOUTS, for input and weight.
        passes: Members of PASSES; each pass of a layer gives a separate result.
        **timing: Passed on to convtime.compare, e.g. budget in seconds.

    Raises:
        InputError: A layer does not fit in memory, or cannot run with this dtype and device.
    """
    for layer, pass_name in itertools.product(layers, passes):
        try:
            yield _compare_layer(layer, pass_name, device, dtype, layout, timing)
        finally:
            # Cached blocks of this layer's sizes rarely fit the next layer.
            torch.cuda.empty_cache()


@torch.no_grad()
def _compare_layer(
    layer: ConvLayer,
    pass_name: str,
    device: torch.device,
    dtype: str,
    layout: str,
    timing: dict[str, Any],
) -> LayerResult:
    where = f"layer {layer.name} ({layer.problem.label}) in {dtype} {layout} on {device}"
    no_memory = (
        f"{where} does not fit in memory; use a smaller batch (--batch, or the first number of "
        "--input)"
    )
    has_memory = device.type != "cpu" or _least_bytes(layer.problem, dtype) <= _host_bytes()
    require(has_memory, no_memory)
    try:
        ours, pytorch, x = build_layers(layer.problem, device, dtype, layout)
        modules = {"pytorch": pytorch, "convtime": ours}
        calls = {who: _call_of(module, x, pass_name) for who, module in modules.items()}
        reference = calls["pytorch"]()
        repeats = all(map(same_bits, reference, calls["pytorch"]()))
        identical = all(map(same_bits, reference, calls["convtime"]()))
        del reference
        comparison = compare(
            calls,
            device=device,
            check=None,  # the bits are compared above
            interference=False,
            stop="interval",  # independent of the verdict: the ratio itself is reported
            **timing,
        )
        backend = _backend(pytorch, x)
    except RuntimeError as error:
        # The CPU's allocator, unlike the GPU's, has no dedicated exception type.
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise InputError(no_memory) from error
        raise InputError(f"{where} cannot be run: {first_line(error)}") from error
    return LayerResult(
        layer=layer,
        dtype=dtype,
        layout=layout,
        backend=backend,
        pytorch=comparison.measurements["pytorch"],
        convtime=comparison.measurements["convtime"],
        ratio=comparison.ratio("convtime", baseline="pytorch"),
        bit_identical=identical,
        pytorch_repeats=repeats,
        flags=Flags.current(),
        pass_name=pass_name,
    )


def layer_call(
    problem: ConvProblem,
    side: str,
    *,
    device: torch.device,
    dtype: str,
    layout: str,
    pass_name: str = FORWARD,
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Return a pass of a side's layer, as :func:`compare_layers` times it.

    Args:
        problem: The convolution.
        side: A member of SIDES.
        device: The device to run it on.
        dtype: A key of convtime.conv.call.DTYPES.
        layout: A member of convtime.conv.call.LAYOUTS.
        pass_name: A member of PASSES.
    """
    ours, pytorch, x = build_layers(problem, device, dtype, layout)
    module = ours if side == "convtime" else pytorch
    if pass_name == FORWARD:
        module.requires_grad_(False)  # the caller does not use torch.no_grad
    return _call_of(module, x, pass_name)


def _call_of(
    module: torch.nn.Module, x: torch.Tensor, pass_name: str
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Return a pass of a layer without arguments; it can be called repeatedly.

    The backward pass returns the gradients of all tensors that the layer reads.
    """
    if pass_name == FORWARD:
        return lambda: (module(x),)
    inputs = [x.detach().requires_grad_(), *module.parameters()]
    with torch.enable_grad():
        output = module(inputs[0])
    generator = torch.Generator(x.device).manual_seed(0)
    grad_output = torch.empty_like(output).normal_(generator=generator)
    return lambda: torch.autograd.grad(output, inputs, grad_output, retain_graph=True)


@torch.no_grad()
def build_layers(
    problem: ConvProblem, device: torch.device, dtype: str, layout: str, seed: int = 0
) -> tuple[Any, Any, torch.Tensor]:
    """Build both modules with shared weights, and an input; the output's variance is about 1."""
    options: dict[str, Any] = {"padding_mode": problem.padding_mode}
    if problem.transposed:
        options = {"output_padding": problem.output_padding}

    def module(namespace: Any) -> Any:
        # The meta device costs no memory and leaves the global random state unchanged.
        return getattr(namespace, problem.kind.layer)(
            problem.in_channels,
            problem.out_channels,
            problem.kernel_size,
            stride=problem.stride,
            padding=problem.padding,
            dilation=problem.dilation,
            groups=problem.groups,
            bias=problem.bias,
            **options,
            device="meta",
            dtype=DTYPES[dtype],
        )

    dense = memory_format(layout, 2 + problem.rank)
    generator = torch.Generator(device).manual_seed(seed)
    pytorch = module(torch.nn).to_empty(device=device).to(memory_format=dense)
    fan_in = math.prod(problem.weight_shape[1:])
    for parameter in pytorch.parameters():
        parameter.normal_(0, fan_in**-0.5, generator=generator)
    ours = module(nn)
    ours.weight, ours.bias = pytorch.weight, pytorch.bias
    x = torch.empty(problem.input_shape, device=device, dtype=DTYPES[dtype], memory_format=dense)
    x.normal_(generator=generator)
    return ours, pytorch, x


def _backend(module: Any, x: torch.Tensor) -> str:
    (called,) = convolutions_of(lambda: module(x))
    tensors, call = prepare(called)
    return call.backend(FPROP, tensors)


def _least_bytes(problem: ConvProblem, dtype: str) -> int:
    """Return the memory of the weights, the input and the two outputs that are compared."""
    shapes = (problem.weight_shape, problem.input_shape, problem.output_shape, problem.output_shape)
    return sum(map(math.prod, shapes)) * DTYPES[dtype].itemsize


def _host_bytes() -> int:
    """Return the host's memory: an overcommitting system grants more and kills on use."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


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
    theirs = attempt(f"converting {called}", lambda: _convert(model.module, dtype, layout))
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
    comparison = attempt(
        f"timing {called}",
        lambda: compare(
            steps,
            device=device,
            method="sync" if device.type == "cuda" else "cpu",
            cache="warm",
            stop="interval",
            check=None,
            interference=False,
            **timing,
        ),
    )
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


def _convert(module: torch.nn.Module, dtype: str, layout: str) -> torch.nn.Module:
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
