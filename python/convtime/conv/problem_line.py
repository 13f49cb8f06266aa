"""A convolution as one line that can be pasted: ``conv2d:n64c64h56w56k64r3s3p1:float16:nhwc``.

The letters for sizes follow cuDNN (Chetlur et al., cuDNN: Efficient Primitives for Deep Learning,
2014, table 1) and CUTLASS: n examples; c and k channels of input and output; d, h and w of the
input; t, r and s of the kernel; p padding. Other parameters that differ from PyTorch's defaults
have PyTorch's names: stride2, dilation2, groups32, output_padding1. bias and a padding mode are
separate fields.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from convtime.conv.call import DTYPES, LAYOUTS
from convtime.conv.problem import LARGEST_SIZE, PADDING_MODES, ConvProblem, join_numbers
from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.core.kinds import KINDS

EXAMPLE = "conv2d:n64c64h56w56k64r3s3p1:float16:nhwc"

_KINDS = {kind.function: kind for kind in KINDS}
_SINGLE = {"n": "batch", "c": "in_channels", "k": "out_channels", "groups": "groups"}
# One letter per spatial dimension; lower ranks use the last letters.
_LETTERS = {"size": "dhw", "kernel_size": "trs"}
# One number per spatial dimension, or one for all; with the default for an omitted parameter.
_PARAMETERS = {
    "p": ("padding", 0),
    "stride": ("stride", 1),
    "dilation": ("dilation", 1),
    "output_padding": ("output_padding", 0),
}
# The fields after the sizes, and what each is.
_FIELDS = {
    "bias": "bias",
    **dict.fromkeys(PADDING_MODES, "padding_mode"),
    **dict.fromkeys(DTYPES, "dtype"),
    **dict.fromkeys(LAYOUTS, "layout"),
}


@dataclasses.dataclass(frozen=True)
class ProblemLine:
    """A parsed line; ``str()`` returns the line.

    Attributes:
        problem: The convolution.
        dtype: A key of convtime.conv.call.DTYPES; None if the line has none.
        layout: A member of convtime.conv.call.LAYOUTS; None if the line has none.
    """

    problem: ConvProblem
    dtype: str | None = None
    layout: str | None = None

    def __str__(self) -> str:
        problem, rank = self.problem, self.problem.rank
        sizes = {"n": problem.batch, "c": problem.in_channels}
        sizes |= zip(_LETTERS["size"][-rank:], problem.size, strict=True)
        sizes["k"] = problem.out_channels
        sizes |= zip(_LETTERS["kernel_size"][-rank:], problem.kernel_size, strict=True)
        parameters = {
            name: join_numbers(getattr(problem, field), "x")
            for name, (field, usual) in _PARAMETERS.items()
            if getattr(problem, field) != (usual,) * rank
        }
        if problem.groups != 1:
            parameters["groups"] = str(problem.groups)
        fields = [
            problem.kind.function,
            "".join(f"{name}{value}" for name, value in (sizes | parameters).items()),
            "bias" if problem.bias else None,
            problem.padding_mode if problem.padding_mode != PADDING_MODES[0] else None,
            self.dtype,
            self.layout,
        ]
        return ":".join(filter(None, fields))

    @classmethod
    def parse(cls, line: str) -> ProblemLine:
        """Parse a line; sizes may be in any order, and so may the fields after them.

        Raises:
            InputError: The line is malformed, or its numbers do not define a convolution.
        """
        try:
            return _parse(line)
        except InputError as error:
            raise InputError(f"problem {line[:200]!r}: {error}") from error


def _parse(line: str) -> ProblemLine:
    name, *rest = line.strip().split(":")
    require(
        name in _KINDS and rest,
        f"it must begin with one of {', '.join(_KINDS)} and a colon, as {EXAMPLE} does",
    )
    kind = _KINDS[name]
    sizes = _read_sizes(rest[0], kind.rank)
    fields = _read_fields(rest[1:])
    problem = ConvProblem(
        **sizes,
        bias="bias" in fields,
        padding_mode=fields.get("padding_mode", PADDING_MODES[0]),
        transposed=kind.transposed,
    )
    return ProblemLine(problem, fields.get("dtype"), fields.get("layout"))


def _read_sizes(text: str, rank: int) -> dict[str, Any]:
    """Return sizes and parameters, by their names in ConvProblem."""
    written = {"groups": "1", **_read_numbers(text, rank)}

    def one(name: str) -> int:
        require(name in written, f"{name} is missing, as in {EXAMPLE}")
        number = written[name]
        require(number.isdigit(), f"{name} is {number!r}, but must be one number")
        return int(number)

    sizes: dict[str, Any] = {
        field: tuple(map(one, letters[-rank:])) for field, letters in _LETTERS.items()
    }
    sizes |= {field: one(name) for name, field in _SINGLE.items()}
    for name, (field, _) in _PARAMETERS.items():
        if name in written:
            numbers = written[name]
            sizes[field] = "same" if numbers == "same" else tuple(map(int, numbers.split("x")))
    return sizes


def _read_numbers(text: str, rank: int) -> dict[str, str]:
    """Return the value after each name: a number, several joined by x, or ``same``."""
    letters = "".join(each[-rank:] for each in _LETTERS.values())
    names = [*_SINGLE, *letters, *_PARAMETERS]
    longest_first = "|".join(sorted(names, key=len, reverse=True))
    size = re.compile(rf"({longest_first})([0-9]+(?:x[0-9]+)*|same)")
    numbers: dict[str, str] = {}
    end = 0
    while end < len(text):
        match = size.match(text, end)
        if match is None:
            raise InputError(
                f"{text[end : end + 20]!r} must be one of {', '.join(names)} with a number after "
                "it, such as p1, or one for each dimension, such as p1x0"
            )
        name, number = match.groups()
        require(name not in numbers, f"{name} is given more than once")
        require(
            all(len(digits) <= len(str(LARGEST_SIZE)) for digits in number.split("x")),
            f"{name} must be at most {LARGEST_SIZE}, got {number[:40]}",
        )
        numbers[name] = number
        end = match.end()
    return numbers


def _read_fields(fields: Iterable[str]) -> dict[str, str]:
    """Return the fields after the sizes, by their kind."""
    read: dict[str, str] = {}
    for field in fields:
        require(field in _FIELDS, f"{field[:40]!r} must be one of {', '.join(_FIELDS)}")
        kind = _FIELDS[field]
        require(kind not in read, f"{field!r} is a second {kind}, after {read.get(kind)!r}")
        read[kind] = field
    return read
