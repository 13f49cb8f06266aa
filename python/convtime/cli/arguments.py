"""Parsers of command-line arguments; errors name the value and the allowed range."""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from convtime.conv.csv_file import whole_number
from convtime.conv.problem import LARGEST_SIZE

_Value = TypeVar("_Value")

DEVICE_HELP = "cpu, cuda or cuda:N (default: cuda if there is a GPU)"


def _parser(kind: Callable[[str], _Value], expected: str) -> Callable[[str], _Value]:
    """Return a function that parses a value; its errors name the value and what is expected."""

    def parse(text: str) -> _Value:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"got {text!r}, but it must be {expected}") from None

    return parse


def _float(text: str, *, smallest: float = -math.inf, largest: float = math.inf) -> float:
    value = float(text)
    if not smallest < value < largest:
        raise ValueError
    return value


batch = _parser(whole_number, f"a whole number from 1 to {LARGEST_SIZE}")
count = _parser(
    functools.partial(whole_number, smallest=0), f"a whole number from 0 to {LARGEST_SIZE}"
)
number = _parser(_float, "a number")
seconds = _parser(
    functools.partial(_float, smallest=0.0, largest=math.nextafter(LARGEST_SIZE, math.inf)),
    f"a positive number of seconds, {LARGEST_SIZE} at most",
)
_processes = _parser(whole_number, "gpus, or a whole number of 1 or more")
_size = _parser(whole_number, "positive whole numbers separated by commas, such as 8,3,224,224")


def workers(text: str) -> str | int:
    """Parse where points are measured: ``gpus``, or a number of processes."""
    return text if text == "gpus" else _processes(text)


def warmup(text: str) -> str | int | float:
    """Parse the warm-up: ``steady``, a whole number of calls or a decimal number of seconds."""
    if text == "steady":
        return text
    return count(text) if text.isdecimal() else number(text)


def file_name(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("got '', but it must be the name of a file")
    return Path(text)


def shape(text: str) -> tuple[int, ...]:
    return tuple(_size(size.strip()) for size in text.split(","))
