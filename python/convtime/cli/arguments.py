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


def _parsed(text: str, kind: Callable[[str], _Value], expected: str) -> _Value:
    """Parse a value; errors name it and what is expected."""
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, but it must be {expected}") from None


def batch(text: str) -> int:
    """Parse a number of images."""
    return _parsed(text, whole_number, f"a whole number from 1 to {LARGEST_SIZE}")


def count(text: str) -> int:
    """Parse a whole number, 0 or more."""
    kind = functools.partial(whole_number, smallest=0)
    return _parsed(text, kind, f"a whole number from 0 to {LARGEST_SIZE}")


def workers(text: str) -> str | int:
    """Parse where points are measured: ``gpus``, or a number of processes."""
    if text == "gpus":
        return text
    return _parsed(text, whole_number, "gpus, or a whole number of 1 or more")


def number(text: str) -> float:
    """Parse a finite number."""
    return _parsed(text, _finite, "a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def warmup(text: str) -> str | int | float:
    """Parse the warm-up: ``steady``, a whole number of calls or a decimal number of seconds."""
    if text == "steady":
        return text
    return count(text) if text.isdecimal() else number(text)


def seconds(text: str) -> float:
    """Parse a positive number of seconds."""
    return _parsed(text, _seconds, f"a positive number of seconds, {LARGEST_SIZE} at most")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= LARGEST_SIZE:
        raise ValueError
    return value


def file_name(text: str) -> Path:
    """Parse the name of a file."""
    if not text:
        raise argparse.ArgumentTypeError("got '', but it must be the name of a file")
    return Path(text)


def shape(text: str) -> tuple[int, ...]:
    """Parse a tensor's sizes."""
    expected = "positive whole numbers separated by commas, such as 8,3,224,224"
    return tuple(_parsed(size.strip(), whole_number, expected) for size in text.split(","))
