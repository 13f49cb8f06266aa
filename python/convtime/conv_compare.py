"""Times torch.nn.Conv2d against convtime.nn.Conv2d, layer by layer, for `convtime compare`."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

import convtime
import convtime.nn
from convtime.comparison import Ratio
from convtime.conv_problem import backend_name, same_bits
from convtime.layers import ConvLayer, InputError, first_line
from convtime.measurement import SCHEMA, Measurement

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


@dataclass(frozen=True)
class LayerResult:
    """One layer, timed both ways on the same weights and the same input.

    Attributes:
        backend: What PyTorch chooses for the layer, by the name of its ConvBackend, e.g. "Cudnn".
        ratio: convtime's time over PyTorch's.
        bit_identical: Both outputs are the same bits.
        pytorch_repeats: PyTorch's own second call gives the same bits as its first.
        cudnn_flags: Those of torch.backends.cudnn that decide which kernels may run; None on a CPU.
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

    @property
    def gflops(self) -> float:
        """The rate of convtime, in 1e9 floating-point operations a second."""
        return self.layer.flops / self.convtime.median / 1e9

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; times in seconds, every sample included."""
        return {
            "layer": self.layer.to_dict(),
            "dtype": self.dtype,
            "layout": self.layout,
            "backend": self.backend,
            "pytorch": _measurement_dict(self.pytorch),
            "convtime": _measurement_dict(self.convtime),
            "ratio": self.ratio.value,
            "ratio_low": self.ratio.low,
            "ratio_high": self.ratio.high,
            "ratio_confidence": self.ratio.confidence,
            "bit_identical": self.bit_identical,
            "pytorch_repeats": self.pytorch_repeats,
            "cudnn_flags": self.cudnn_flags,
            "flops": self.layer.flops,
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
        )


_STATISTICS = ("median", "iqr", "min", "max")


def _measurement_dict(measurement: Measurement) -> dict[str, Any]:
    """A measurement less its provenance, which is the same for every layer of a run."""
    fields = measurement.to_dict()
    del fields["provenance"], fields["schema"]
    # To the picosecond: no clock ticks faster, and digits beyond it only swell the file.
    fields["seconds"] = [round(sample, 12) for sample in measurement.seconds]
    fields["raw_seconds"] = [round(sample, 12) for sample in measurement.raw_seconds]
    fields["spans"] = [round(span, 12) for span in measurement.spans]
    for activity in fields["activities"]:
        activity["seconds"] = [None if s is None else round(s, 12) for s in activity["seconds"]]
    return {key: getattr(measurement, key) for key in _STATISTICS} | fields


def _measurement_from_dict(data: Mapping[str, Any], provenance: Mapping[str, Any]) -> Measurement:
    fields = {key: value for key, value in data.items() if key not in _STATISTICS}
    return Measurement.from_dict({"schema": SCHEMA, "provenance": provenance, **fields})


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
    seed: int = 0,
    **timing: Any,
) -> Iterator[LayerResult]:
    """Compares layer after layer, each when it is asked for, and frees its memory after it.

    Args:
        layers: The problems.
        device: Where to run them.
        dtype: A key of DTYPES.
        layout: A key of LAYOUTS, of input and weight.
        seed: Of weights and input, anew for each layer.
        **timing: Passed on to convtime.compare, e.g. budget in seconds.

    Raises:
        InputError: A layer does not fit in memory, or cannot be run with this dtype and device.
    """
    for layer in layers:
        try:
            yield _compare_layer(layer, device, dtype, layout, seed, timing)
        finally:
            if device.type == "cuda":
                torch.cuda.empty_cache()  # blocks cut for this layer's sizes rarely fit the next's


@torch.no_grad()
def _compare_layer(
    layer: ConvLayer,
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
        reference = pytorch(x)
        repeats = same_bits(reference, pytorch(x))
        identical = same_bits(reference, ours(x))
        del reference
        comparison = convtime.compare(
            {
                "pytorch": functools.partial(pytorch, x),
                "convtime": functools.partial(ours, x),
            },
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
    )


def _build(
    layer: ConvLayer, device: torch.device, dtype: str, layout: str, seed: int
) -> tuple[convtime.nn.Conv2d, torch.nn.Conv2d, torch.Tensor]:
    """Both modules, of one set of weights, and an input; outputs have a variance of about 1."""

    def module(kind: type[torch.nn.Conv2d]) -> Any:
        # On the meta device it costs no memory, and does not touch the global random state.
        return kind(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            groups=layer.groups,
            bias=layer.bias,
            padding_mode=cast(Any, layer.padding_mode),  # typed as its four values
            device="meta",
            dtype=DTYPES[dtype],
        )

    memory_format = LAYOUTS[layout]
    generator = torch.Generator(device).manual_seed(seed)
    pytorch = module(torch.nn.Conv2d).to_empty(device=device).to(memory_format=memory_format)
    fan_in = pytorch.weight[0].numel()
    for parameter in pytorch.parameters():
        parameter.normal_(0, fan_in**-0.5, generator=generator)
    ours = module(convtime.nn.Conv2d)
    ours.weight, ours.bias = pytorch.weight, pytorch.bias
    x = torch.empty(
        layer.input_shape, device=device, dtype=DTYPES[dtype], memory_format=memory_format
    )
    x.normal_(generator=generator)
    return ours, pytorch, x


def _backend(module: torch.nn.Conv2d, x: torch.Tensor) -> str:
    """The backend that PyTorch chooses for a module, by torch's own function."""
    padding: Any = list(module.padding)
    if module.padding_mode != "zeros":
        x = torch.nn.functional.pad(
            x, module._reversed_padding_repeated_twice, mode=module.padding_mode
        )
        padding = [0, 0]
    elif module.padding == "same":
        padding = [
            dilation * (size - 1) // 2
            for dilation, size in zip(module.dilation, module.kernel_size, strict=True)
        ]
    return backend_name(
        x, module.weight, module.bias, module.stride, padding, module.dilation, module.groups
    )


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
    output = layer.batch * layer.out_channels * math.prod(layer.output_size)
    weights = layer.out_channels * layer.in_channels // layer.groups * math.prod(layer.kernel_size)
    return (weights + math.prod(layer.input_shape) + 2 * output) * DTYPES[dtype].itemsize


def _host_bytes() -> int:
    """The host's memory: a system that overcommits would grant more, and kill when it is used."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _is_out_of_memory(error: RuntimeError) -> bool:
    # The CPU's allocator, unlike the GPU's, has no exception type of its own.
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
