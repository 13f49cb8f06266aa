"""Times PyTorch's convolutions against convtime's, layers and whole models: `convtime compare`."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import convtime
import convtime.nn
from convtime import ops
from convtime.comparison import Ratio
from convtime.conv_problem import backend_name, same_bits
from convtime.explain import kernels_of, same_launches
from convtime.layers import ConvLayer, InputError, LoadedModel, attempt, first_line
from convtime.measurement import Measurement

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
LAYOUTS = ("nchw", "nhwc")
PASSES = FORWARD, BACKWARD = ("forward", "backward")
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def memory_format(layout: str, dimensions: int) -> torch.memory_format:
    """That of a layout, a member of LAYOUTS, for tensors of so many dimensions.

    Where PyTorch has no channels_last, with three of them, both layouts are contiguous.
    """
    contiguous = torch.contiguous_format
    return _CHANNELS_LAST.get(dimensions, contiguous) if layout == "nhwc" else contiguous


@dataclass(frozen=True)
class LayerResult:
    """A pass of one layer, timed both ways on the same weights and the same input.

    The backward pass gives the gradients of input, weight and bias.

    Attributes:
        backend: What PyTorch chooses for the layer, by the name of its ConvBackend, e.g. "Cudnn".
        ratio: convtime's time over PyTorch's.
        bit_identical: Both results are the same bits.
        pytorch_repeats: PyTorch's own second call gives the same bits as its first.
        cudnn_flags: Those of torch.backends.cudnn that decide which kernels may run; None on a CPU.
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
    cudnn_flags: Mapping[str, bool] | None
    pass_name: str = FORWARD

    @property
    def title(self) -> str:
        """The layer's name, and the pass unless it is the forward one."""
        return self.layer.name if self.pass_name == FORWARD else f"{self.layer.name} backward"

    @property
    def flops(self) -> int:
        """Floating-point operations of a call: the backward pass is two convolutions."""
        return self.layer.flops * (1 if self.pass_name == FORWARD else 2)

    @property
    def gflops(self) -> float:
        """The rate of convtime, in 1e9 floating-point operations a second."""
        return self.flops / self.convtime.median / 1e9

    @property
    def same_kernels(self) -> bool | None:
        """Whether both launched the same kernels; None where kernels were not recorded."""
        theirs, ours = kernels_of(self.pytorch), kernels_of(self.convtime)
        return same_launches(theirs, ours) if theirs or ours else None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; times in seconds, every sample included."""
        return {
            "layer": self.layer.to_dict(),
            "dtype": self.dtype,
            "layout": self.layout,
            "pass": self.pass_name,
            "backend": self.backend,
            "pytorch": _measurement_dict(self.pytorch),
            "convtime": _measurement_dict(self.convtime),
            "ratio": self.ratio.value,
            "ratio_low": self.ratio.low,
            "ratio_high": self.ratio.high,
            "ratio_confidence": self.ratio.confidence,
            "bit_identical": self.bit_identical,
            "pytorch_repeats": self.pytorch_repeats,
            "same_kernels": self.same_kernels,
            "cudnn_flags": self.cudnn_flags,
            "flops": self.flops,
            "gflops": self.gflops,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], provenance: Mapping[str, Any]) -> LayerResult:
        """Reverses to_dict.

        Args:
            data: What to_dict gave; further keys are ignored.
            provenance: Of the run that it is from, which to_dict leaves out.
        """
        return cls(
            layer=ConvLayer.from_dict(data["layer"]),
            pytorch=_measurement_from_dict(data["pytorch"], provenance),
            convtime=_measurement_from_dict(data["convtime"], provenance),
            ratio=Ratio(
                data["ratio"], data["ratio_low"], data["ratio_high"], data["ratio_confidence"]
            ),
            dtype=data["dtype"],
            layout=data["layout"],
            backend=data["backend"],
            bit_identical=data["bit_identical"],
            pytorch_repeats=data["pytorch_repeats"],
            cudnn_flags=data["cudnn_flags"],
            pass_name=data.get("pass", FORWARD),  # older files have no other
        )


_STATISTICS = ("median", "iqr", "min", "max")


def _measurement_dict(measurement: Measurement) -> dict[str, Any]:
    """A measurement less its provenance, which is the same for every layer of a run."""
    fields = measurement.to_dict()
    del fields["provenance"]
    # To the picosecond: no clock ticks faster, and digits beyond it only swell the file.
    fields["seconds"] = [round(sample, 12) for sample in measurement.seconds]
    fields["raw_seconds"] = [round(sample, 12) for sample in measurement.raw_seconds]
    fields["spans"] = [round(span, 12) for span in measurement.spans]
    for activity in fields["activities"]:
        activity["seconds"] = [None if s is None else round(s, 12) for s in activity["seconds"]]
    return {key: getattr(measurement, key) for key in _STATISTICS} | fields


def _measurement_from_dict(data: Mapping[str, Any], provenance: Mapping[str, Any]) -> Measurement:
    fields = {key: value for key, value in data.items() if key not in _STATISTICS}
    # Measurements of schema 2 were written without its number.
    return Measurement.from_dict({"schema": 2, "provenance": provenance, **fields})


def find_device(name: str | None = None) -> torch.device:
    """The device of that name; without one, the current GPU, or the CPU where there is none.

    Raises:
        InputError: There is no such device here.
    """
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"device is {name!r}, but must be cpu, cuda or cuda:N")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            why = (
                "this PyTorch was built without CUDA"
                if torch.version.cuda is None
                else "PyTorch finds no GPU that it can use"
            )
            raise InputError(f"device {name!r} is not available: {why}; use --device cpu")
        present = torch.cuda.device_count()
        if device.index is not None and device.index >= present:
            raise InputError(f"device {name!r} is not available: this machine has {present} GPU(s)")
    return device


def compare_layers(
    layers: Iterable[ConvLayer],
    *,
    device: torch.device,
    dtype: str = "float32",
    layout: str = "nchw",
    passes: Sequence[str] = (FORWARD,),
    seed: int = 0,
    **timing: Any,
) -> Iterator[LayerResult]:
    """Compares layer after layer, each when it is asked for, and frees its memory after it.

    Args:
        layers: The problems.
        device: Where to run them.
        dtype: A key of DTYPES.
        layout: A member of LAYOUTS, of input and weight.
        passes: Members of PASSES; each of a layer's is a result of its own.
        seed: Of weights and input, anew for each layer.
        **timing: Passed on to convtime.compare, e.g. budget in seconds.

    Raises:
        InputError: A layer does not fit in memory, or cannot be run with this dtype and device.
    """
    for layer in layers:
        for pass_name in passes:
            try:
                yield _compare_layer(layer, pass_name, device, dtype, layout, seed, timing)
            finally:
                if device.type == "cuda":
                    # Blocks cut for this layer's sizes rarely fit the next's.
                    torch.cuda.empty_cache()


@torch.no_grad()
def _compare_layer(
    layer: ConvLayer,
    pass_name: str,
    device: torch.device,
    dtype: str,
    layout: str,
    seed: int,
    timing: dict[str, Any],
) -> LayerResult:
    where = f"layer {layer.name} ({layer.label}) in {dtype} {layout} on {device}"
    no_memory = (
        f"{where} does not fit in memory; use a smaller batch (--batch, or the first number of "
        "--input)"
    )
    if device.type == "cpu" and _least_bytes(layer, dtype) > _host_bytes():
        raise InputError(no_memory)
    try:
        ours, pytorch, x = _build(layer, device, dtype, layout, seed)
        modules = {"pytorch": pytorch, "convtime": ours}
        calls = {who: _call_of(module, x, pass_name) for who, module in modules.items()}
        reference = calls["pytorch"]()
        repeats = all(map(same_bits, reference, calls["pytorch"]()))
        identical = all(map(same_bits, reference, calls["convtime"]()))
        del reference
        comparison = convtime.compare(
            calls,
            device=device,
            stop="interval",  # whatever the verdict: the ratio itself is reported
            **timing,
        )
        backend = _backend(pytorch, x)
    except RuntimeError as error:
        if _is_out_of_memory(error):
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
        cudnn_flags=_cudnn_flags() if device.type == "cuda" else None,
        pass_name=pass_name,
    )


def _call_of(
    module: torch.nn.Module, x: torch.Tensor, pass_name: str
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """A pass of a layer without arguments, which can be called again and again.

    The backward pass gives the gradients of all that the layer reads.
    """
    if pass_name == FORWARD:
        return lambda: (module(x),)
    inputs = [x.detach().requires_grad_(), *module.parameters()]
    with torch.enable_grad():
        output = module(inputs[0])
    generator = torch.Generator(x.device).manual_seed(0)
    grad_output = torch.empty_like(output).normal_(generator=generator)
    return lambda: torch.autograd.grad(output, inputs, grad_output, retain_graph=True)


def _build(
    layer: ConvLayer, device: torch.device, dtype: str, layout: str, seed: int
) -> tuple[Any, Any, torch.Tensor]:
    """Both modules, of one set of weights, and an input; outputs have a variance of about 1."""
    options: dict[str, Any] = {"padding_mode": layer.padding_mode}
    if layer.transposed:
        options = {"output_padding": layer.output_padding}

    def module(namespace: Any) -> Any:
        # On the meta device it costs no memory, and does not touch the global random state.
        return getattr(namespace, layer.kind)(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            groups=layer.groups,
            bias=layer.bias,
            **options,
            device="meta",
            dtype=DTYPES[dtype],
        )

    dense = memory_format(layout, 2 + layer.rank)
    generator = torch.Generator(device).manual_seed(seed)
    pytorch = module(torch.nn).to_empty(device=device).to(memory_format=dense)
    fan_in = math.prod(layer.weight_shape[1:])
    for parameter in pytorch.parameters():
        parameter.normal_(0, fan_in**-0.5, generator=generator)
    ours = module(convtime.nn)
    ours.weight, ours.bias = pytorch.weight, pytorch.bias
    x = torch.empty(layer.input_shape, device=device, dtype=DTYPES[dtype], memory_format=dense)
    x.normal_(generator=generator)
    return ours, pytorch, x


def _backend(module: Any, x: torch.Tensor) -> str:
    """The backend that PyTorch chooses for a module, by torch's own function."""
    padding = module.padding
    if module.padding_mode != "zeros":
        x = torch.nn.functional.pad(
            x, module._reversed_padding_repeated_twice, mode=module.padding_mode
        )
        padding = [0] * len(module.kernel_size)
    elif isinstance(padding, str):
        padding, _ = ops.resolve_padding(
            "compare",
            len(module.kernel_size),
            module.weight.shape,
            module.stride,
            padding,
            module.dilation,
        )
    return backend_name(
        x,
        module.weight,
        module.bias,
        module.stride,
        padding,
        module.dilation,
        module.transposed,
        module.output_padding,
        module.groups,
    )


@dataclass(frozen=True)
class StepResult:
    """A training step of a model, timed with PyTorch's convolutions and with convtime's.

    Attributes:
        model: Where the model is from: "package.module:factory".
        input_shape: Of its input.
        pytorch: The step as the model is, from an idle device until it is idle again.
        convtime: The step after convtime.nn.replace.
        ratio: convtime's time over PyTorch's.
        replaced: What convtime.nn.replace said.
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
        """Ready for JSON; times in seconds, every sample included."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {
            "pytorch": _measurement_dict(self.pytorch),
            "convtime": _measurement_dict(self.convtime),
            "ratio": dataclasses.asdict(self.ratio),
        }


def compare_step(
    model: LoadedModel, *, dtype: str = "float32", layout: str = "nchw", **timing: Any
) -> StepResult:
    """Times a step of a model, forward and backward, before and after convtime.nn.replace.

    The steps are interleaved. There is no loss and no optimizer: the gradient of every output is
    ones. Both models share their parameters.

    Args:
        model: Put into training mode, and converted to dtype and layout.
        dtype: A key of DTYPES.
        layout: A member of LAYOUTS.
        **timing: Passed on to convtime.compare, e.g. budget in seconds.

    Raises:
        InputError: A step failed, e.g. for want of memory.
    """
    device, called = model.example.device, model.called()
    theirs = attempt(f"converting {called}", lambda: _converted(model.module, dtype, layout))
    shared: dict[int, Any] = {id(one): one for one in theirs.parameters()}
    ours = attempt(f"copying {called}", lambda: copy.deepcopy(theirs, shared))
    replaced = convtime.nn.replace(ours)
    x = model.example.to(DTYPES[dtype])
    x = x.to(memory_format=memory_format(layout, x.dim()))
    models = {"pytorch": theirs, "convtime": ours}
    steps = {who: functools.partial(_step, one, x) for who, one in models.items()}
    for step in steps.values():
        attempt(f"a training step of {called}", step)
    method = "sync" if device.type == "cuda" else "cpu"
    timed = functools.partial(
        convtime.compare, steps, device=device, method=method, cache="warm", stop="interval"
    )
    comparison = attempt(f"timing {called}", lambda: timed(**timing))
    theirs.zero_grad()  # its gradients are memory
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
        # Not by Module.to, which takes one format for parameters of four and of five dimensions.
        dense = memory_format(layout, parameter.dim())
        parameter.data = parameter.data.contiguous(memory_format=dense)
    return module


def _step(model: torch.nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    outputs = [
        one
        for one in torch.utils._pytree.tree_leaves(model(x))
        if isinstance(one, torch.Tensor) and one.requires_grad
    ]
    if not outputs:
        raise RuntimeError("no output has a gradient")
    torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])


def _cudnn_flags() -> dict[str, bool]:
    flags: Any = torch.backends.cudnn
    return {
        "benchmark": flags.benchmark,
        "deterministic": flags.deterministic or torch.are_deterministic_algorithms_enabled(),
        # Not flags.allow_tf32, which raises where convolutions and RNNs differ.
        "allow_tf32": flags.conv.fp32_precision == "tf32",
    }


def _least_bytes(layer: ConvLayer, dtype: str) -> int:
    """What the weights, the input and two outputs that are compared take."""
    shapes = (layer.weight_shape, layer.input_shape, layer.output_shape, layer.output_shape)
    return sum(map(math.prod, shapes)) * DTYPES[dtype].itemsize


def _host_bytes() -> int:
    """The host's memory: a system that overcommits would grant more, and kill when it is used."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _is_out_of_memory(error: RuntimeError) -> bool:
    # The CPU's allocator, unlike the GPU's, has no exception type of its own.
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
