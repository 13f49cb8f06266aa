"""Convolution layers as data, and where they come from: ResNet-50, a CSV file, or a model."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import math
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
# What the spatial dimensions are called, by how many there are.
_AXES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


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
    """One convolution problem; layers are equal when their problems are, whatever the names.

    Attributes:
        names: Every place where the problem occurs, e.g. module names of a model.
        batch: Examples a call, N.
        in_channels: C.
        size: Of the input's one to three spatial dimensions, e.g. (height, width) in pixels.
        out_channels: K.
        kernel_size: One number a spatial dimension; so are stride, padding and dilation.
        stride: 1 everywhere unless given.
        padding: On each side, 0 everywhere unless given; or "same".
        dilation: 1 everywhere unless given.
        transposed: Whether it is a transposed convolution.
        output_padding: Of a transposed one, 0 everywhere unless given.

    Raises:
        InputError: The numbers do not make a convolution.
    """

    names: tuple[str, ...] = field(compare=False)
    batch: int
    in_channels: int
    size: tuple[int, ...]
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] | str = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    bias: bool = False
    padding_mode: str = "zeros"
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.names:
            raise InputError("a layer needs at least one name")
        if self.rank not in _AXES:
            self._refuse(f"size is {self.size}, but must be one, two or three numbers")
        for key in ("batch", "in_channels", "out_channels", "groups"):
            self._check_size(key, getattr(self, key), smallest=1)
        for what, size in zip(_AXES[self.rank], self.size, strict=True):
            self._check_size(what, size, smallest=1)
        for key, usual in (
            ("kernel_size", 1), ("stride", 1), ("dilation", 1), ("padding", 0),
            ("output_padding", 0),
        ):  # fmt: skip
            self._complete(key, usual)
        if self.padding == "same" and self.stride != (1,) * self.rank:
            self._refuse(f"padding 'same' needs stride 1, not {self.stride}")
        if self.padding_mode not in PADDING_MODES:
            self._refuse(
                f"padding_mode is {self.padding_mode!r}, but must be one of {PADDING_MODES}"
            )
        for key in ("in_channels", "out_channels"):
            if getattr(self, key) % self.groups:
                self._refuse(
                    f"{key} ({getattr(self, key)}) is not a multiple of groups ({self.groups})"
                )
        self._check_kind()
        for axis, what in enumerate(_AXES[self.rank]):
            if self.output_size[axis] < 1:
                self._refuse(self._why_no_output(axis, what))

    def _complete(self, key: str, usual: int) -> None:
        """Checks a parameter of every dimension, and fills it in where it is not given."""
        given = getattr(self, key)
        if isinstance(given, str):
            if key != "padding" or given != "same":
                self._refuse(f"{key} is {given!r}, but must be {self.rank} number(s) or 'same'")
            return
        numbers = given or (usual,) * self.rank
        if len(numbers) != self.rank:
            self._refuse(f"{key} is {numbers}, but must be {self.rank} number(s), as size is")
        for axis, number in zip(_AXES[self.rank], numbers, strict=True):
            self._check_size(f"{key} ({axis})", number, smallest=usual)
        object.__setattr__(self, key, numbers)

    def _check_kind(self) -> None:
        """What only a transposed convolution may have, and what only another."""
        if not self.transposed:
            if any(self.output_padding):
                self._refuse(
                    f"output_padding is {self.output_padding}, but only a transposed one has any"
                )
            return
        if isinstance(self.padding, str) or self.padding_mode != "zeros":
            self._refuse("a transposed one has no padding but zeros, given in numbers")
        for extra, stride, dilation in zip(
            self.output_padding, self.stride, self.dilation, strict=True
        ):
            if extra >= max(stride, dilation):
                self._refuse(
                    f"output_padding is {self.output_padding}, but must be below stride "
                    f"{self.stride} or dilation {self.dilation}"
                )

    def _why_no_output(self, axis: int, what: str) -> str:
        if self.transposed:
            return f"its padding leaves nothing of the output's {what}"
        return (
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
        if isinstance(self.padding, str):
            return self.size[axis] + self._kernel_span(axis) - 1
        return self.size[axis] + 2 * self.padding[axis]

    @property
    def name(self) -> str:
        """The first of the names."""
        return self.names[0]

    @property
    def count(self) -> int:
        """How often the problem occurs."""
        return len(self.names)

    @property
    def rank(self) -> int:
        """The number of spatial dimensions."""
        return len(self.size)

    @property
    def kind(self) -> str:
        """The name of the class of torch.nn, e.g. "ConvTranspose2d"."""
        return f"Conv{'Transpose' if self.transposed else ''}{self.rank}d"

    @property
    def output_size(self) -> tuple[int, ...]:
        """Of the output's spatial dimensions."""
        return tuple(map(self._output_size, range(self.rank)))

    def _output_size(self, axis: int) -> int:
        span = self._kernel_span(axis)
        if self.transposed:
            assert not isinstance(self.padding, str)
            grown = (self.size[axis] - 1) * self.stride[axis] + span
            return grown - 2 * self.padding[axis] + self.output_padding[axis]
        return (self._padded_size(axis) - span) // self.stride[axis] + 1

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(N, C, *spatial)."""
        return self.batch, self.in_channels, *self.size

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(N, K, *spatial)."""
        return self.batch, self.out_channels, *self.output_size

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """(K, C / groups, *kernel_size); transposed (C, K / groups, *kernel_size)."""
        first, second = self.out_channels, self.in_channels
        if self.transposed:
            first, second = second, first
        return first, second // self.groups, *self.kernel_size

    @property
    def flops(self) -> int:
        """Floating-point operations of one forward call: two a multiply-add, none for bias."""
        # Each element on the side that the kernel is laid at meets each of the kernel's elements.
        elements = math.prod(self.input_shape if self.transposed else self.output_shape)
        return 2 * elements * math.prod(self.weight_shape[1:])

    @property
    def label(self) -> str:
        """Short for tables: N×C×spatial → K, kernel, and what differs from the default."""
        parts = [
            f"{'×'.join(map(str, self.input_shape))} → {self.out_channels},"
            f" {'×'.join(map(str, self.kernel_size))}"
        ]
        if self.transposed:
            parts.append("transposed")
        for sign, value, default in (
            ("s", self.stride, (1,) * self.rank),
            ("p", self.padding, (0,) * self.rank),
            ("d", self.dilation, (1,) * self.rank),
            ("o", self.output_padding, (0,) * self.rank),
            ("g", self.groups, 1),
            ("", self.padding_mode, "zeros"),
        ):
            if value == default:
                continue
            if isinstance(value, tuple):
                value = value[0] if len(set(value)) == 1 else "×".join(map(str, value))
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
        fields = with_tuples(data)
        if "height" in fields:  # written when there were but two dimensions
            fields["size"] = (fields.pop("height"), fields.pop("width"))
        return cls(**fields)


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
        size=(size, size),
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
            size=(number["h"], number["w"]),
            out_channels=number["k"],
            kernel_size=(number["filter_h"], number["filter_w"]),
            stride=(number["stride_h"], number["stride_w"]),
            padding=(number["pad_h"], number["pad_w"]),
            dilation=(number["dilation_h"], number["dilation_w"]),
            groups=number["groups"],
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


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
    modes = {one: one.training for one in module.modules()}
    try:
        module.eval()
        with torch.no_grad(), _RecordedConvolutions(module) as calls:
            attempt(model.called(), lambda: module(model.example))
    finally:
        for one, training in modes.items():
            one.training = training
    if not calls:
        raise InputError(f"{model.called()} ran no convolution of torch.nn")
    return distinct(calls)


def first_line(error: BaseException) -> str:
    """An exception as one short line, since errors of PyTorch run over many."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


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


_CONVOLUTIONS = (
    torch.nn.Conv1d,
    torch.nn.Conv2d,
    torch.nn.Conv3d,
    torch.nn.ConvTranspose1d,
    torch.nn.ConvTranspose2d,
    torch.nn.ConvTranspose3d,
)


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
            layer = ConvLayer(
                names=(name,),
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
                sizes = zip(output.shape[-rank:], layer.output_size, strict=True)
                surplus = _numbers([size - least for size, least in sizes])
                layer = dataclasses.replace(layer, output_padding=surplus)
            calls.append(layer)

        return record


def _numbers(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(int, sizes))
