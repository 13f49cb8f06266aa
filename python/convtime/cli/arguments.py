"""Parsers of command-line arguments; errors name the value and the allowed range."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convtime.conv.problem import LARGEST_SIZE
from convtime.conv.sources.csv_file import whole_number

DEVICE_HELP = "cpu, cuda or cuda:N (default: cuda if there is a GPU)"


def _number(text: str, kind: Callable[[str], Any], expected: str) -> Any:
    """Parse a positive number; errors name the value and the allowed range."""
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value <= LARGEST_SIZE:
        raise argparse.ArgumentTypeError(f"got {text!r}, but it must be {expected}")
    return value


def batch(text: str) -> int:
    """Parse a number of images."""
    expected = f"a whole number from 1 to {LARGEST_SIZE}"
    return int(_number(text, whole_number, expected))


def count(text: str) -> int:
    """Parse a whole number, 0 or more."""
    try:
        return whole_number(text, smallest=0)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, but it must be a whole number from 0 to {LARGEST_SIZE}"
        ) from None


def number(text: str) -> float:
    """Parse a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"got {text!r}, but it must be a number")
    return value


def warmup(text: str) -> str | int | float:
    """Parse the warm-up: ``steady``, a whole number of calls or a decimal number of seconds."""
    if text == "steady":
        return text
    return count(text) if text.isdecimal() else number(text)


def seconds(text: str) -> float:
    """Parse a positive number of seconds."""
    return float(_number(text, float, f"a positive number of seconds, {LARGEST_SIZE} at most"))


def file_name(text: str) -> Path:
    """Parse the name of a file."""
    if not text:
        raise argparse.ArgumentTypeError("got '', but it must be the name of a file")
    return Path(text)


def shape(text: str) -> tuple[int, ...]:
    """Parse a tensor's sizes."""
    expected = "positive whole numbers separated by commas, such as 8,3,224,224"
    return tuple(_number(size.strip(), whole_number, expected) for size in text.split(","))
