"""2-D convolution problems, and where they come from: ResNet-50, a CSV file, or a model."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

import torch

from convtime._json import with_tuples

# PyTorch's own kernels index the sizes of a dimension with 32 bits in many places.
LARGEST_SIZE = 2**31 - 1
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class InputError(ValueError):
    """Something given by the user cannot be used; the text is one sentence for them."""


def whole_number(text: str, smallest: int = 1) -> int:
    """Reads a size that a user wrote.

    Raises:
        ValueError: It is no whole number from the smallest to LARGEST_SIZE.
    """
    # isdigit alone would let other scripts' digits through, and int() "1_0" and " 1"; int() also
    # refuses thousands of digits.
    if text.isascii() and text.isdigit() and len(text) <= 20:
        number = int(text)
        if smallest <= number <= LARGEST_SIZE:
            return number
    raise ValueError(f"{text[:40]!r}, but must be a whole number from {smallest} to {LARGEST_SIZE}")


@dataclass(frozen=True)
class ConvLayer:
    """One 2-D convolution problem; layers are equal when their problems are, whatever the names.

    Attributes:
        names: Every place where the problem occurs, e.g. module names of a model.
        batch: Images a call, N.
        in_channels: C.
        height: Of the input, H, in pixels.
        width: Of the input, W, in pixels.
        out_channels: K.
        kernel_size: (R, S), that is (height, width), in pixels; so are stride, padding, dilation.
        padding: Pixels on each side, or "same".

    Raises:
        InputError: The numbers do not make a convolution.
    """

    names: tuple[str, ...] = field(compare=False)
    batch: int
    in_channels: int
    height: int
    width: int
    out_channels: int
    kernel_size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] | str = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    bias: bool = False
    padding_mode: str = "zeros"

    def __post_init__(self) -> None:
        if not self.names:
            raise InputError("a layer needs at least one name")
        sizes: dict[str, Any] = {
            key: getattr(self, key)
            for key in ("batch", "in_channels", "height", "width", "out_channels", "groups")
        }
        for key in ("kernel_size", "stride", "dilation"):
            sizes[f"{key} (height)"], sizes[f"{key} (width)"] = getattr(self, key)
        for what, size in sizes.items():
            self._check_size(what, size, smallest=1)
        if self.padding != "same":
            if isinstance(self.padding, str):
                self._refuse(f"padding is {self.padding!r}, but must be two numbers or 'same'")
            for what, size in zip(("height", "width"), self.padding, strict=True):
                self._check_size(f"padding ({what})", size, smallest=0)
        elif self.stride != (1, 1):
            self._refuse(f"padding 'same' needs stride 1, not {self.stride}")
        if self.padding_mode not in PADDING_MODES:
            self._refuse(
                f"padding_mode is {self.padding_mode!r}, but must be one of {PADDING_MODES}"
            )
        for what in ("in_channels", "out_channels"):
            if sizes[what] % self.groups:
                self._refuse(f"{what} ({sizes[what]}) is not a multiple of groups ({self.groups})")
        for axis, what in enumerate(("height", "width")):
            if self.output_size[axis] < 1:
                self._refuse(
                    f"the kernel spans {self._kernel_span(axis)} pixels of {what}, more than the "
                    f"{self._padded_size(axis)} of the padded input"
                )

    def _refuse(self, why: str) -> NoReturn:
        raise InputError(f"layer {self.name}: {why}")

    def _check_size(self, what: str, size: int, *, smallest: int) -> None:
        if not smallest <= size <= LARGEST_SIZE:
            self._refuse(f"{what} is {size}, but must be between {smallest} and {LARGEST_SIZE}")

    def _kernel_span(self, axis: int) -> int:
        return self.dilation[axis] * (self.kernel_size[axis] - 1) + 1

    def _padded_size(self, axis: int) -> int:
        size = (self.height, self.width)[axis]
        if isinstance(self.padding, str):
            return size + self._kernel_span(axis) - 1
        return size + 2 * self.padding[axis]

    @property
    def name(self) -> str:
        """The first of the names."""
        return self.names[0]

    @property
    def count(self) -> int:
        """How often the problem occurs."""
        return len(self.names)

    @property
    def output_size(self) -> tuple[int, int]:
        """(P, Q): height and width of the output, in pixels."""
        rows, columns = (
            (self._padded_size(axis) - self._kernel_span(axis)) // self.stride[axis] + 1
            for axis in (0, 1)
        )
        return rows, columns

    @property
    def input_shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W)."""
        return self.batch, self.in_channels, self.height, self.width

    @property
    def flops(self) -> int:
        """Floating-point operations of one forward call: two a multiply-add, none for bias."""
        pixels = self.output_size[0] * self.output_size[1]
        taps = self.kernel_size[0] * self.kernel_size[1] * self.in_channels // self.groups
        return 2 * self.batch * self.out_channels * pixels * taps

    @property
    def label(self) -> str:
        """Short for tables: N×C×H×W → K, kernel R×S, and what differs from the default."""
        parts = [
            f"{'×'.join(map(str, self.input_shape))} → {self.out_channels},"
            f" {self.kernel_size[0]}×{self.kernel_size[1]}"
        ]
        for sign, value, default in (
            ("s", self.stride, (1, 1)),
            ("p", self.padding, (0, 0)),
            ("d", self.dilation, (1, 1)),
            ("g", self.groups, 1),
            ("", self.padding_mode, "zeros"),
        ):
            if value == default:
                continue
            if isinstance(value, tuple):
                value = value[0] if value[0] == value[1] else f"{value[0]}×{value[1]}"
            parts.append(f"{sign}{value}")
        if self.bias:
            parts.append("bias")
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Every field, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConvLayer:
        """Reverses to_dict, also after JSON has made lists of its tuples."""
        return cls(**with_tuples(data))


def distinct(layers: Iterable[ConvLayer]) -> list[ConvLayer]:
    """Each problem once, in order of first appearance, with the names of all its occurrences."""
    names: dict[ConvLayer, list[str]] = {}
    for layer in layers:
        names.setdefault(layer, []).extend(layer.names)
    return [dataclasses.replace(layer, names=tuple(found)) for layer, found in names.items()]


def square_layer(
    name: str,
    batch: int,
    c: int,
    k: int,
    kernel: int,
    size: int,
    stride: int = 1,
    *,
    padding: int | None = None,
    groups: int = 1,
    bias: bool = False,
) -> ConvLayer:
    """A layer of square images, padded so that stride 1 keeps the size unless said otherwise."""
    padding = kernel // 2 if padding is None else padding
    return ConvLayer(
        names=(name,),
        batch=batch,
        in_channels=c,
        height=size,
        width=size,
        out_channels=k,
        kernel_size=(kernel, kernel),
        stride=(stride, stride),
        padding=(padding, padding),
        groups=groups,
        bias=bias,
    )


def resnet50(batch: int = 32) -> list[ConvLayer]:
    """The distinct convolutions of ResNet-50 v1.5 for 224×224 images, named as torchvision does.

    v1.5 has the stride of a stage's first block in its 3×3 convolution, v1 had it in the first
    1×1. He et al., Deep Residual Learning for Image Recognition, table 1.
    """
    return distinct(_resnet50_convolutions(batch))


def _resnet50_convolutions(batch: int) -> Iterator[ConvLayer]:
    yield square_layer("conv1", batch, 3, 64, 7, 224, 2)
    channels, size = 64, 56  # after the 3×3 max-pool of stride 2
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        for block in range(blocks):
            prefix = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            yield square_layer(f"{prefix}.conv1", batch, channels, width, 1, size)
            yield square_layer(f"{prefix}.conv2", batch, width, width, 3, size, stride)
            yield square_layer(f"{prefix}.conv3", batch, width, 4 * width, 1, size // stride)
            if block == 0:
                name = f"{prefix}.downsample.0"
                yield square_layer(name, batch, channels, 4 * width, 1, size, stride)
            channels, size = 4 * width, size // stride


# Columns of a CSV file: those that must be there, and the others with their defaults; each with
# the smallest number that it may hold.
REQUIRED_COLUMNS = {
    "w": 1, "h": 1, "c": 1, "n": 1, "k": 1, "filter_w": 1, "filter_h": 1,
    "pad_w": 0, "pad_h": 0, "stride_w": 1, "stride_h": 1,
}  # fmt: skip
OPTIONAL_COLUMNS = {"groups": 1, "dilation_w": 1, "dilation_h": 1}


def from_csv(path: str | os.PathLike[str], batch: int | None = None) -> list[ConvLayer]:
    """Reads layers from a CSV file with a header, in the columns of DeepBench's convolutions.

    Columns, in any order: w, h, c, n, k, filter_w, filter_h, pad_w, pad_h, stride_w, stride_h;
    optional ones are name, groups, dilation_w, dilation_h. Problems that occur more than once are
    kept once.

    Args:
        path: Of the file, in UTF-8.
        batch: Takes the place of column n.

    Raises:
        InputError: The file cannot be read, or a line is broken; names the line.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: cannot be read, since it is not a regular file")
        # utf-8-sig: spreadsheets like to put a byte order mark before the first column's name.
        with path.open(newline="", encoding="utf-8-sig") as file:
            layers = distinct(_read_rows(path, csv.reader(file, strict=True), batch))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not a text file in UTF-8 (byte {error.start})") from error
    if not layers:
        raise InputError(f"{path}: has a header, but no layers below it")
    return layers


def _read_rows(path: Path, reader: Any, batch: int | None) -> Iterator[ConvLayer]:
    header: list[str] | None = None
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            where = f"{path}, line {reader.line_num}"
            if not any(cells):
                continue
            if header is None:
                header = cells
                _check_header(where, header)
            elif len(cells) != len(header):
                raise InputError(
                    f"{where}: has {len(cells)} values for the header's {len(header)} columns"
                )
            else:
                values = dict(zip(header, cells, strict=True))
                yield _read_layer(where, reader.line_num, values, batch)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: is not CSV ({error})") from error
    if header is None:
        raise InputError(
            f"{path}: is empty; the first line must name the columns {','.join(REQUIRED_COLUMNS)}"
        )


def _check_header(where: str, header: Sequence[str]) -> None:
    missing = [column for column in REQUIRED_COLUMNS if column not in header]
    if missing:
        raise InputError(f"{where}: the header lacks column(s) {', '.join(missing)}")
    allowed = {"name", *REQUIRED_COLUMNS, *OPTIONAL_COLUMNS}
    for column in header:
        if column not in allowed:
            raise InputError(
                f"{where}: column {column!r} is unknown; the optional ones are name, "
                f"{', '.join(OPTIONAL_COLUMNS)}"
            )
        if header.count(column) > 1:
            raise InputError(f"{where}: the header has column {column!r} more than once")


def _read_layer(where: str, line: int, row: dict[str, str], batch: int | None) -> ConvLayer:
    number = dict.fromkeys(OPTIONAL_COLUMNS, 1)
    for column, smallest in {**REQUIRED_COLUMNS, **OPTIONAL_COLUMNS}.items():
        if column not in row:
            continue
        try:
            number[column] = whole_number(row[column], smallest)
        except ValueError as error:
            raise InputError(f"{where}: column {column} is {error}") from error
    try:
        return ConvLayer(
            names=(row.get("name") or f"line {line}",),
            batch=number["n"] if batch is None else batch,
            in_channels=number["c"],
            height=number["h"],
            width=number["w"],
            out_channels=number["k"],
            kernel_size=(number["filter_h"], number["filter_w"]),
            stride=(number["stride_h"], number["stride_w"]),
            padding=(number["pad_h"], number["pad_w"]),
            dilation=(number["dilation_h"], number["dilation_w"]),
            groups=number["groups"],
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def from_model(
    spec: str, input_shape: Sequence[int], device: torch.device | str = "cpu"
) -> list[ConvLayer]:
    """Gathers every distinct call of a torch.nn.Conv2d in one forward pass of the user's model.

    The model is put into eval mode on `device` and called once, without gradients, on normally
    distributed random numbers of the type of its first floating-point parameter.

    Args:
        spec: "package.module:factory"; the factory takes no arguments and returns the model. The
            working directory can be imported from.
        input_shape: Of the model's only input, e.g. (8, 3, 224, 224).
        device: Where to run the model.

    Raises:
        InputError: Says which step failed: import, factory, forward pass, or no Conv2d in it.
    """
    factory = _import_factory(spec)
    with torch.no_grad():
        model = _attempt(f"{spec}()", factory)
        if not isinstance(model, torch.nn.Module):
            raise InputError(
                f"{spec}() returned a {type(model).__name__}, but must return a torch.nn.Module"
            )
        _attempt(f"moving the model of {spec} to {device}", lambda: model.to(device).eval())
        dtypes = (p.dtype for p in model.parameters() if p.is_floating_point())
        dtype = next(dtypes, torch.get_default_dtype())
        shape = tuple(input_shape)
        example = _attempt(
            f"making an input of shape {shape}",
            lambda: torch.randn(shape, dtype=dtype, device=device),
        )
        with _RecordedConvolutions(model) as calls:
            _attempt(f"the model of {spec}, called on shape {shape},", lambda: model(example))
    if not calls:
        raise InputError(f"the model of {spec} called no torch.nn.Conv2d on shape {shape}")
    return distinct(calls)


def first_line(error: BaseException) -> str:
    """An exception as one short line, since errors of PyTorch run over many."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _attempt(what: str, step: Callable[[], Any]) -> Any:
    """Runs a step of the user's code; whatever it raises, a script's exit too, becomes one line."""
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
    factory = _attempt(f"looking up {spec}", lambda: operator.attrgetter(attribute)(module))
    if not callable(factory):
        raise InputError(f"{spec} is a {type(factory).__name__}, but must be callable")
    return cast("Callable[[], object]", factory)


def is_source_of(spec: str, path: Path) -> bool:
    """Whether a file is the source of the module of an imported 'package.module:factory'."""
    source = getattr(sys.modules.get(spec.partition(":")[0]), "__file__", None)
    return source is not None and Path(source).resolve() == path.resolve()


class _RecordedConvolutions:
    """While entered, lists every torch.nn.Conv2d call in a model; leaves no hook behind."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> list[ConvLayer]:
        calls: list[ConvLayer] = []
        for name, module in self._model.named_modules():
            if isinstance(module, torch.nn.Conv2d):
                hook = self._recorder(name or type(module).__name__, calls)
                self._handles.append(module.register_forward_hook(hook, with_kwargs=True))
        return calls

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()

    @staticmethod
    def _recorder(name: str, calls: list[ConvLayer]) -> Callable[..., None]:
        def record(
            module: torch.nn.Conv2d, args: tuple[Any, ...], kwargs: dict[str, Any], _output: object
        ) -> None:
            x: torch.Tensor = args[0] if args else kwargs["input"]
            batch = x.shape[0] if x.dim() == 4 else 1  # Conv2d takes one image without batch too
            channels, height, width = x.shape[-3:]
            padding: Any = module.padding
            if padding == "valid":
                padding = (0, 0)
            calls.append(
                ConvLayer(
                    names=(name,),
                    batch=batch,
                    in_channels=channels,
                    height=height,
                    width=width,
                    out_channels=module.out_channels,
                    kernel_size=_pair(module.kernel_size),
                    stride=_pair(module.stride),
                    padding=padding if padding == "same" else _pair(padding),
                    dilation=_pair(module.dilation),
                    groups=module.groups,
                    bias=module.bias is not None,
                    padding_mode=module.padding_mode,
                )
            )

        return record


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    height, width = sizes
    return int(height), int(width)
